"""Give an imported encoder more positions than its source has."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.data.masking import MAX_LENGTH
from fairseq_maelm.interop.configuration import model_options
from fairseq_maelm.interop.importing.source import Source
from fairseq_maelm.interop.source_files import CONFIG_FILE, POSITIONS, with_text_limit
from fairseq_maelm.options import UsageError

logger = logging.getLogger(__name__)

_OURS, _LENGTH = "encoder.embed_positions.weight", "max_position_embeddings"


def with_positions(path: Path, source: Source, positions: int) -> Source:
    """Return a source with more positions; a learned table is stretched to them by linear interpolation.

    The first and the last row stay. Rows that repeat the old ones would keep the states of short texts, but a token of
    a long text could not tell its neighbors from tokens one table away; continued pretraining learns it more slowly.

    Raises:
        UsageError: the number is not above the source's, or too large.
    """
    had = int(source.options["max_positions"])
    if not had < positions <= MAX_LENGTH:
        raise UsageError(f"--positions {positions}: {path} has {had}, so give a number from {had + 1} to {MAX_LENGTH}")
    options, weights, kept = {**source.options, "max_positions": positions}, dict(source.weights), source.kept_weights
    config = json.loads(source.files.get(CONFIG_FILE, b"{}"))
    if _LENGTH in config:
        config[_LENGTH] += positions - had  # RoBERTa's number includes rows that no token uses
    if _OURS in weights:
        weights[_OURS] = _stretched(weights[_OURS], had, positions)
        kept = {name: _stretched(each, had, positions) if name == POSITIONS else each for name, each in kept.items()}
        how = f"{positions}, interpolated from {had}"
    else:
        options = model_options(config)  # a window that held all old positions may not hold all new ones
        how = f"{positions} instead of {had}; they are rotary, without a table"
    logger.info("positions: %s", how)
    changes = {CONFIG_FILE: config, "tokenizer_config.json": {"model_max_length": positions}}
    files = {
        name: _changed(content, changes.get(name, {})) for name, content in with_text_limit(source.files, had).items()
    }
    facts = {**source.facts, "positions": how}
    return replace(source, options=options, weights=weights, kept_weights=kept, files=files, facts=facts)


def _stretched(table: Tensor, had: int, positions: int) -> Tensor:
    """Stretch the last ``had`` rows of a table <float>[R, D] to ``positions``; the rows in front stay as they are."""
    unused, rows = table[:-had], table[-had:]
    longer = F.interpolate(rows.T[None], positions, mode="linear", align_corners=True)[0].T
    return torch.cat([unused, longer])


def _changed(content: bytes, changes: dict[str, Any]) -> bytes:
    """Return the content of a JSON file with other values."""
    if not changes:
        return content
    return (json.dumps({**json.loads(content), **changes}, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
