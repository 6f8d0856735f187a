"""Preparation of a data folder for fairseq-train from raw text; if interrupted, it resumes at the unfinished step."""

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from fairseq_maelm import __version__
from fairseq_maelm.corpus import steps
from fairseq_maelm.corpus.encoding import Split, draw_split
from fairseq_maelm.corpus.reading import BLANK, END, Source, find_sources
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.files.atomic import CorpusError, read_json, remove_partial_files, write_json
from fairseq_maelm.files.prepared_folder import fingerprints, prepare_folder
from fairseq_maelm.text.sentencepiece_model import warn_of_export
from fairseq_maelm.text.vocabulary import (
    MODEL_FILE,
    dictionary_symbols,
    load_sentencepiece,
    open_encoder,
    vocabulary_files,
)

logger = logging.getLogger(__name__)

# From so many lines in each file on, files without blank lines are doubtful: a folder of short documents has fewer.
_MANY_PARAGRAPHS = 100


@dataclass(frozen=True)
class PreparedCorpus:
    """A finished data folder: the folders of its shards (or its only folder) and the content of ``manifest.json``."""

    folders: list[Path]
    manifest: dict[str, Any]

    @property
    def data_argument(self) -> str:
        """The data argument of fairseq-train: the folders, separated by colons."""
        return ":".join(map(str, self.folders))


def prepare(settings: PrepareSettings, allow_unknown: bool = False) -> PreparedCorpus:
    """Prepare a corpus or resume an interrupted preparation; do nothing if the result exists.

    With ``allow_unknown``, go on if the vocabulary does not know most of the text.

    Raises:
        CorpusError: an input, a setting or the output is wrong; the message says what to do. Nothing is overwritten.
        FileExistsError: the output exists and is not a data folder.
    """
    sources = {
        steps.CORPUS: find_sources(settings.inputs, settings.json_field, settings.line_documents),
        steps.VALID: find_sources(settings.valid, settings.json_field, settings.line_documents),
    }
    if settings.line_documents and all(each.bounds != END for role in sources.values() for each in role):
        raise CorpusError("no input is plain text, so --line-documents has no effect: omit it")
    _check_apart(settings, sources)
    origin = _origin(settings, sources)
    shards = steps.shard_names(settings.shards)
    manifest = prepare_folder(
        settings.output,
        "corpus",
        origin,
        lambda result: _run_steps(settings, sources, origin["files"], result, allow_unknown),
        resumes=True,
        copies=[name for name in shards if name != "."],
    )
    return PreparedCorpus([settings.output / name for name in shards], manifest)


def _check_apart(settings: PrepareSettings, sources: dict[str, list[Source]]) -> None:
    """Refuse files that are given twice, and an output inside an input."""
    seen: set[Path] = set()
    for source in (*sources[steps.CORPUS], *sources[steps.VALID]):
        if source.path.resolve() in seen:
            raise CorpusError(
                f"the file {source.path} is among the inputs and --valid more than once: give it only once"
            )
        seen.add(source.path.resolve())
    output = settings.output.resolve()
    for path in (*settings.inputs, *settings.valid):
        if path.is_dir() and output.is_relative_to(path.resolve()):
            raise CorpusError(
                f"the output folder {settings.output} is inside the input folder {path}: choose another folder"
            )


def _origin(settings: PrepareSettings, sources: dict[str, list[Source]]) -> dict[str, Any]:
    """Return what identifies a preparation: the settings that determine the result, and the state of the inputs."""
    files = {
        # Checksums are computed while the files are read for cleaning.
        role: fingerprints([source.path for source in found], with_checksums=False)
        for role, found in sources.items()
        if found
    }
    # Open a given vocabulary now, so that a bad one is refused before any work is done.
    if settings.sentencepiece_model is not None:
        dictionary_symbols(load_sentencepiece(settings.sentencepiece_model))
        files["sentencepiece_model"] = fingerprints([settings.sentencepiece_model])
        warn_of_export(settings.sentencepiece_model)
    if settings.vocabulary is not None:
        open_encoder(settings.vocabulary)
        own = vocabulary_files(settings.vocabulary)
        files["vocabulary"] = fingerprints(own)
        for file in own:
            if file.name == MODEL_FILE:
                warn_of_export(file)
    return {"settings": settings.resolved(), "files": files}


