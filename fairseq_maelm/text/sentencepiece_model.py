"""The content of a sentencepiece model, and what of it a tokenizer.json cannot express."""

import logging
from itertools import permutations
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import read_regular
from fairseq_maelm.text.offsets import WORD_START

logger = logging.getLogger(__name__)

# Kinds of pieces and of models in sentencepiece's protocol buffers.
UNKNOWN_PIECE, CONTROL, USER_DEFINED = 2, 3, 4
UNIGRAM, BPE = 1, 2


def read_model(path: Path) -> Any:
    """Return a model's protocol buffer; raise ValueError if the library is missing."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ValueError("reading a sentencepiece model needs protobuf: pip install 'fairseq_maelm[hf]'") from error
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(read_regular(path))
    return model


def user_defined_symbols(model: Any) -> list[str]:
    """Return the symbols that a model finds in texts before all other pieces, longest first."""
    return sorted((piece.piece for piece in model.pieces if piece.type == USER_DEFINED), key=len, reverse=True)


def export_obstacles(model: Any) -> list[str]:
    """Return the reasons why no tokenizer.json gives a model's tokens; empty if one does."""
    trainer, normalizer, found = model.trainer_spec, model.normalizer_spec, []
    if trainer.model_type not in (UNIGRAM, BPE):
        found.append("it is neither a byte-pair nor a unigram model")
    if trainer.treat_whitespace_as_suffix:
        found.append("it marks the ends of words")
    if not (normalizer.add_dummy_prefix and normalizer.escape_whitespaces and normalizer.remove_extra_whitespaces):
        found.append("its options of white space are not sentencepiece's defaults")
    symbols = user_defined_symbols(model)
    if marked := [symbol for symbol in symbols if WORD_START in symbol]:
        found.append(f"its user-defined symbol {marked[0]!r} has a mark of white space")
    if shared := [pair for pair in permutations(symbols, 2) if _overlap(*pair)]:
        found.append(f"its user-defined symbols {' and '.join(map(repr, shared[0]))} can overlap")
    return found


def warn_of_export(file: Path) -> bool:
    """Log a warning if an export for transformers will refuse a sentencepiece model, and return whether it will."""
    try:
        found = export_obstacles(read_model(file))
    except ValueError as error:
        logger.info("whether %s can be exported for transformers is not known: %s", file, error)
        return False
    if found:
        logger.warning(
            "`maelm export` will refuse %s, except with --format fairseq: %s. Training does not need it", file,
            "; ".join(found),
        )  # fmt: skip
    return bool(found)


def _overlap(first: str, second: str) -> bool:
    return any(first.endswith(second[:length]) for length in range(1, min(len(first), len(second))))
