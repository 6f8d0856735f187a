"""From raw text to a data folder that fairseq-train reads: the steps in order, resumed where they stopped."""

import logging
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from fairseq_maelm.corpus import steps
from fairseq_maelm.corpus.reading import Source, find_sources
from fairseq_maelm.corpus.settings import PrepareSettings, explain_difference, source_fingerprints
from fairseq_maelm.corpus.splitting import Split, draw_split
from fairseq_maelm.files import (
    CorpusError,
    FolderLock,
    read_json,
    remove_partial_files,
    sha256_of,
    synchronize_folder,
    write_json,
)
from fairseq_maelm.text.imported import open_encoder, vocabulary_files
from fairseq_maelm.text.vocabulary import dictionary_symbols, load_sentencepiece
from fairseq_maelm.version import __version__

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
UNFINISHED_FOLDER = "unfinished"
_RUN_FILE = "run.json"
_MODEL_ROLE = "sentencepiece_model"
_TOKENIZER_ROLE = "tokenizer"


@dataclass(frozen=True)
class PreparedCorpus:
    """A finished data folder.

    Attributes:
        folders: the folder of every shard, in order; one when the corpus is not sharded.
        manifest: the content of ``manifest.json``.
        was_there: whether an earlier run had already prepared exactly this.
    """

    folders: list[Path]
    manifest: dict[str, Any]
    was_there: bool

    @property
    def data_argument(self) -> str:
        """What to give to fairseq-train as its data: the folders, separated by colons."""
        return ":".join(map(str, self.folders))


def prepare(settings: PrepareSettings) -> PreparedCorpus:
    """Prepares a corpus, resumes an interrupted preparation, or finds that there is nothing to do.

    Raises:
        CorpusError: anything the user can put right; nothing that was there is overwritten.
    """
    sources = {
        steps.CORPUS: find_sources(settings.inputs, settings.json_field),
        steps.VALID: find_sources(settings.valid, settings.json_field),
    }
    _check_apart(settings, sources)
    run = _describe(settings, sources)
    manifest = _finished(settings.output, run)
    if manifest is None:
        manifest = _prepare(settings, sources, run)
        return PreparedCorpus(_folders(settings), manifest, was_there=False)
    logger.info("%s was already prepared from these files with these settings: nothing to do", settings.output)
    # A run killed right after it wrote the manifest leaves this.
    shutil.rmtree(settings.output / UNFINISHED_FOLDER, ignore_errors=True)
    return PreparedCorpus(_folders(settings), manifest, was_there=True)


def _folders(settings: PrepareSettings) -> list[Path]:
    return [settings.output / name for name in steps.shard_names(settings.shards)]


def _check_apart(settings: PrepareSettings, sources: dict[str, list[Source]]) -> None:
    """Checks that no file is read twice and that the output is no input.

    Raises:
        CorpusError: validation would measure what training has seen, or a later run would read its own output.
    """
    seen: set[Path] = set()
    for source in (*sources[steps.CORPUS], *sources[steps.VALID]):
        if source.path.resolve() in seen:
            raise CorpusError(f"the file {source.path} is among the inputs and --valid more than once")
        seen.add(source.path.resolve())
    output = settings.output.resolve()
    for path in (*settings.inputs, *settings.valid):
        if path.is_dir() and output.is_relative_to(path.resolve()):
            raise CorpusError(f"the output folder {settings.output} lies inside the input folder {path}")


def _describe(settings: PrepareSettings, sources: dict[str, list[Source]]) -> dict[str, Any]:
    """What identifies this preparation: the settings that decide its result, and the state of its files."""
    files = {role: source_fingerprints(found) for role, found in sources.items() if found}
    if settings.sentencepiece_model is not None:
        # Loaded here so that a bad model is refused before any work.
        dictionary_symbols(load_sentencepiece(settings.sentencepiece_model))
        files[_MODEL_ROLE] = source_fingerprints([Source(settings.sentencepiece_model)])
        files[_MODEL_ROLE][0]["sha256"] = sha256_of(settings.sentencepiece_model)
    if settings.tokenizer is not None:
        open_encoder(settings.tokenizer)
        paths = vocabulary_files(settings.tokenizer)
        states = source_fingerprints([Source(path) for path in paths])
        files[_TOKENIZER_ROLE] = [
            {**state, "sha256": sha256_of(path)} for state, path in zip(states, paths, strict=True)
        ]
    return {"settings": settings.resolved(), "files": files}


