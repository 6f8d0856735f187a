"""Multi-head attention of a decoder to the encoder's output."""

from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import LayerConfig, MultiHeadAttention
from fairseq_maelm.modules.output_positions import OutputPositions


class CrossAttention(MultiHeadAttention):
    """Multi-head attention of one sequence to another of the same width."""

    def __init__(self, config: LayerConfig, number: int = 0) -> None:
        super().__init__(config, number)
        self.q_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)
        # One matrix product computes keys and values; its rows are in this order.
        self.kv_proj = nn.Linear(config.embed_dim, 2 * config.embed_dim, not config.modern)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)

    def forward(
        self,
        states: Tensor,
        memory: Tensor,
        memory_bias: AttentionBias | None,
        output_at: OutputPositions | None = None,
    ) -> Tensor:
        """Attend from states <float>[B, T, D] to ``memory`` <float>[B, S, D]; return <float>[B, T, D].

        ``memory_bias`` has the rotations of queries and keys. With ``output_at`` states and result are <float>[M, D].
        """
        return self.out_proj(self.attend(self.q_proj(states), self.kv_proj(memory), memory_bias, output_at))
