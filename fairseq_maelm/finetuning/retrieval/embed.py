"""Embeddings of a file of texts, streamed into a numpy file; a run that was interrupted resumes."""

import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_maelm.files import read_json, write_json
from fairseq_maelm.finetuning.retrieval.beir import TextRecord, read_texts
from fairseq_maelm.finetuning.retrieval.embeddings import EMBEDDINGS, IDENTIFIERS
from fairseq_maelm.finetuning.retrieval.hub import embed as embed_texts
from fairseq_maelm.finetuning.retrieval.hub import embedding_settings
from fairseq_maelm.finetuning.retrieval.pooling import EmbeddingSettings
from fairseq_maelm.finetuning.retrieval.prepared import write_identifiers
from fairseq_maelm.models import hub
from fairseq_maelm.prepared_folder import made_from, prepare_folder

logger = logging.getLogger(__name__)

DTYPES = ("float32", "float16")
PROGRESS = "progress.json"

# Texts that are sorted by length together. Their number is part of the result: sums in other batches differ in their
# last bits, and a resumed run is to write the same file.
_WINDOW = 4096


@dataclass(frozen=True)
class EmbedSettings:
    """What ``embed`` does: the options of ``maelm embed``, which explains them."""

    checkpoint: Path
    data: Path
    texts: Path
    output: Path
    pooling: str | None = None
    similarity: str | None = None
    max_tokens: int | None = None
    dtype: str = "float32"
    precision: str = "fp32"
    device: str = "cpu"
    batch_tokens: int = 16_384
    allow_empty: bool = False


def embed(settings: EmbedSettings) -> dict[str, Any]:
    """Embed all texts of a file into a folder; the same call resumes after an interruption.

    Returns:
        the folder's manifest.
    """
    if settings.dtype not in DTYPES:
        raise ValueError(f"unknown --dtype {settings.dtype!r}: choose one of {', '.join(DTYPES)}")
    if not settings.texts.is_file():
        raise FileNotFoundError(f"there is no file {settings.texts}")
    folder, name = str(settings.checkpoint.parent), settings.checkpoint.name
    interface = hub.load(folder, name, str(settings.data.absolute()), precision=settings.precision).to(settings.device)
    changes = {name: getattr(settings, name) for name in EmbeddingSettings._fields}
    chosen = embedding_settings(interface, **changes)
    origin = made_from(
        {
            **chosen._asdict(),
            "dtype": settings.dtype,
            "precision": settings.precision,
            "batch_tokens": settings.batch_tokens,
        },
        {
            "checkpoint": [settings.checkpoint],
            "texts": [settings.texts],
            "vocabulary": [Path(hub.find_tokenizer(folder, str(settings.data)))],
        },
    )
    return prepare_folder(
        settings.output,
        "embeddings",
        origin,
        lambda result: _write(settings, interface, chosen, result),
        resumes=True,
    )


def _records(settings: EmbedSettings) -> Iterator[TextRecord]:
    return read_texts(settings.texts, settings.allow_empty)


def _write(
    settings: EmbedSettings, interface: hub.MaelmHubInterface, chosen: EmbeddingSettings, result: Path
) -> dict[str, int]:
    """Embed what an earlier run has not; its rows lie beside the folder of the result until all are there."""
    identifiers = [record.identifier for record in _records(settings)]
    if not identifiers:
        raise ValueError(f"{settings.texts} holds no texts")
    shape = (len(identifiers), int(interface.model.encoder.embed_tokens.weight.shape[1]))
    begun, progress = result.parent / EMBEDDINGS, result.parent / PROGRESS
    if progress.exists() and begun.exists():
        done = int(read_json(progress)["done"])
        logger.info("resuming after %s of %s texts", f"{done:,}", f"{shape[0]:,}")
    else:
        done = 0
        # First, so that a file without rows is never taken for one with those of an earlier run.
        write_json(progress, {"done": done})
        np.lib.format.open_memmap(begun, mode="w+", dtype=np.dtype(settings.dtype), shape=shape).flush()
    rows = np.lib.format.open_memmap(begun, mode="r+")
    records = itertools.islice(_records(settings), done, None)
    with tqdm(total=len(rows), initial=done, desc="embedding", unit=" texts", unit_scale=True) as bar:
        while window := list(itertools.islice(records, _WINDOW)):
            rows[done : done + len(window)] = _embedded(settings, interface, chosen, window)
            rows.flush()
            done += len(window)
            write_json(progress, {"done": done})
            bar.update(len(window))
    write_identifiers(result / IDENTIFIERS, identifiers)
    os.replace(begun, result / EMBEDDINGS)
    return {"texts": shape[0], "dimension": shape[1]}


def _embedded(
    settings: EmbedSettings,
    interface: hub.MaelmHubInterface,
    chosen: EmbeddingSettings,
    window: list[TextRecord],
) -> np.ndarray:
    embedded = embed_texts(interface, [record.text for record in window], settings.batch_tokens, **chosen._asdict())
    stored = embedded.numpy().astype(settings.dtype)
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{window[int(np.argmin(finite))].place}: the embedding is not finite in {settings.dtype}: the checkpoint "
            "is damaged, or its numbers need --dtype float32"
        )
    return stored
