"""Embeddings of a file of texts, streamed into a numpy file; a run that was interrupted resumes."""

import itertools
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from fairseq_maelm.files import sha256_of, write_bytes, write_json
from fairseq_maelm.finetuning.retrieval.beir import TextRecord, read_texts
from fairseq_maelm.finetuning.retrieval.embeddings import EMBEDDINGS, FACTS, IDENTIFIERS, UNFINISHED
from fairseq_maelm.finetuning.retrieval.hub import embed_sequences, embedding_settings, encode_text
from fairseq_maelm.finetuning.retrieval.pooling import EmbeddingSettings
from fairseq_maelm.models import hub

logger = logging.getLogger(__name__)

DTYPES = ("float32", "float16")
PROGRESS = "progress.json"

# Texts that are sorted by length together. Their number is part of the result: sums in other batches differ in their
# last bits, and a resumed run is to write the same file.
_WINDOW = 4096


@dataclass(frozen=True)
class EmbedSettings:
    """What ``embed`` does.

    Attributes:
        checkpoint: of any task.
        data: folder with the dict.txt and sentencepiece.bpe.model that it was trained with.
        texts: a .jsonl file with ``_id``, ``text`` and perhaps ``title``, or a text a line; see ``read_texts``.
        output: the new folder.
        pooling: instead of the checkpoint's, as are ``similarity`` and ``max_tokens``.
        dtype: of the numbers in the file, one of ``DTYPES``.
        precision: that the model computes in, "fp32" or "bf16".
        device: torch's name of it.
        batch_tokens: slots of a batch, padding counted.
        allow_empty: embed empty texts too.
    """

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
        the facts that are also in the folder's embeddings.json.

    Raises:
        ValueError: a setting or a text is not as it must be, or the folder holds embeddings of something else.
        FileNotFoundError: the checkpoint, the vocabulary or the texts are missing.
    """
    if settings.dtype not in DTYPES:
        raise ValueError(f"unknown --dtype {settings.dtype!r}: choose one of {', '.join(DTYPES)}")
    if not settings.texts.is_file():
        raise FileNotFoundError(f"there is no file {settings.texts}")
    interface = _load(settings)
    chosen = embedding_settings(interface, settings.pooling, settings.similarity, settings.max_tokens)
    facts = _facts(settings, chosen, interface.model)
    finished = settings.output / FACTS
    if finished.exists():
        _check_same(json.loads(finished.read_text(encoding="utf-8")), facts, settings.output)
        logger.info("%s is complete already", settings.output)
        return facts
    done = _start(settings, facts)
    if done:
        logger.info("resuming after %s of %s texts", f"{done:,}", f"{facts['texts']:,}")
    _write(settings, interface, chosen, facts, done)
    os.replace(settings.output / UNFINISHED, settings.output / EMBEDDINGS)
    write_json(finished, facts)
    (settings.output / PROGRESS).unlink()
    return facts


def _load(settings: EmbedSettings) -> hub.MaelmHubInterface:
    try:
        device = torch.device(settings.device)
        interface = hub.load(
            str(settings.checkpoint.parent),
            settings.checkpoint.name,
            str(settings.data.absolute()),
            precision=settings.precision,
        )
        return interface.to(device)
    except RuntimeError as error:
        raise ValueError(f"--device {settings.device} cannot be used: {str(error).splitlines()[0]}") from error


def _facts(settings: EmbedSettings, chosen: EmbeddingSettings, model: Any) -> dict[str, Any]:
    """What decides the embeddings; nothing that depends on where the files lie."""
    identifiers = [record.identifier for record in _records(settings)]
    if not identifiers:
        raise ValueError(f"{settings.texts} holds no texts")
    settings.output.mkdir(parents=True, exist_ok=True)
    if not (settings.output / FACTS).exists():
        write_bytes(settings.output / IDENTIFIERS, "".join(f"{each}\n" for each in identifiers).encode())
    return {
        "texts": len(identifiers),
        "dimension": int(model.encoder.embed_tokens.weight.shape[1]),
        "dtype": settings.dtype,
        **chosen._asdict(),
        "precision": settings.precision,
        "batch_tokens": settings.batch_tokens,
        "checkpoint": settings.checkpoint.name,
        "checkpoint_sha256": sha256_of(settings.checkpoint),
        "source": settings.texts.name,
        "source_sha256": sha256_of(settings.texts),
    }


def _records(settings: EmbedSettings) -> Iterator[TextRecord]:
    return read_texts(settings.texts, settings.allow_empty)


def _check_same(earlier: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    for name in now:
        if earlier.get(name) != now[name]:
            raise ValueError(
                f"{folder} holds embeddings of something else: its {name} is {earlier.get(name)!r} and would be "
                f"{now[name]!r}. Name another folder, or remove it first"
            )


def _start(settings: EmbedSettings, facts: dict[str, Any]) -> int:
    """Open a new folder, or check that a begun one is of the same run; return how many texts are done."""
    progress, unfinished = settings.output / PROGRESS, settings.output / UNFINISHED
    if progress.exists() and unfinished.exists():
        begun = json.loads(progress.read_text(encoding="utf-8"))
        _check_same(begun["facts"], facts, settings.output)
        return int(begun["done"])
    shape = (facts["texts"], facts["dimension"])
    np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.dtype(settings.dtype), shape=shape).flush()
    write_json(progress, {"facts": facts, "done": 0})
    return 0


def _write(
    settings: EmbedSettings,
    interface: hub.MaelmHubInterface,
    chosen: EmbeddingSettings,
    facts: dict[str, Any],
    done: int,
) -> None:
    rows = np.lib.format.open_memmap(settings.output / UNFINISHED, mode="r+")
    records = itertools.islice(_records(settings), done, None)
    with tqdm(total=facts["texts"], initial=done, desc="embedding", unit=" texts", unit_scale=True) as progress:
        while window := list(itertools.islice(records, _WINDOW)):
            sequences = [encode_text(interface, record.text, chosen.max_tokens) for record in window]
            embedded = embed_sequences(interface, sequences, chosen, settings.batch_tokens)
            stored = embedded.numpy().astype(settings.dtype)
            finite = np.isfinite(stored).all(axis=1)
            if not finite.all():
                place = window[int(np.argmin(finite))].place
                raise ValueError(
                    f"{place}: the embedding is not finite in {settings.dtype}: the checkpoint is damaged, or its "
                    "numbers need --dtype float32"
                )
            rows[done : done + len(window)] = stored
            rows.flush()
            done += len(window)
            write_json(settings.output / PROGRESS, {"facts": facts, "done": done})
            progress.update(len(window))
