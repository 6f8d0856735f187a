"""From a source to a folder that fairseq trains from: checkpoint, dictionary and tokenizer, verified."""

import json
import logging
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from fairseq_maelm.files import synchronize_folder
from fairseq_maelm.interop.agreement import Agreement
from fairseq_maelm.interop.importing.checkpoint import CHECKPOINT_FILE, build_state, fairseq_options, task_options
from fairseq_maelm.interop.importing.source import Source, refuse
from fairseq_maelm.interop.importing.verify import verify
from fairseq_maelm.prepared_folder import whole_folder
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.version import __version__

logger = logging.getLogger(__name__)

FACTS_FILE = "import.json"


class Imported(NamedTuple):
    """The result.

    Attributes:
        folder: with checkpoint, dict.txt and tokenizer.
        agreements: of the source and the checkpoint.
        model_options: of fairseq-train, that build the model.
        task_options: of the task maelm, that go on with its pretraining.
        reads_text: whether the folder holds what text is encoded with.
    """

    folder: Path
    agreements: list[Agreement]
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
    with whole_folder(output, "maelm import") as folder:
        imported = _write(path, source, folder)
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
    torch.save(build_state(source, dictionary), folder / CHECKPOINT_FILE)
    agreements = verify(path, source, folder / CHECKPOINT_FILE, dictionary)
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
        "agreement": [each._asdict() for each in agreements],
        "fairseq_maelm": __version__,
    }
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return Imported(folder, agreements, model, task, bool(source.vocabulary.files))
