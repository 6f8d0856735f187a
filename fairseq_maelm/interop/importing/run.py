"""From a source to a folder that fairseq trains from: checkpoint, dictionary and tokenizer, verified."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_maelm.files import synchronize_folder
from fairseq_maelm.interop.importing.checkpoint import CHECKPOINT_FILE, build_state, fairseq_options, save, task_options
from fairseq_maelm.interop.importing.source import Source, refuse
from fairseq_maelm.interop.importing.verify import Differences, compare
from fairseq_maelm.models.hub import load_model
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer
from fairseq_maelm.version import __version__

logger = logging.getLogger(__name__)

FACTS_FILE = "import.json"

# Ordinary text of several scripts; both tokenizers must agree on all of it.
SAMPLE_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "It's 3.14159 o'clock, isn't it? (Yes: e-mail me at 17:30!)",
    "Übung macht den Meister; déjà vu, naïve, señor, smørrebrød.",
    "Съешь же ещё этих мягких французских булок.",
    "日本語の文章と中文的句子。",
    "tabs\tand  two spaces",
    "",
)


class Imported(NamedTuple):
    """The result.

    Attributes:
        folder: with checkpoint, dict.txt and tokenizer.
        differences: between the source and the checkpoint.
        model_options: of fairseq-train, that build the model.
        task_options: of the task maelm, that go on with its pretraining.
        reads_text: whether the folder holds what text is encoded with.
    """

    folder: Path
    differences: Differences
    model_options: list[str]
    task_options: list[str]
    reads_text: bool


def open_source(path: Path, data: Optional[Path]) -> Source:
    """Open a Hugging Face folder or a fairseq checkpoint.

    Raises:
        FileNotFoundError: if there is nothing.
        ValueError: if it cannot be imported exactly; says why.
    """
    # Each kind brings a large library along; only the one that is needed is imported.
    if path.is_file():
        from fairseq_maelm.interop.importing.fairseq_roberta import open_checkpoint

        return open_checkpoint(path, data)
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no folder or checkpoint {path}, and nothing is downloaded: give a folder on this machine, as "
            "`hf download NAME --local-dir FOLDER` or save_pretrained makes it"
        )
    from fairseq_maelm.interop.importing.huggingface import open_folder

    return open_folder(path)


def import_model(path: Path, output: Path, data: Optional[Path] = None) -> Imported:
    """Import a model into a new folder, which gets its name when everything in it is verified.

    Args:
        path: a Hugging Face folder, or a checkpoint of fairseq's RoBERTa.
        output: the folder to write; must not exist.
        data: for a checkpoint, the folder of its dict.txt.

    Raises:
        FileNotFoundError: if something of the source is missing.
        ValueError: if the output exists, or the source cannot be imported exactly; nothing is left behind.
    """
    if output.exists():
        raise ValueError(f"{output} exists: name a new folder")
    source = open_source(path, data)
    unfinished = output.with_name(f"{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        imported = _write(path, source, unfinished)
        unfinished.rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    synchronize_folder(output.parent)
    return imported._replace(folder=output)


def _write(path: Path, source: Source, folder: Path) -> Imported:
    content = "".join(f"{symbol} 1\n" for symbol in source.vocabulary.symbols)
    (folder / "dict.txt").write_text(content, encoding="utf-8", newline="\n")
    for name, file in source.vocabulary.files.items():
        (folder / name).write_bytes(file)
    dictionary = load_dictionary(str(folder))
    if len(dictionary) != len(source.vocabulary.order):
        raise refuse(path, f"its {len(source.vocabulary.order)} symbols became {len(dictionary)} in dict.txt")
    save(build_state(source, dictionary), folder / CHECKPOINT_FILE)
    differences = _verify(path, source, folder, dictionary)
    model, task = fairseq_options(source), task_options(source)
    facts = {
        "source": path.name,
        "kind": source.kind,
        **source.facts,
        "vocabulary": {
            "symbols": len(dictionary),
            "moved": sum(ours != theirs for ours, theirs in enumerate(source.vocabulary.order)),
            "files": sorted(source.vocabulary.files),
        },
        "model_options": model,
        "task_options": task,
        "differences": differences._asdict(),
        "fairseq_maelm": __version__,
    }
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return Imported(folder, differences, model, task, bool(source.vocabulary.files))


def _verify(path: Path, source: Source, folder: Path, dictionary: Any) -> Differences:
    """Compare what was written, read back as users read it.

    Raises:
        ValueError: if more than rounding differs.
    """
    _, _, model = load_model(str(folder / CHECKPOINT_FILE), str(folder.resolve()))
    differences = compare(source, model.eval())
    if not differences.rounding:
        raise refuse(path, f"the checkpoint computes something else ({differences.describe()})")
    if source.vocabulary.tokenize is not None and source.vocabulary.files:
        name = next(iter(source.vocabulary.files))
        _compare_tokens(path, source, open_tokenizer(str(folder / name), dictionary))
    return differences


def _compare_tokens(path: Path, source: Source, ours: TextTokenizer) -> None:
    assert source.vocabulary.tokenize is not None
    for text in SAMPLE_TEXTS:
        expected = source.vocabulary.tokenize(text)
        actual = [source.vocabulary.order[token] for token in ours.encode(text)]
        if actual != expected:
            raise refuse(path, f"its tokenizer makes {expected} of {text!r} and the imported one {actual}")
    logger.info("tokens of %d sample texts are the source's", len(SAMPLE_TEXTS))
