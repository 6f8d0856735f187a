"""The four steps of corpus preparation: clean, vocabulary, encode, binarize.

All steps work in one folder. A step ends by saving its return value there as a state file, which marks the step as
done. A killed step starts over, except that encoding keeps finished parts. Worker processes return results in order,
hold few tasks in memory and leave no orphans.
"""

import functools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from fairseq_maelm.corpus.encoding import (
    Chunk,
    CleanedTextWriter,
    EncodingJob,
    Split,
    part_file,
    random_keys,
    read_chunk,
    read_parts,
    write_dataset,
)
from fairseq_maelm.corpus.reading import Deduplicator, Segment, Source, SourceReader, clean_segments
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.files.atomic import atomic_file, write_bytes
from fairseq_maelm.files.lines import log_invalid
from fairseq_maelm.text.unknown import Encoded, check_known
from fairseq_maelm.text.vocabulary import (
    DICTIONARY_FILE,
    MODEL_FILE,
    PRESETS,
    dictionary_text,
    load_sentencepiece,
    open_encoder,
    train_sentencepiece,
    vocabulary_files,
)

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yield ``function(task)`` in order from ``workers`` processes (1: in this process), with few tasks in memory."""
    if workers == 1:
        yield from map(function, tasks)
        return
    # Forked workers share imported modules; a fresh interpreter would import torch in every worker.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), function)) as pool:
        under_way: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                under_way.append(pool.submit(_call_function, task))
                if len(under_way) > 2 * workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process was killed, perhaps for lack of memory; to resume, run the same command again with "
                "fewer --workers"
            ) from error
        finally:
            # A future's own cancel() leaves its task in the pool's queue, where the shutdown may wait for it forever.
            pool.shutdown(cancel_futures=True)


# The function that a worker calls for its tasks. Workers inherit it by forking, so no task pickles the vocabulary.
_function: Callable[[Any], Any] | None = None


def _call_function(task: Any) -> Any:
    assert _function is not None
    return _function(task)


def _start_worker(parent: int, function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Ctrl-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, args=(parent,), daemon=True).start()


def leave_with_parent(parent: int) -> None:
    """End this process when its parent is killed; a worker would otherwise wait for tasks forever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


CHUNK_BYTES = 4 * 2**20

# The roles of input files: the user's validation files, and the corpus. Each role is cleaned into one text, validation
# files first, so that de-duplication removes their paragraphs from the training text.
VALID, CORPUS = "valid", "inputs"


@dataclass(frozen=True)
class Work:
    """The folder of unfinished work, the folder of the result, and the user's settings."""

    folder: Path
    outputs: Path
    settings: PrepareSettings

    def cleaned(self, role: str) -> Path:
        """Return the path of a role's cleaned text."""
        return self.folder / f"cleaned_{role}.txt"

    def parts(self, role: str) -> Path:
        """Return the folder of a role's encoded parts."""
        return self.folder / f"parts_{role}"


def clean(work: Work, sources: dict[str, list[Source]]) -> dict[str, Any]:
    """Clean the files of each role (``VALID``, ``CORPUS``) into a text; return role -> counts, chunks and checksums."""
    duplicates = Deduplicator() if work.settings.deduplicate else None
    return {role: _clean_role(work, role, sources[role], duplicates) for role in (VALID, CORPUS) if sources.get(role)}


def _clean_role(work: Work, role: str, sources: list[Source], duplicates: Deduplicator | None) -> dict[str, Any]:
    readers = [SourceReader(source, CHUNK_BYTES) for source in sources]
    dropped_before = duplicates.dropped if duplicates else 0
    skip = work.settings.skip_invalid
    clean_group = functools.partial(clean_segments, with_digests=duplicates is not None, skip_invalid=skip)
    invalid: list[str] = []
    size = sum(source.path.stat().st_size for source in sources)
    with atomic_file(work.cleaned(role)) as stream, _progress(f"clean {role}", size) as bar:
        writer = CleanedTextWriter(stream)
        for lines, digests, mistakes in ordered_map(clean_group, _grouped(readers, bar), work.settings.workers):
            writer.write(duplicates.filter(lines, digests) if duplicates else lines)
            invalid += mistakes
    log_invalid(invalid)
    return {
        "documents": writer.documents,
        "paragraphs": writer.paragraphs,
        "bytes": writer.bytes,
        "duplicate_paragraphs_dropped": duplicates.dropped - dropped_before if duplicates else 0,
        "invalid": len(invalid),
        "sha256": [reader.sha256 for reader in readers],
        "chunks": writer.chunks,
    }


def _grouped(readers: Iterable[SourceReader], bar: Any) -> Iterator[list[Segment]]:
    """Group consecutive segments into lists of about ``CHUNK_BYTES``, since small files give small segments."""
    group: list[Segment] = []
    size = 0
    for reader in readers:
        read_before = 0
        for segment in reader:
            bar.update(reader.bytes_read - read_before)
            read_before = reader.bytes_read
            group.append(segment)
            size += len(segment.data)
            if size >= CHUNK_BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group


