"""MAE-LM: a text encoder pretrained as a masked autoencoder (Meng et al., 2024, section 3)."""

from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model
from torch import Tensor

from fairseq_maelm.batch import Layout
from fairseq_maelm.models.architectures import register_architectures
from fairseq_maelm.models.checks import check_config, check_task
from fairseq_maelm.models.config import MaelmModelConfig, complete_config
from fairseq_maelm.models.decoder import NO_DECODER, MaelmDecoder, NoDecoder, build_decoder
from fairseq_maelm.models.encoder import EncoderOutput, build_encoder
from fairseq_maelm.models.fairseq_model import FairseqTextModel
from fairseq_maelm.modules.execution import execute
from fairseq_maelm.modules.heads import ClassificationHead, MaskedTokenHead
from fairseq_maelm.modules.initialization import scale_outputs
from fairseq_maelm.modules.precision import in_its_precision
from fairseq_maelm.modules.wanted import WantedPositions, first_positions, masked_positions
from fairseq_maelm.optim.hidden_matrices import mark_parameters

__all__ = ["MaelmModel", "MaelmModelConfig", "complete_config"]


@register_model("maelm", dataclass=MaelmModelConfig)
class MaelmModel(FairseqTextModel):
    """Encoder, and while masked tokens are predicted also decoder and prediction head.

    Args:
        config: a complete ``MaelmModelConfig``.
        dictionary: fairseq's, with ``<mask>``.
        predicts_masked_tokens: whether to build decoder and prediction head; fine-tuning needs neither, and loading
            a pretrained checkpoint then drops them.
    """

    def __init__(self, config: Any, dictionary: Dictionary, predicts_masked_tokens: bool = True) -> None:
        super().__init__(config, build_encoder(config, dictionary))
        self.precision = str(config.precision)
        self.mask_index = self.encoder.mask_index
        self.decoder: MaelmDecoder | None = None
        self.lm_head: MaskedTokenHead | None = None
        if predicts_masked_tokens:
            self.decoder = build_decoder(config)
            width = config.decoder_embed_dim if self.decoder else config.encoder_embed_dim
            sizes = width, config.encoder_embed_dim, len(dictionary)
            self.lm_head = MaskedTokenHead(*sizes, config.layer_norm_eps, config.layer == "modern")
        self.initialize(self)
        mark_parameters(self)
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                scale_outputs(stack.layers)

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

    @in_its_precision
    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        layout: Layout | None = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        target: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Predict masked tokens (Figure 2), or give their loss, features or class scores.

        Args:
            src_tokens: <int64>[B, S] the tokens that the encoder sees, padded on the right.
            src_lengths: <int64>[B] their number; accepted because fairseq passes it, padding shows in the tokens.
            layout: where the tokens come from and what to predict. Without it every token is visible and stands at
                its own position, and every position is predicted.
            features_only: return the encoder's last states instead of predictions.
            return_all_hiddens: give the states of all layers in the second value.
            classification_head_name: return this head's scores of the encoder's last states.
            target: <int64>[M] the tokens at the masked slots in order; asks for their loss, which is computed where it
                is needed alone: the last layer before the prediction head has queries at the masked positions only,
                and logits exist for some of them at a time. Needs a layout.

        Returns:
            logits <float>[M, V] at the masked slots in order, or [B, S, V] without a layout; or the loss <float>[];
            or features <float>[B, S, D]; or scores <float>[B, classes], of a token head <float>[B, S, outputs]. And a
            dictionary whose ``inner_states`` holds L + 1 times <float>[B, S, D], or None; beside a loss it holds
            ``correct`` <int64>[] instead.

        Raises:
            ValueError: if predictions are asked for, but the model was built for fine-tuning, without decoder and
                prediction head; or a loss without a layout.
        """
        if target is None and (features_only or classification_head_name is not None):
            return self._encode_alone(src_tokens, layout, return_all_hiddens, classification_head_name)
        wanted = None if target is None else masked_positions(_given(layout))
        visible = self.encode(src_tokens, layout, self.decoding.wanted_of_encoder(wanted, layout))
        full = self.reassemble(visible, layout)
        decoded = self.decode(full, visible, layout, wanted)
        predicted, extra = self.predict(decoded, layout, target)
        if return_all_hiddens and target is None:
            extra["inner_states"] = visible.all_states
        return predicted, extra

    def encode(
        self,
        src_tokens: Tensor,
        layout: Layout | None = None,
        wanted: WantedPositions | None = None,
    ) -> EncoderOutput:
        """Encode the visible tokens <int64>[B, S] at their original positions.

        The states ``wanted`` spare the last layer the rest.
        """
        if layout is None:
            return self.encoder(src_tokens, wanted=wanted)
        return self.encoder(src_tokens, layout["positions"], layout["encoder_padded"], wanted)

    def reassemble(self, visible: EncoderOutput, layout: Layout | None) -> Tensor:
        """Put the encoder's states back among the mask embeddings: <float>[B, T, D], what the decoder starts from."""
        return self.decoding.reassemble(visible, self.encoder, layout)

    def decode(
        self, full: Tensor, visible: EncoderOutput, layout: Layout | None, wanted: WantedPositions | None = None
    ) -> Tensor:
        """Run the decoder: <float>[B, T, D] to <float>[B, T, its width], or [M, its width] of what is ``wanted``."""
        return self.decoding(full, visible, self.encoder, layout, wanted)

    def predict(
        self, decoded: Tensor, layout: Layout | None, target: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Score the vocabulary at masked positions, or give the loss of the targets; as ``forward`` returns it.

        Without targets decoded states are those of all positions, with targets those of the masked ones alone.
        """
        if self.lm_head is None:
            raise ValueError(
                "this model was built for fine-tuning, without decoder and prediction head: load the pretrained "
                "checkpoint to predict masked tokens"
            )
        embedding = self.encoder.embed_tokens.weight
        if target is not None:
            loss, correct = self.lm_head.loss(decoded, embedding, target)
            return loss, {"correct": correct}
        if layout is not None:
            decoded = decoded.flatten(0, 1).index_select(0, layout["masked_slots"])
        return self.lm_head(decoded, embedding), {"inner_states": None}

    @property
    def decoding(self) -> MaelmDecoder | NoDecoder:
        """The decoder, or what stands in for one without layers."""
        return self.decoder or NO_DECODER

    def _encode_alone(
        self, src_tokens: Tensor, layout: Layout | None, return_all_hiddens: bool, head_name: str | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features, or the scores of a head, as ``forward`` returns them."""
        head = None if head_name is None else self.classification_heads[head_name]
        # A head on sentences reads the first state of each: up to 1.19 times as fast with 6 layers.
        reads_first = isinstance(head, ClassificationHead) and not return_all_hiddens
        encoded = self.encode(src_tokens, layout, first_positions(src_tokens) if reads_first else None)
        states = encoded.states[:, None] if reads_first else encoded.states
        extra = {"inner_states": encoded.all_states if return_all_hiddens else None}
        return states if head is None else head(states), extra


def _given(layout: Layout | None) -> Layout:
    if layout is None:
        raise ValueError("a loss needs the layout of the masked tokens beside their targets")
    return layout


register_architectures()
