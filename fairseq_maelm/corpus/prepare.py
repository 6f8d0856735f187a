"""From raw text to a data folder that fairseq-train reads: the steps in order, resumed where they stopped."""

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from fairseq_maelm.corpus import steps
from fairseq_maelm.corpus.reading import Source, find_sources
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.corpus.splitting import Split, draw_split
from fairseq_maelm.files import CorpusError, read_json, remove_partial_files, write_json
from fairseq_maelm.prepared_folder import fingerprints, prepare_folder
from fairseq_maelm.text.imported import open_encoder, vocabulary_files
from fairseq_maelm.text.vocabulary import dictionary_symbols, load_sentencepiece
from fairseq_maelm.version import __version__

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedCorpus:
    """A finished data folder: the folder of every shard, or the only one, and the content of ``manifest.json``."""

    folders: list[Path]
    manifest: dict[str, Any]

    @property
    def data_argument(self) -> str:
        """What to give to fairseq-train as its data: the folders, separated by colons."""
        return ":".join(map(str, self.folders))


def prepare(settings: PrepareSettings) -> PreparedCorpus:
    """Prepare a corpus, resume an interrupted preparation, or find that there is nothing to do.

    Raises:
        CorpusError: anything the user can put right; nothing that was there is overwritten.
        FileExistsError: the output's name is taken.
    """
    sources = {
        steps.CORPUS: find_sources(settings.inputs, settings.json_field),
        steps.VALID: find_sources(settings.valid, settings.json_field),
    }
    _check_apart(settings, sources)
    origin = _origin(settings, sources)
    shards = steps.shard_names(settings.shards)
    manifest = prepare_folder(
        settings.output,
        "corpus",
        origin,
        lambda result: _run_steps(settings, sources, origin["files"], result),
        resumes=True,
        copies=[name for name in shards if name != "."],
    )
    return PreparedCorpus([settings.output / name for name in shards], manifest)


def _check_apart(settings: PrepareSettings, sources: dict[str, list[Source]]) -> None:
    """Check that no file is read twice and that the output is no input."""
    seen: set[Path] = set()
    for source in (*sources[steps.CORPUS], *sources[steps.VALID]):
        if source.path.resolve() in seen:
            raise CorpusError(f"the file {source.path} is among the inputs and --valid more than once")
        seen.add(source.path.resolve())
    output = settings.output.resolve()
    for path in (*settings.inputs, *settings.valid):
        if path.is_dir() and output.is_relative_to(path.resolve()):
            raise CorpusError(f"the output folder {settings.output} lies inside the input folder {path}")


def _origin(settings: PrepareSettings, sources: dict[str, list[Source]]) -> dict[str, Any]:
    """Describe what identifies this preparation: the settings that decide its result, and the state of its files."""
    files = {
        # Their checksums are taken when they are read, once.
        role: fingerprints([source.path for source in found], with_checksums=False)
        for role, found in sources.items()
        if found
    }
    # Loaded here so that a bad vocabulary is refused before any work.
    if settings.sentencepiece_model is not None:
        dictionary_symbols(load_sentencepiece(settings.sentencepiece_model))
        files["sentencepiece_model"] = fingerprints([settings.sentencepiece_model])
    if settings.vocabulary is not None:
        open_encoder(settings.vocabulary)
        files["vocabulary"] = fingerprints(vocabulary_files(settings.vocabulary))
    return {"settings": settings.resolved(), "files": files}


def _run_steps(
    settings: PrepareSettings, sources: dict[str, list[Source]], files: dict[str, Any], result: Path
) -> dict[str, Any]:
    """Run the steps that an earlier run has not done, in the folder around the result's; return the facts."""
    folder = result.parent
    remove_partial_files(folder)
    # Its outputs are gone with the run that was interrupted after it.
    (folder / "binarize.json").unlink(missing_ok=True)
    work = steps.Work(folder, result, settings)
    seconds: dict[str, float] = {}
    cleaned = _step(folder, "clean", seconds, lambda: steps.clean(work, sources))
    split = _draw_split(settings, cleaned)
    vocabulary = _step(folder, "vocabulary", seconds, lambda: steps.make_vocabulary(work, cleaned, split))
    _step(folder, "encode", seconds, lambda: steps.encode(work, cleaned, split))
    counts = _step(folder, "binarize", seconds, lambda: steps.binarize(work, cleaned, split))
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
        "vocabulary": vocabulary,
        "counts": counts,
        "seconds": seconds,
    }


def _step(folder: Path, name: str, seconds: dict[str, float], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a step unless its state file says that it is done; return its state either way."""
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
    """Draw the split of the cleaned corpus."""
    documents = cleaned[steps.CORPUS]["documents"]
    fraction = settings.resolved()["valid_fraction"]
    valid_documents = settings.valid_documents or round((fraction or 0.0) * documents)
    if documents == 0:
        raise CorpusError("the inputs hold no documents: after cleaning, no text is left")
    if steps.VALID in cleaned and cleaned[steps.VALID]["documents"] == 0:
        raise CorpusError("the validation split is empty: the files given by --valid hold no documents")
    if fraction is not None and valid_documents == 0:
        raise CorpusError(
            f"the validation split is empty: the fraction {fraction} of {documents} documents rounds to none; use "
            "--valid-documents or a larger --valid-fraction"
        )
    if valid_documents >= documents:
        raise CorpusError(
            f"the inputs hold {documents} documents (a blank line or a record separates them), so {valid_documents} "
            "for validation leave none for training; use fewer, or give own files by --valid"
        )
    split = draw_split(documents, valid_documents, settings.shards, settings.seed)
    steps.check_split(cleaned, split)
    return split
