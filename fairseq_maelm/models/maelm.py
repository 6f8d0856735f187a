"""MAE-LM: a text encoder pretrained as a masked autoencoder (Meng et al., 2024, section 3)."""

import logging
from functools import partial
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderModel, register_model, register_model_architecture
from torch import Tensor, nn

from fairseq_maelm.batch import Layout, padding_mask
from fairseq_maelm.models.checkpoint import fit_state_dict
from fairseq_maelm.models.checks import check_config, check_task, refuse_stock_bf16
from fairseq_maelm.models.config import MaelmModelConfig, complete_config
from fairseq_maelm.models.decoder import MaelmDecoder, Memory, build_decoder, encoder_memory
from fairseq_maelm.models.encoder import EncoderOutput, MaelmEncoder
from fairseq_maelm.models.sizes import SIZES, fill_from_size
from fairseq_maelm.modules.execution import execute
from fairseq_maelm.modules.heads import ClassificationHead, MaskedTokenHead, TokenHead
from fairseq_maelm.modules.initialisation import initialize
from fairseq_maelm.modules.linear_cross_entropy import MaskedTokenLoss
from fairseq_maelm.modules.precision import in_its_precision
from fairseq_maelm.modules.queries import Queries, masked_queries
from fairseq_maelm.modules.reassemble import reassemble
from fairseq_maelm.modules.transformer import LayerShape

logger = logging.getLogger(__name__)

__all__ = ["MaelmModel", "MaelmModelConfig", "complete_config"]