def make_vocabulary(work: Work, cleaned: dict[str, Any], split: Split) -> dict[str, Any]:
    """Copy the given vocabulary or model, or train a model on a random sample of the training split."""
    if work.settings.vocabulary is not None:
        files = {path.name: path.read_bytes() for path in vocabulary_files(work.settings.vocabulary)}
    else:
        if work.settings.sentencepiece_model is not None:
            model = work.settings.sentencepiece_model.read_bytes()
        else:
            resolved = work.settings.resolved()
            share = resolved["sample_megabytes"] * 1e6 / cleaned[CORPUS]["bytes"]
            sample = _sample(work, [Chunk(*fields) for fields in cleaned[CORPUS]["chunks"]], split, min(share, 1.0))
            size, preset, coverage = (resolved[name] for name in ("vocabulary_size", "preset", "character_coverage"))
            model = train_sentencepiece(sample, size, PRESETS[preset].normalization, coverage)
        dictionary = dictionary_text(load_sentencepiece(model))
        files = {MODEL_FILE: model, DICTIONARY_FILE: dictionary.encode("utf-8")}
    for name, content in files.items():
        write_bytes(work.folder / name, content)
    symbols = open_encoder(work.folder).dictionary_size
    return {"dictionary_symbols": symbols, "dictionary_symbols_with_mask": symbols + 1}


def _sample(work: Work, chunks: list[Chunk], split: Split, share: float) -> Iterator[str]:
    size = sum(chunk.length for chunk in chunks)
    with open(work.cleaned(CORPUS), "rb") as cleaned, _progress("sample", size) as bar:
        for chunk in chunks:
            text = read_chunk(cleaned, chunk)
            keys = random_keys(chunk.first_paragraph, len(text.paragraphs), split.seed, "sample")
            is_training = split.targets_of(text.documents) != split.shards
            for index in np.flatnonzero((keys.astype(np.float64) < share * 2.0**64) & is_training):
                yield text.paragraphs[index]
            bar.update(chunk.length)


def encode(work: Work, cleaned: dict[str, Any], split: Split) -> dict[str, Any]:
    """Encode every chunk of every role into a part file, except those that an interrupted run has encoded."""
    encoder = open_encoder(work.folder)
    reused = 0
    for role, state in cleaned.items():
        work.parts(role).mkdir(exist_ok=True)
        job_split = None if role == VALID else split
        job = EncodingJob(work.cleaned(role), work.parts(role), job_split, split.shards, encoder)
        chunks = [Chunk(*fields) for fields in state["chunks"]]
        missing = [(number, chunk) for number, chunk in enumerate(chunks) if not part_file(job.parts, number).exists()]
        reused += len(chunks) - len(missing)
        with _progress(f"encode {role}", state["bytes"]) as bar:
            bar.update(state["bytes"] - sum(chunk.length for _, chunk in missing))
            for length in ordered_map(job.encode, missing, work.settings.workers):
                bar.update(length)
    if reused:
        logger.info("resumed: %d parts were already encoded", reused)
    return {"parts": sum(len(state["chunks"]) for state in cleaned.values())}


def binarize(work: Work, cleaned: dict[str, Any], split: Split, allow_unknown: bool) -> dict[str, Any]:
    """Join the parts into the data folders under ``outputs``; return counts by dataset, such as "train".

    Unless ``allow_unknown``, raise a CorpusError if most tokens of a dataset are unknown.
    """
    encoder = open_encoder(work.folder)
    parts = {
        role: [part_file(work.parts(role), number) for number in range(len(state["chunks"]))]
        for role, state in cleaned.items()
    }
    counts: dict[str, Any] = {}
    for shard, name in enumerate(shard_names(split.shards)):
        folder = work.outputs / name
        folder.mkdir(exist_ok=True)
        for path in vocabulary_files(work.folder):
            write_bytes(folder / path.name, path.read_bytes())
        targets = {"train": (parts[CORPUS], shard)}
        if shard == 0:
            # Validation files of the user, if there are any, are the whole validation split.
            targets["valid"] = (parts.get(VALID, parts[CORPUS]), split.shards)
        for dataset, (files, target) in targets.items():
            written = write_dataset(folder / dataset, read_parts(files, target), encoder.dtype)
            label = (Path(name) / dataset).as_posix()
            # The last token of each paragraph, and the blank lines between documents, are no text.
            tokens = written["tokens"] - written["paragraphs"] - written["documents"] + 1 - written.pop("spaces")
            paragraphs = _paragraphs(work, VALID if files is parts.get(VALID) else CORPUS, cleaned)
            check_known(encoder, label, allow_unknown, Encoded(tokens, written["unknown_tokens"], paragraphs))
            counts[label] = written
    return counts


def _paragraphs(work: Work, role: str, cleaned: dict[str, Any]) -> Iterator[str]:
    with open(work.cleaned(role), "rb") as stream:
        for chunk in cleaned[role]["chunks"]:
            yield from read_chunk(stream, Chunk(*chunk)).paragraphs


def shard_names(shards: int) -> list[str]:
    """Return the folders inside the data folder: "." for a single shard, otherwise shard00, shard01, ..."""
    return ["."] if shards == 1 else [f"shard{shard:02d}" for shard in range(shards)]


def _progress(description: str, total: int) -> Any:
    return tqdm(desc=description, total=total, unit="B", unit_scale=True, disable=None)