def _finished(output: Path, run: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of an earlier, finished run of the same preparation; None when there is still work to do."""
    if output.exists() and not output.is_dir():
        raise CorpusError(f"the output {output} exists and is not a folder")
    manifest_path = output / MANIFEST_FILE
    if not manifest_path.exists():
        foreign = [path.name for path in output.iterdir()] if output.exists() else []
        if foreign and not (output / UNFINISHED_FOLDER).is_dir():
            raise CorpusError(f"the output folder {output} holds something else ({foreign[0]}); name a new folder")
        return None
    manifest: dict[str, Any] = read_json(manifest_path)
    if not {"settings", "files", "outputs"} <= manifest.keys():
        raise CorpusError(f"{manifest_path} was not written by `maelm prepare`; name a new folder")
    _refuse_difference(output, manifest, run)
    for name, facts in manifest["outputs"].items():
        path = output / name
        if not path.exists() or path.stat().st_size != facts["bytes"]:
            raise CorpusError(f"{path} is missing or was changed; remove {output} and prepare the corpus again")
    return manifest


def _refuse_difference(output: Path, earlier: dict[str, Any], run: dict[str, Any]) -> None:
    if difference := explain_difference(earlier, run):
        raise CorpusError(
            f"{output} was prepared, or begun, differently: {difference}; name a new folder or remove that one"
        )


def _prepare(settings: PrepareSettings, sources: dict[str, list[Source]], run: dict[str, Any]) -> dict[str, Any]:
    folder = settings.output / UNFINISHED_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with FolderLock(folder / "lock", "`maelm prepare`", settings.output):
        if (finished_meanwhile := _finished(settings.output, run)) is not None:
            return finished_meanwhile
        remove_partial_files(settings.output)
        if (folder / _RUN_FILE).exists():
            _refuse_difference(settings.output, read_json(folder / _RUN_FILE), run)
            logger.info("resuming the interrupted preparation in %s", settings.output)
        else:
            write_json(folder / _RUN_FILE, run)
        work = steps.Work(folder, settings)
        seconds: dict[str, float] = {}
        cleaned = _step(folder, "clean", seconds, lambda: steps.clean(work, sources))
        split = _draw_split(settings, cleaned)
        vocabulary = _step(folder, "vocabulary", seconds, lambda: steps.make_vocabulary(work, cleaned, split))
        _step(folder, "encode", seconds, lambda: steps.encode(work, cleaned, split))
        binarized = _step(folder, "binarize", seconds, lambda: steps.binarize(work, cleaned, split))
        manifest = {**_origin(run, cleaned), "vocabulary": vocabulary, **binarized, "seconds": seconds}
        _publish(settings, work.outputs, manifest)
        shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _step(folder: Path, name: str, seconds: dict[str, float], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs a step unless its state file says that it is done; returns its state either way."""
    path = folder / f"{name}.json"
    if path.exists():
        logger.info("%s: done earlier", name)
    else:
        logger.info("%s ...", name)
        start = time.monotonic()
        state = run()
        write_json(path, {"state": state, "seconds": round(time.monotonic() - start, 3)})
        logger.info("%s: %.1f s", name, time.monotonic() - start)
    finished = read_json(path)
    seconds[name] = finished["seconds"]
    result: dict[str, Any] = finished["state"]
    return result


def _draw_split(settings: PrepareSettings, cleaned: dict[str, Any]) -> Split:
    """Draws the split of the cleaned corpus.

    Raises:
        CorpusError: a split or a shard would be empty.
    """
    documents = cleaned[steps.CORPUS]["documents"]
    if documents == 0:
        raise CorpusError("the inputs hold no documents: after cleaning, no text is left")
    if steps.VALID in cleaned:
        if cleaned[steps.VALID]["documents"] == 0:
            raise CorpusError("the validation split is empty: the files given by --valid hold no documents")
        valid_documents = 0
    elif settings.valid_documents is not None:
        valid_documents = settings.valid_documents
    else:
        valid_documents = round(settings.resolved()["valid_fraction"] * documents)
        if valid_documents == 0:
            raise CorpusError(
                f"the validation split is empty: the fraction {settings.resolved()['valid_fraction']} of {documents} "
                "documents rounds to none; use --valid-documents or a larger --valid-fraction"
            )
    if valid_documents >= documents:
        raise CorpusError(
            f"the inputs hold {documents} documents (a blank line or a record separates them), so {valid_documents} "
            "for validation leave none for training; use fewer, or give own files by --valid"
        )
    split = draw_split(documents, valid_documents, settings.shards, settings.seed)
    steps.check_split(cleaned, split)
    return split


def _origin(run: dict[str, Any], cleaned: dict[str, Any]) -> dict[str, Any]:
    """The part of the manifest that says what the data was made from, and by what."""
    files = dict(run["files"])
    for role, state in cleaned.items():
        pairs = zip(files[role], state["sha256"], strict=True)
        files[role] = [{**file_fingerprints, "sha256": sha256} for file_fingerprints, sha256 in pairs]
    return {
        "versions": {
            "fairseq_maelm": __version__,
            "sentencepiece": sentencepiece.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "settings": run["settings"],
        "files": files,
        "duplicate_paragraphs_dropped": {
            role: state["duplicate_paragraphs_dropped"] for role, state in cleaned.items()
        },
    }


def _publish(settings: PrepareSettings, outputs: Path, manifest: dict[str, Any]) -> None:
    """Moves the result out of the folder of unfinished work; the manifest, which says that all is there, comes last."""
    for name in manifest["outputs"]:
        target = settings.output / name
        target.parent.mkdir(exist_ok=True)
        if (outputs / name).exists():
            os.replace(outputs / name, target)
    for shard in steps.shard_names(settings.shards):
        synchronize_folder(settings.output / shard)
        if shard != ".":
            write_json(settings.output / shard / MANIFEST_FILE, manifest)
    write_json(settings.output / MANIFEST_FILE, manifest)
