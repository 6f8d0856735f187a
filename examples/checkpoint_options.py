"""The options of fairseq-train that rebuild what a checkpoint holds, for the programs in the folders beside this."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_maelm.finetuning.encoder import read_encoder
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.train_command import words_of

DECODER_FIELDS = ("decoder_layers", "decoder_attention", "decoder_embed_dim", "decoder_ffn_embed_dim",
                  "decoder_attention_heads", "share_decoder_positions")  # fmt: skip
# How it was masked in pretraining.
MASKING_FIELDS = ("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "leave_unmasked_prob",
                  "random_token_prob", "mask_whole_words", "protect_special_tokens", "tokens_per_sample",
                  "sample_break_mode")  # fmt: skip


@cache
def encoder_options(checkpoint: Path) -> list[str]:
    """The options that build the checkpoint's encoder."""
    return words_of(read_encoder(checkpoint).options)


@cache
def model_options(checkpoint: Path) -> list[str]:
    """The options that build the checkpoint's encoder and decoder."""
    return [*encoder_options(checkpoint), *_words(read_checkpoint(checkpoint).config.model, DECODER_FIELDS)]


@cache
def masking_options(checkpoint: Path) -> list[str]:
    """The options that mask as in the checkpoint's pretraining."""
    return _words(read_checkpoint(checkpoint).config.task, MASKING_FIELDS)


def _words(config: Any, fields: tuple[str, ...]) -> list[str]:
    found = {field.replace("_", "-"): getattr(config, field, None) for field in fields}
    return words_of({name: value if isinstance(value, bool) else value and str(value) for name, value in found.items()})