def _run_steps(
    settings: PrepareSettings,
    sources: dict[str, list[Source]],
    files: dict[str, Any],
    result: Path,
    allow_unknown: bool,
) -> dict[str, Any]:
    """Run the steps that no earlier run has finished, and return the facts for the manifest."""
    folder = result.parent
    remove_partial_files(folder)
    # The result folder of an interrupted run is not kept, so its last step runs again.
    (folder / "binarize.json").unlink(missing_ok=True)
    work = steps.Work(folder, result, settings)
    seconds: dict[str, float] = {}
    cleaned = _step(folder, "clean", seconds, lambda: steps.clean(work, sources))
    advice = {role: _advice_on_documents(sources[role], state["documents"]) for role, state in cleaned.items()}
    try:
        split = _draw_split(settings, cleaned)
    except CorpusError as error:
        if not advice[steps.CORPUS]:
            raise
        raise CorpusError(f"{advice[steps.CORPUS]} ({error})") from error
    for role, state in cleaned.items():
        if advice[role] and state["paragraphs"] >= _MANY_PARAGRAPHS * state["documents"]:
            logger.warning("%s: %s", "--valid" if role == steps.VALID else "the inputs", advice[role])
    vocabulary = _step(folder, "vocabulary", seconds, lambda: steps.make_vocabulary(work, cleaned, split))
    _step(folder, "encode", seconds, lambda: steps.encode(work, cleaned, split))
    counts = _step(folder, "binarize", seconds, lambda: steps.binarize(work, cleaned, split, allow_unknown))
    with_checksums = {
        role: [{**each, "sha256": sha256} for each, sha256 in zip(files[role], state["sha256"], strict=True)]
        for role, state in cleaned.items()
    }
    return {
        "versions": {
            "fairseq_maelm": __version__,
            "sentencepiece": sentencepiece.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "files": {**files, **with_checksums},
        "duplicate_paragraphs_dropped": {
            role: state["duplicate_paragraphs_dropped"] for role, state in cleaned.items()
        },
        "invalid_records": {role: state.get("invalid", 0) for role, state in cleaned.items()},
        "vocabulary": vocabulary,
        "counts": counts,
        "seconds": seconds,
    }


def _advice_on_documents(sources: list[Source], documents: int) -> str:
    """Return what to do if each file is one document because no plain text has a blank line; "" otherwise."""
    if not all(source.bounds == BLANK for source in sources) or not 0 < documents <= len(sources):
        return ""
    return (
        "no input has a blank line, so each file is one document: give --line-documents if each line is a document, or "
        "else put blank lines between documents"
    )


def _step(folder: Path, name: str, seconds: dict[str, float], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a step unless its state file exists, and return its state."""
    path = folder / f"{name}.json"
    if path.exists():
        logger.info("%s: already done", name)
    else:
        logger.info("%s ...", name)
        start = time.monotonic()
        state = run()
        write_json(path, {"state": state, "seconds": round(time.monotonic() - start, 3)})
        logger.info("%s: %.1f s", name, time.monotonic() - start)
    finished = read_json(path)
    seconds[name] = finished["seconds"]
    return dict(finished["state"])


def _draw_split(settings: PrepareSettings, cleaned: dict[str, Any]) -> Split:
    documents = cleaned[steps.CORPUS]["documents"]
    fraction = settings.resolved()["valid_fraction"]
    valid_documents = settings.valid_documents or round((fraction or 0.0) * documents)
    if documents == 0:
        raise CorpusError("the inputs hold no documents: no text is left after cleaning")
    if steps.VALID in cleaned and cleaned[steps.VALID]["documents"] == 0:
        raise CorpusError("the validation split is empty: the files given with --valid hold no documents")
    if fraction is not None and valid_documents == 0:
        raise CorpusError(
            f"the validation split is empty: the fraction {fraction} of {documents} documents rounds to 0; use "
            "--valid-documents or a larger --valid-fraction"
        )
    if valid_documents >= documents:
        raise CorpusError(
            f"the inputs hold only {documents} documents (separated by blank lines, or one per record), so "
            f"{valid_documents} for validation leave none for training; lower --valid-documents or --valid-fraction, "
            "or give validation files with --valid"
        )
    split = draw_split(documents, valid_documents, settings.shards, settings.seed)
    if split.has_empty_shard(documents):
        raise CorpusError(
            f"{documents} documents are too few for {split.shards} shards: at least one shard would be empty; use "
            "fewer --shards"
        )
    return split
