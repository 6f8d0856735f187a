"""Refuse model options that cannot work, before anything is built."""

import logging
from typing import Any

import torch
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from omegaconf.errors import OmegaConfBaseException

from fairseq_maelm.architecture.config import MaelmModelConfig
from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.triton import operator as triton
from fairseq_maelm.options import check_options

logger = logging.getLogger(__name__)


def check_config(config: Any) -> None:
    """Refuse a complete configuration that does not describe a valid model."""
    check_options(config, MaelmModelConfig)
    _check_heads(config)
    _check_positions(config)
    _check_decoder(config)
    check_backend(str(config.attention))
    refuse_stock_bf16(config)


def check_task(task: Any, positions: int) -> None:
    """Refuse tasks whose sequences are too long for the model, and fairseq tasks that the model does not support."""
    longest = task.max_positions()
    # These tasks put <mask> into the input or predict the next token. Translation tasks have two lengths.
    if isinstance(task, LanguageModelingTask | MaskedLMTask) or not isinstance(longest, int):
        raise ValueError(
            f"fairseq's {type(task).__name__} does not work with this model: pretrain with --task maelm --criterion "
            "maelm, and validate a checkpoint with fairseq-validate --task maelm (fairseq-eval-lm is for models that "
            "predict the next token)"
        )
    if longest > positions:
        raise ValueError(
            f"the task makes sequences of up to {longest} tokens, but the model has only {positions} positions: lower "
            f"{getattr(task, 'length_option', '--tokens-per-sample')}, or raise a new model's --max-positions"
        )


def refuse_stock_bf16(config: Any) -> None:
    """Refuse fairseq's --bf16, which makes fairseq-train look for a TPU or round the weights in checkpoints."""
    try:
        is_set = getattr(config, "bf16", False) is True
    except OmegaConfBaseException:  # the section "model" alone, whose reference to "common" cannot be resolved
        is_set = False
    if is_set:
        raise ValueError(
            "with fairseq's --bf16 or --memory-efficient-bf16, fairseq-train looks for a TPU, and with common.bf16 "
            "fairseq-hydra-train rounds the weights in checkpoints: use --precision bf16 (model.precision=bf16) instead"
        )


def warn_of_a_deep_decoder(config: Any) -> None:
    """Warn if a decoder with self-attention has more than a third as many layers as the encoder (paper, Table 2)."""
    if config.decoder_attention == "self" and config.decoder_layers > max(1, config.encoder_layers // 3):
        logger.warning(
            "--decoder-layers %s is more than a third of the encoder's %s layers: in the paper (Table 2) a decoder of "
            "half the encoder's depth makes a worse encoder than plain masked language modeling",
            config.decoder_layers,
            config.encoder_layers,
        )


def _check_heads(config: Any) -> None:
    for part in ("encoder", "decoder"):
        width, heads = getattr(config, f"{part}_embed_dim"), getattr(config, f"{part}_attention_heads")
        if width % heads:
            raise ValueError(
                f"the width of the {part} ({width}) is not a multiple of its number of attention heads ({heads}): "
                f"change --{part}-attention-heads or --{part}-embed-dim"
            )


def check_view(decoder: Any, view: EncoderView) -> None:
    """Raise a ValueError if a model with this decoder, or None, cannot predict masked tokens with this view."""
    if decoder is None and view.hides_all_masks:
        raise ValueError(
            "without a decoder (--decoder-layers 0) the model cannot predict the masked tokens, which have no encoder "
            f"states with --masked-input {view.masked_input}: use --masked-input kept"
        )
    if decoder is None or decoder.attention != "shared":
        return
    shows = "--encoder-mask-fraction 1" if view.mask_fraction == 1.0 else f"--masked-input {view.masked_input}"
    wrong = [] if view.hides_all_masks else [shows]
    if view.positions != "original":
        wrong.append(f"--encoder-positions {view.positions}")
    if wrong:
        raise ValueError(
            "--decoder-attention shared predicts tokens that the encoder does not see, from those that it sees at "
            f"their original positions: omit {' and '.join(wrong)}, or choose another decoder (--decoder-layers 0 "
            "predicts from kept masks)"
        )


def _check_decoder(config: Any) -> None:
    if config.decoder_attention != "self" and not config.decoder_layers:
        raise ValueError(f"--decoder-attention {config.decoder_attention} needs a decoder: --decoder-layers is 0")
    if config.decoder_attention == "shared":
        _check_shared(config)
    if config.share_decoder_positions and config.decoder_embed_dim != config.encoder_embed_dim:
        raise ValueError(
            f"--share-decoder-positions needs a decoder as wide as the encoder ({config.encoder_embed_dim}), and "
            f"--decoder-embed-dim is {config.decoder_embed_dim}"
        )


def _check_shared(config: Any) -> None:
    if config.decoder_layers > config.encoder_layers:
        raise ValueError(
            f"--decoder-attention shared predicts with layers of the encoder, and the encoder has "
            f"{config.encoder_layers}: lower --decoder-layers {config.decoder_layers}"
        )
    for option in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        decoder, encoder = getattr(config, f"decoder_{option}"), getattr(config, f"encoder_{option}")
        if decoder != encoder:
            raise ValueError(
                f"--decoder-attention shared predicts with the encoder's layers, whose {option.replace('_', ' ')} is "
                f"{encoder}: omit --decoder-{option.replace('_', '-')} {decoder}"
            )
    if config.decoder_positions != config.positions or config.share_decoder_positions:
        raise ValueError(
            "--decoder-attention shared always has the encoder's positions: omit --decoder-positions and "
            "--share-decoder-positions"
        )


def _check_positions(config: Any) -> None:
    EncoderOptions.of(config).check_buckets()
    if config.share_decoder_positions and "rotary" in (config.positions, config.decoder_positions):
        raise ValueError(
            "--share-decoder-positions shares a table of position embeddings, which rotary positions do not have: "
            "omit it"
        )
    for part, option in (("encoder", "positions"), ("decoder", "decoder_positions")):
        width = getattr(config, f"{part}_embed_dim") // getattr(config, f"{part}_attention_heads")
        if getattr(config, option) == "rotary" and width % 2:
            raise ValueError(f"rotary positions need attention heads of even width: those of the {part} have {width}")


def check_backend(path: str) -> None:
    """Refuse an attention backend that this machine cannot run."""
    if BACKENDS[path].device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--attention {path} needs a CUDA GPU, and torch finds none: use --attention auto or, for a checkpoint "
            "that was trained with it, --model-overrides \"{'attention': 'auto'}\""
        )
    if path == "triton" and not triton.INSTALLED:
        raise ValueError("--attention triton needs the package triton: install it, or use --attention auto")
