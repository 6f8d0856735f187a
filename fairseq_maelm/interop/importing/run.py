"""Import of a source into a verified folder for fairseq: checkpoint, dictionary and tokenizer."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_maelm import __version__
from fairseq_maelm.checkpoints.fit import dictionary_fingerprint
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE as COMPLETE_FILE
from fairseq_maelm.checkpoints.locate import shipped_encoders
from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.interop.compare_outputs import (
    Agreement,
    agreements,
    checkpoint_outputs,
    compare_tokens,
    comparison_batches,
)
from fairseq_maelm.interop.export.run import CHECKPOINT_FILE, write_checkpoint
from fairseq_maelm.interop.importing.checkpoint import build_state, fairseq_options, task_options
from fairseq_maelm.interop.importing.source import Source, refuse
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model
from fairseq_maelm.interop.source_files import SourceFiles
from fairseq_maelm.models.config import MaelmModelConfig
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE

logger = logging.getLogger(__name__)

FACTS_FILE = "import.json"
# The options of the encoder's view in pretraining.
_VIEW = ("masked_input", "encoder_mask_fraction", "encoder_positions")


class Imported(NamedTuple):
    """The result of an import."""

    folder: Path
    agreements: list[Agreement]
    model_options: list[str]  # options of fairseq-train that build the model
    task_options: list[str]  # options of the task maelm that continue its pretraining
    reads_text: bool  # the folder holds a sentencepiece model or tokenizer


def download(name: str) -> Path:
    """Download a model of the Hugging Face Hub, preferably as safetensors, and return its folder."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError("--download needs huggingface_hub: pip install 'fairseq_maelm[hf]'") from error
    settings = ["*.json", "*.txt", "*.model"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "model*.safetensors"]))
        if not any(folder.glob("model*.safetensors")):
            huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "pytorch_model*.bin"])
    except Exception as error:  # errors of the network and of the Hub, and for wrong names
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{name} cannot be downloaded from the Hugging Face Hub: {reason}") from error
    return folder


def import_model(path: Path, output: Path, vocabulary: Path | None = None, name: str | None = None) -> Imported:
    """Import a model into a new folder, which appears only after its verification.

    Args:
        path: Hugging Face folder, checkpoint of fairseq's RoBERTa, folder of `maelm export --complete`, or the name of
            an encoder that comes with this package.
        output: folder to write, which must not exist.
        vocabulary: for a checkpoint, the folder of its dict.txt; by default the checkpoint's folder.
        name: name of the source in the record; by default the path's last part.

    Raises:
        FileNotFoundError: a file of the source is missing.
        FileExistsError: the output exists.
        ValueError: the source cannot be imported exactly; no files are left behind.
    """
    with whole_folder(output, "maelm import") as folder:
        if (complete := _find_complete(path)) is not None:
            return _restore(complete, folder, name or path.name)._replace(folder=output)
        # Each kind of source needs a large library.
        if path.is_file():
            from fairseq_maelm.interop.importing.fairseq_roberta import open_checkpoint

            source = open_checkpoint(path, vocabulary)
        elif path.is_dir():
            from fairseq_maelm.interop.importing.huggingface import open_folder

            source = open_folder(path)
        else:
            raise FileNotFoundError(
                f"there is no folder or checkpoint {path}: give a folder that save_pretrained wrote, a checkpoint "
                f"file, {''.join(f'{shipped}, ' for shipped in shipped_encoders())}or --download with a name on the "
                "Hugging Face Hub"
            )
        imported = _write(path, source, folder, name or path.name)
    return imported._replace(folder=output)


def _find_complete(path: Path) -> Path | None:
    """Return the checkpoint.json in a folder, or of the encoder with this name that comes with the package, if any."""
    if path.exists():
        return path / COMPLETE_FILE if (path / COMPLETE_FILE).is_file() else None
    return shipped_encoders().get(str(path))


def _restore(checkpoint: Path, folder: Path, name: str) -> Imported:
    """Write the checkpoint of a checkpoint.json and its vocabulary to a folder for fairseq."""
    source = load_with_model(checkpoint)
    write_checkpoint(source, folder, folder)
    if (folder / MODEL_FILE).is_file():
        # It was made from the sentencepiece model for transformers.
        (folder / TOKENIZER_FILE).unlink(missing_ok=True)
    config = source.checkpoint.config
    defaults: dict[str, Any] = {name: field.default for name, field in MaelmModelConfig.__dataclass_fields__.items()}
    declared = [name for name, value in defaults.items() if not name.startswith("_") and "${" not in str(value)]
    view = {name: config.task[name] for name in _VIEW if config.task.get(name) is not None}
    model, task = fairseq_options({name: config.model[name] for name in declared}), task_options(view)
    facts = {"source": name, "kind": "folder of maelm export --complete", "model_options": model, "task_options": task}
    write_json(folder / FACTS_FILE, {**facts, "fairseq_maelm": __version__})
    return Imported(folder, [], model, task, reads_text=True)


def _write(path: Path, source: Source, folder: Path, name: str) -> Imported:
    content = "".join(f"{symbol} 1\n" for symbol in source.vocabulary.symbols)
    (folder / DICTIONARY_FILE).write_text(content, encoding="utf-8", newline="\n")
    for file, encoder in source.vocabulary.files.items():
        (folder / file).write_bytes(encoder)
    dictionary = load_dictionary(str(folder))
    if len(dictionary) != len(source.vocabulary.order):
        raise refuse(path, f"its {len(source.vocabulary.order)} symbols became {len(dictionary)} in dict.txt")
    torch.save(build_state(source, dictionary), folder / CHECKPOINT_FILE)
    if source.files:
        order, vocabulary = torch.tensor(source.vocabulary.order), dictionary_fingerprint(dictionary)
        SourceFiles(order, vocabulary, source.files, source.kept_weights).write(folder)
    written = load_with_model(folder / CHECKPOINT_FILE)
    found = _verify(path, source, written)
    if source.vocabulary.tokenize is not None and source.vocabulary.files:
        compare_tokens(path, source.vocabulary.tokenize, written.tokenizer.encode, source.vocabulary.order)
    model, task = fairseq_options(source.options), task_options(source.task_options)
    facts = {
        "source": name,
        **source.facts,
        "vocabulary": {
            "symbols": len(dictionary),
            "moved": sum(ours != theirs for ours, theirs in enumerate(source.vocabulary.order)),
            "files": sorted(source.vocabulary.files),
        },
        "model_options": model,
        "task_options": task,
        "agreement": [each._asdict() for each in found],
        "fairseq_maelm": __version__,
    }
    write_json(folder / FACTS_FILE, facts)
    return Imported(folder, found, model, task, bool(source.vocabulary.files))


def _verify(path: Path, source: Source, written: LoadedCheckpoint) -> list[Agreement]:
    """Compare the source's model with the checkpoint, and refuse differences beyond rounding."""
    checkpoint = written.checkpoint
    head = next(iter(checkpoint.heads), None)
    return agreements(
        source.compute,
        lambda tokens: checkpoint_outputs(written.model, checkpoint.view, source.architecture, head, tokens),
        comparison_batches(written.model, masks=source.architecture == "masked-lm"),
        str(refuse(path, "the checkpoint computes something else")),
    )