@register_model("maelm", dataclass=MaelmModelConfig)
class MaelmModel(FairseqEncoderModel):
    """Encoder, and while masked tokens are predicted also decoder and prediction head.

    Args:
        config: a complete ``MaelmModelConfig``.
        dictionary: fairseq's, with ``<mask>``.
        predicts_masked_tokens: whether to build decoder and prediction head; fine-tuning needs neither, and loading
            a pretrained checkpoint then drops them.
    """

    def __init__(self, config: Any, dictionary: Dictionary, predicts_masked_tokens: bool = True) -> None:
        shape = LayerShape(
            config.encoder_embed_dim,
            config.encoder_ffn_embed_dim,
            config.encoder_attention_heads,
            config.dropout,
            config.attention_dropout,
            str(config.attention),
            config.layer_norm_eps,
        )
        encoder = MaelmEncoder(
            dictionary,
            config.encoder_layers,
            shape,
            config.max_positions,
            config.relative_buckets,
            config.relative_num_buckets,
            config.relative_max_distance,
        )
        super().__init__(encoder)
        self.config = config
        self.precision = str(config.precision)
        self.mask_index, self.eos = dictionary.index("<mask>"), dictionary.eos()
        self.decoder: Optional[MaelmDecoder] = None
        self.lm_head: Optional[MaskedTokenHead] = None
        if predicts_masked_tokens:
            self.decoder = build_decoder(config)
            width = config.decoder_embed_dim if self.decoder else config.encoder_embed_dim
            self.lm_head = MaskedTokenHead(width, config.encoder_embed_dim, len(dictionary), config.layer_norm_eps)
        self.classification_heads = nn.ModuleDict()
        self.apply(partial(initialize, std=config.init_std, embedding_std=config.embedding_init_std))

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "MaelmModel":
        """Build the model for a task; called by fairseq.

        The task says by an attribute ``predicts_masked_tokens`` that it needs decoder and prediction head; stock
        fine-tuning tasks have no such attribute and get the encoder alone.
        """
        complete_config(cfg)
        check_config(cfg)
        check_task(task, cfg.max_positions)
        model = cls(cfg, task.source_dictionary, getattr(task, "predicts_masked_tokens", False))
        execute(model, compiles=cfg.compile, recomputes=cfg.checkpoint_activations)
        return model

    def encode(self, src_tokens: Tensor, layout: Optional[Layout] = None, first_only: bool = False) -> EncoderOutput:
        """Encode the visible tokens <int64>[B, S] at their original positions, the last layer for all or the first."""
        if layout is None:
            return self.encoder(src_tokens, first_only=first_only)
        return self.encoder(src_tokens, layout["positions"], layout["encoder_padded"], first_only=first_only)

    def reassemble(self, visible: Tensor, layout: Layout) -> Tensor:
        """Put states <float>[B, S, D] back among the mask embeddings: <float>[B, T, D]."""
        return reassemble(visible, self.encoder.embed_tokens.weight[self.mask_index], layout)

    def memory(self, visible: Tensor, src_tokens: Tensor, layout: Optional[Layout]) -> Optional[Memory]:
        """The encoder's output for a decoder with cross-attention; None for others."""
        if self.decoder is None or not self.decoder.reads_encoder:
            return None
        return encoder_memory(visible, src_tokens, self.encoder.padding_idx, layout)

    def decoder_input(self, visible: Tensor, src_tokens: Tensor, layout: Optional[Layout]) -> Tensor:
        """What the decoder starts from, <float>[B, T, D]: reassembled states, or for a decoder that goes from left to
        right the embeddings of the sequence itself, shifted right behind </s> as in BART."""
        if self.decoder is not None and self.decoder.autoregressive:
            tokens = src_tokens if layout is None else layout["full_tokens"]
            shifted = torch.cat([tokens.new_full((len(tokens), 1), self.eos), tokens[:, :-1]], dim=1)
            return self.encoder.embed_tokens(shifted)
        return visible if layout is None else self.reassemble(visible, layout)

    def decode(
        self,
        full: Tensor,
        padding: Optional[Tensor],
        memory: Optional[Memory] = None,
        queries: Optional[Queries] = None,
    ) -> Tensor:
        """Run the decoder, if there is one: <float>[B, T, D] to <float>[B, T, its width]; ``padding`` <bool>[B, T].

        Where states are wanted for ``queries`` alone they are <float>[M, its width].
        """
        if self.decoder is None:
            return full if queries is None else queries.take(full)
        return self.decoder(full, self.encoder.embed_positions.weight, padding, memory, queries)

    @in_its_precision
    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        layout: Optional[Layout] = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: Optional[str] = None,
        target: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Predict masked tokens (Figure 2), or give their loss, features or class scores.

        Args:
            src_tokens: <int64>[B, S] the tokens that the encoder sees, padded on the right.
            src_lengths: <int64>[B] their number; accepted because fairseq passes it, padding shows in the tokens.
            layout: where the tokens come from and what to predict. Without it every token is visible and stands at
                its own position, and every position is predicted.
            features_only: return the encoder's last states instead of predictions.
            return_all_hiddens: give the states of all layers in the second value.
            classification_head_name: return this head's scores of the encoder's last states.
            target: <int64>[M] the tokens at the masked slots in order; asks for their loss, as ``masked_token_loss``
                computes it, and needs a layout.

        Returns:
            logits <float>[M, V] at the masked slots in order, or [B, S, V] without a layout; or the loss <float>[];
            or features <float>[B, S, D]; or scores <float>[B, classes], of a token head <float>[B, S, outputs]. And a
            dictionary whose ``inner_states`` holds L + 1 times <float>[B, S, D], or None; beside a loss it holds
            ``correct`` <int64>[] instead.
        """
        if target is not None:
            loss, correct = self.masked_token_loss(src_tokens, layout, target)
            return loss, {"correct": correct}
        head = None if classification_head_name is None else self.classification_heads[classification_head_name]
        first_only = isinstance(head, ClassificationHead) and not return_all_hiddens
        encoded = self.encode(src_tokens, layout, first_only)
        extra = {"inner_states": encoded.all_states if return_all_hiddens else None}
        if head is not None:
            return head(encoded.states), extra
        if features_only:
            return encoded.states, extra
        return self.predict_tokens(encoded.states, src_tokens, layout), extra

    def predict_tokens(self, visible: Tensor, src_tokens: Tensor, layout: Optional[Layout]) -> Tensor:
        """Reassemble, decode and score the vocabulary.

        Args:
            visible: <float>[B, S, D] the encoder's last states.
            src_tokens: <int64>[B, S] what they were computed from.
            layout: as in ``forward``.

        Returns:
            logits <float>[M, V], or [B, S, V] without a layout.

        Raises:
            ValueError: if the model was built for fine-tuning, without decoder and prediction head.
        """
        head = self._prediction_head()
        decoded = self._reassemble_and_decode(visible, src_tokens, layout, None)
        if layout is not None:
            decoded = decoded.flatten(0, 1).index_select(0, layout["masked_slots"])
        return head(decoded, self.encoder.embed_tokens.weight)

    def masked_token_loss(self, src_tokens: Tensor, layout: Optional[Layout], target: Tensor) -> MaskedTokenLoss:
        """Cross-entropy of what ``predict_tokens`` predicts, computed where it is needed alone.

        The last layer before the prediction head has queries at the masked positions only, and logits exist for some
        of them at a time. Arguments and errors as in ``forward``.
        """
        head = self._prediction_head()
        if layout is None:
            raise ValueError("a loss needs the layout of the masked tokens beside their targets")
        queries = masked_queries(layout)
        if self.decoder is None and layout["all_visible"]:
            decoded = self.encoder(src_tokens, layout["positions"], layout["encoder_padded"], queries).states
        else:
            visible = self.encode(src_tokens, layout).states
            decoded = self._reassemble_and_decode(visible, src_tokens, layout, queries)
        return head.loss(decoded, self.encoder.embed_tokens.weight, target)

    def _reassemble_and_decode(
        self, visible: Tensor, src_tokens: Tensor, layout: Optional[Layout], queries: Optional[Queries]
    ) -> Tensor:
        full = self.decoder_input(visible, src_tokens, layout)
        memory = self.memory(visible, src_tokens, layout)
        if layout is None:
            return self.decode(full, src_tokens.eq(self.encoder.padding_idx), memory)
        padding = padding_mask(layout["full_lengths"], layout["full_length"]) if layout["decoder_padded"] else None
        return self.decode(full, padding, memory, queries)

    def _prediction_head(self) -> MaskedTokenHead:
        if self.lm_head is None:
            raise ValueError(
                "this model was built for fine-tuning, without decoder and prediction head: load the pretrained "
                "checkpoint to predict masked tokens"
            )
        return self.lm_head

    def extract_features(
        self, src_tokens: Tensor, return_all_hiddens: bool = False
    ) -> Tuple[Tensor, Dict[str, Optional[List[Tensor]]]]:
        """The encoder's last states <float>[B, S, D] for whole sequences; see ``forward``."""
        return self.forward(src_tokens, features_only=True, return_all_hiddens=return_all_hiddens)

    def get_normalized_probs(
        self, net_output: Tuple[Tensor, Any], log_probs: bool, sample: Optional[Dict[str, Any]] = None
    ) -> Tensor:
        """Turn logits into (log-)probabilities in single precision; fairseq calls it for any model."""
        logits = net_output[0].float()
        return F.log_softmax(logits, dim=-1) if log_probs else F.softmax(logits, dim=-1)

    def register_classification_head(
        self, name: str, num_classes: int, inner_dim: Optional[int] = None, **unused: Any
    ) -> None:
        """Add a head with fresh weights on the first token's state, replacing one of the same name.

        Args:
            name: of the head.
            num_classes: number of classes or regression targets.
            inner_dim: width of the dense layer, D by default.
            unused: other fairseq models take more; accepted so that stock tasks can call this one too.
        """
        width = self.config.encoder_embed_dim
        self._add_head(name, ClassificationHead(width, inner_dim or width, num_classes, self.config.pooler_dropout))

    def register_token_head(self, name: str, num_outputs: int, dropout: float = 0.0) -> None:
        """Add a head that scores every token, as ``TokenHead`` does, to the heads that score sentences."""
        self._add_head(name, TokenHead(self.config.encoder_embed_dim, num_outputs, dropout))

    def _add_head(self, name: str, head: Union[ClassificationHead, TokenHead]) -> None:
        if name in self.classification_heads:
            logger.warning("head %r is replaced by a new one with %d outputs", name, head.out_proj.out_features)
        head.apply(partial(initialize, std=self.config.init_std, embedding_std=self.config.embedding_init_std))
        self.classification_heads[name] = head.to(self.encoder.embed_tokens.weight.device).train(self.training)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Fit a checkpoint to this model before it is loaded strictly; called by fairseq."""
        super().upgrade_state_dict_named(state_dict, name)
        fit_state_dict(self, state_dict)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "checkpoint_best.pt",
        data_name_or_path: str = ".",
        **overrides: Any,
    ) -> Any:
        """Load a checkpoint behind the hub interface; see ``fairseq_maelm.models.hub.load``."""
        from fairseq_maelm.models import hub  # the interface imports the model

        return hub.load(model_name_or_path, checkpoint_file, data_name_or_path, **overrides)


def _register_sizes() -> None:
    for name in SIZES:

        def fill(cfg: Any, name: str = name) -> None:
            refuse_stock_bf16(cfg)  # fairseq-train would look for a TPU before it builds the model
            fill_from_size(cfg, name)

        register_model_architecture("maelm", name)(fill)


_register_sizes()
