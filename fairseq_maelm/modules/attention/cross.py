"""Multi-head attention of a decoder to the encoder's output."""

from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import LayerShape, MultiHeadAttention
from fairseq_maelm.modules.output_positions import WantedPositions


class CrossAttention(MultiHeadAttention):
    """Multi-head attention of one sequence to another of the same width."""

    def __init__(self, shape: LayerShape, number: int = 0) -> None:
        super().__init__(shape, number)
        self.q_proj = nn.Linear(shape.embed_dim, shape.embed_dim, not shape.modern)
        # One matrix product computes keys and values; its rows are in this order.
        self.kv_proj = nn.Linear(shape.embed_dim, 2 * shape.embed_dim, not shape.modern)
        self.out_proj = nn.Linear(shape.embed_dim, shape.embed_dim, not shape.modern)

    def forward(
        self,
        states: Tensor,
        memory: Tensor,
        bias: AttentionBias | None,
        memory_bias: AttentionBias | None,
        wanted: WantedPositions | None = None,
    ) -> Tensor:
        """Attend from states <float>[B, T, D] to ``memory`` <float>[B, S, D]; return <float>[B, T, D].

        ``bias`` gives the positions of the queries. ``memory_bias`` gives those of the keys, and is added to the
        logits. With ``wanted`` the states and the result are <float>[M, D].
        """
        turns = self.rotation(bias, wanted, len(memory)), self.rotation(memory_bias)
        return self.out_proj(self.attend(self.q_proj(states), self.kv_proj(memory), memory_bias, wanted, *turns))
