"""MAE-LM: a text encoder pretrained as a masked autoencoder (Meng et al., 2024, section 3)."""

from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model
from torch import Tensor

from fairseq_maelm.architecture.checks import check_config, check_task
from fairseq_maelm.architecture.config import MaelmModelConfig, complete_config
from fairseq_maelm.batch import Layout
from fairseq_maelm.models.architectures import register_architectures
from fairseq_maelm.models.decoder import MaelmDecoder, SharedDecoder, reassemble
from fairseq_maelm.models.decoder_variants import build_decoder
from fairseq_maelm.models.encoder import EncoderOutput, build_encoder
from fairseq_maelm.models.fairseq_model import FairseqTextModel
from fairseq_maelm.modules.autocast import in_its_precision
from fairseq_maelm.modules.finetuning_heads import ClassificationHead, pool
from fairseq_maelm.modules.initialization import mark_parameters, scale_outputs
from fairseq_maelm.modules.layer_modes import execute
from fairseq_maelm.modules.lm_head import MaskedTokenHead
from fairseq_maelm.modules.output_positions import OutputPositions, first_positions, predicted_positions

__all__ = ["MaelmModel", "MaelmModelConfig", "complete_config"]


@register_model("maelm", dataclass=MaelmModelConfig)
class MaelmModel(FairseqTextModel):
    """An encoder and, for the prediction of masked tokens, an optional decoder and the LM head.

    Args:
        config: a complete ``MaelmModelConfig``.
        dictionary: fairseq's dictionary with ``<mask>``.
        predicts_masked_tokens: build the decoder and the LM head. Fine-tuning needs neither; loading a pretrained
            checkpoint then drops their weights.
    """

    def __init__(self, config: Any, dictionary: Dictionary, predicts_masked_tokens: bool = True) -> None:
        super().__init__(config, build_encoder(config, dictionary))
        self.mask_index = self.encoder.mask_index
        self.decoder: MaelmDecoder | SharedDecoder | None = None
        self.lm_head: MaskedTokenHead | None = None
        if predicts_masked_tokens:
            self.decoder = build_decoder(config)
            width = config.decoder_embed_dim if self.decoder else config.encoder_embed_dim
            self.lm_head = MaskedTokenHead(
                input_dim=width,
                embed_dim=config.encoder_embed_dim,
                vocabulary_size=len(dictionary),
                **self.options.of_layers,
            )
        self.initialize(self)
        mark_parameters(self)
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                scale_outputs(stack.layers)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "MaelmModel":
        """Build the model for a task; called by fairseq.

        A task whose attribute ``predicts_masked_tokens`` is true gets the decoder and the LM head. fairseq's
        fine-tuning tasks have no such attribute and get only the encoder.
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
        """Predict masked tokens (Figure 2), or return their loss, the encoder's features or class scores.

        Args:
            src_tokens: <int64>[B, S] the tokens that the encoder sees, padded on the right.
            src_lengths: <int64>[B] unused; fairseq passes it. The tokens show where padding is.
            layout: original positions of the tokens and the positions to predict. Without a layout all tokens are
                visible, at positions 0, 1, 2, ..., and all positions are predicted.
            features_only: return the encoder's last states.
            return_all_hiddens: return the states of all layers as ``inner_states``.
            classification_head_name: return this head's scores.
            target: <int64>[M] the original tokens at the masked positions, in order, without spare outputs. With a
                target, the loss is returned, and a layout is needed. This is cheaper than returning logits: the last
                layer before the LM head computes the masked positions only, and the logits are computed in chunks.

        Returns:
            A pair. First: logits <float>[M, V] at the masked positions, or [B, S, V] without a layout; or the loss
            <float>[], summed over targets; or features <float>[B, S, D]; or scores: <float>[B, classes], or
            <float>[B, S, outputs] from a token head. Second, a dict: with a target {``correct``: <int64>[]}, otherwise
            {``inner_states``: a list of L + 1 tensors <float>[B, S, D], or None}.

        Raises:
            ValueError: the model has no LM head to predict with, or ``target`` is given without a layout.
        """
        if target is None and (features_only or classification_head_name is not None):
            return self._encode_alone(src_tokens, layout, return_all_hiddens, classification_head_name)
        outputs = None if target is None else predicted_positions(_required(layout))
        decoded, all_states = self.encode_and_decode(src_tokens, layout, outputs, return_all_hiddens)
        predicted, extra = self.predict(decoded, layout, target)
        if return_all_hiddens and target is None:
            extra["inner_states"] = all_states
        return predicted, extra

    def encode_and_decode(
        self,
        src_tokens: Tensor,
        layout: Layout | None,
        outputs: OutputPositions | None = None,
        return_all_hiddens: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return what the LM head reads, and the encoder's states of all layers if they are asked for.

        The first is <float>[M, width] at the predicted positions if there are ``outputs`` or the decoder computes no
        others, and otherwise <float>[B, T, width].
        """
        if isinstance(self.decoder, SharedDecoder):
            # The encoder's own layers decode, in one pass; the plain form is in docs/maelm_in_one_file.py.
            all_states, decoded = self.decoder.encode_and_decode(self.encoder, src_tokens, layout, return_all_hiddens)
            return decoded, all_states
        head_reads_encoder = self.decoder is None and layout is not None and layout["all_visible"]
        visible = self.encode(src_tokens, layout, outputs if head_reads_encoder else None)
        full = self.reassemble(visible, layout)
        return self.decode(full, visible, layout, outputs), visible.all_states

    def encode(
        self, src_tokens: Tensor, layout: Layout | None = None, outputs: OutputPositions | None = None
    ) -> EncoderOutput:
        """Encode the visible tokens <int64>[B, S] at their original positions.

        With ``outputs``, the last layer computes states only at these positions.
        """
        positions, padded = (None, None) if layout is None else (layout["positions"], layout["encoder_padded"])
        return self.encoder(src_tokens, positions, padded, outputs)

    def reassemble(self, visible: EncoderOutput, layout: Layout | None) -> Tensor:
        """Return the input <float>[B, T, D] of a decoder with own layers, or of the LM head if there is no decoder.

        These are the encoder's states at their positions, and mask embeddings at masked positions. The shape is [M, D]
        if only M positions are computed, as with cross-attention only.
        """
        if isinstance(self.decoder, MaelmDecoder):
            return self.decoder.reassemble(visible, self.encoder, layout)
        if layout is None or visible.outputs is not None:
            return visible.states
        return reassemble(visible.states, visible.mask_embedding, layout)

    def decode(
        self, full: Tensor, visible: EncoderOutput, layout: Layout | None, outputs: OutputPositions | None = None
    ) -> Tensor:
        """Decode <float>[B, T, D] to <float>[B, T, decoder width], or [M, decoder width] at ``outputs``."""
        if isinstance(self.decoder, MaelmDecoder):
            return self.decoder(full, visible, self.encoder, layout, outputs)
        return full if outputs is None or visible.outputs is not None else outputs.take(full)

    def why_no_lm_head(self) -> str:
        """Return the message for programs that need the LM head that this model lacks."""
        if self.classification_heads:
            return (
                "the checkpoint has no LM head, because fine-tuning without a prompt removes it: give a pretrained "
                "checkpoint, or one fine-tuned with a prompt"
            )
        return (
            "the checkpoint is an encoder without LM head, like the model that it was imported from: `maelm pretrain "
            "DATA --checkpoint FOLDER` trains one"
        )

    def predict(
        self, decoded: Tensor, layout: Layout | None, target: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits or, with a target, the loss, as a pair like that of ``forward``.

        ``decoded`` has all positions or only the predicted ones. With a target, it must have only the predicted ones.
        """
        if self.lm_head is None:
            raise ValueError(self.why_no_lm_head())
        embedding = self.encoder.embed_tokens.weight
        if target is not None:
            loss, correct = self.lm_head.loss(decoded, embedding, target)
            return loss, {"correct": correct}
        if layout is not None:
            if decoded.dim() > 2:
                decoded = decoded.flatten(0, 1).index_select(0, layout["predicted_slots"])
            decoded = decoded[: layout["predicted_tokens"]]
        return self.lm_head(decoded, embedding), {"inner_states": None}

    def _encode_alone(
        self, src_tokens: Tensor, layout: Layout | None, return_all_hiddens: bool, head_name: str | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the encoder's features or a head's scores, as a pair like that of ``forward``."""
        head = None if head_name is None else self.classification_heads[head_name]
        # If only the first state is read, skipping the others is up to 1.19 times as fast with 6 layers.
        reads_first = isinstance(head, ClassificationHead) and head.pooling == "first" and not return_all_hiddens
        encoded = self.encode(src_tokens, layout, first_positions(src_tokens) if reads_first else None)
        states = encoded.states
        if isinstance(head, ClassificationHead) and not reads_first:
            states = pool(states, src_tokens.ne(self.encoder.padding_idx), head.pooling)
        extra = {"inner_states": encoded.all_states if return_all_hiddens else None}
        return states if head is None else head(states), extra


def _required(layout: Layout | None) -> Layout:
    if layout is None:
        raise ValueError("to compute a loss, give both the layout and the targets of the masked tokens")
    return layout


register_architectures()
