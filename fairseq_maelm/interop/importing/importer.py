"""Import a model into a verified folder for fairseq: checkpoint, dictionary and tokenizer."""

from pathlib import Path
from shlex import quote
from typing import NamedTuple

import torch

from fairseq_maelm import __version__
from fairseq_maelm.checkpoints.fit import dictionary_fingerprint
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE, shipped_encoders
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.interop.compare_outputs import (
    Agreement,
    agreements,
    checkpoint_outputs,
    compare_tokens,
    comparison_batches,
)
from fairseq_maelm.interop.export.complete_folder import complete, complete_section
from fairseq_maelm.interop.export.exporter import CARD_FILE, write_model
from fairseq_maelm.interop.export.model_card import compared, model_card, table
from fairseq_maelm.interop.export.target import choose_target, default_format
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, tokenizer_files
from fairseq_maelm.interop.importing.checkpoint import arguments_of, converted, fairseq_options
from fairseq_maelm.interop.importing.longer_positions import with_positions
from fairseq_maelm.interop.importing.source import MLM_TASK, Source, refuse
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.source_files import CONFIG_FILE, SourceFiles, facts_and_card
from fairseq_maelm.launch.continued import effects_of_pretraining
from fairseq_maelm.options import UsageError
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.sentencepiece_model import warn_of_export
from fairseq_maelm.text.tokenizer_file import open_tokenizer_file
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE


class Imported(NamedTuple):
    """The result of an import."""

    folder: Path
    agreements: list[Agreement]
    model_options: list[str]  # options of fairseq-train that build the model
    task_options: list[str]  # options of the task maelm that continue its pretraining
    reads_text: bool  # the folder holds a sentencepiece model or tokenizer
    effects: list[str]  # what continued pretraining costs the encoder


def download(name: str) -> Path:
    """Download a model of the Hugging Face Hub, preferably as safetensors, and return its folder."""
    if Path(name).is_dir():
        raise ValueError(f"{name} is a folder on this machine: omit --download")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError("--download needs huggingface_hub: pip install 'fairseq_maelm[hf]'") from error
    # The last two are for modules of sentence-transformers, such as 2_Dense.
    settings = ["*.json", "*.txt", "*.model", "[1-9]_*/model.safetensors", "[1-9]_*/pytorch_model.bin"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "model*.safetensors"]))
        if not any(folder.glob("model*.safetensors")):
            huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "pytorch_model*.bin"])
    except Exception as error:  # errors of the network and of the Hub, and for wrong names
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{name} cannot be downloaded from the Hugging Face Hub: {reason}") from error
    return folder


def import_model(
    path: Path,
    output: Path,
    vocabulary: Path | None = None,
    name: str | None = None,
    symbols: str | None = None,
    cased: bool = False,
    positions: int | None = None,
) -> Imported:
    """Import a model into a new folder, which appears only after its verification.

    Args:
        path: Hugging Face folder, or checkpoint of fairseq's RoBERTa.
        output: folder to write, which must not exist.
        vocabulary: for a checkpoint, the folder of its dict.txt; by default the checkpoint's folder.
        name: name of the source for the records; by default the last part of the path, or its name on the Hub.
        symbols: how texts are cut into the tokens; see ``open_checkpoint`` and ``readable_folder``.
        cased: for a folder, whether to read text with its capitals; see ``readable_folder``.
        positions: number of positions, if it is to be larger than the source's; see ``with_positions``.

    Raises:
        FileNotFoundError: a file of the source is missing.
        FileExistsError: the output exists.
        ValueError: the source cannot be imported exactly; no files are left behind.
    """
    with whole_folder(output, "maelm import") as folder:
        _refuse_checkpoint(path)
        # Each kind of source needs a large library.
        if path.is_file():
            from fairseq_maelm.interop.importing.fairseq_roberta import open_checkpoint

            if cased:
                raise UsageError(f"--cased is for folders, but {path} is a file: omit the option")
            source = open_checkpoint(path, vocabulary, symbols)
        elif path.is_dir():
            from fairseq_maelm.interop.importing.huggingface import open_folder

            if vocabulary is not None:
                raise UsageError(f"--vocabulary is for checkpoint files, but {path} is a folder: omit the option")
            path = _snapshot(path)
            source = open_folder(path, cased, symbols)
        else:
            raise FileNotFoundError(
                f"there is no folder or checkpoint {path}: give a folder that save_pretrained wrote, a checkpoint "
                "file, or --download with a name on the Hugging Face Hub"
            )
        imported = _write(path, source, folder, name or _name_of(path), output.name, positions)
    return imported._replace(folder=output)


def _snapshot(folder: Path) -> Path:
    """Return the folder, or the only snapshot in a folder of the Hub's cache."""
    found = sorted(path for path in (folder / "snapshots").glob("*") if path.is_dir())
    if not found or (folder / CONFIG_FILE).is_file():
        return folder
    if len(found) > 1:
        raise ValueError(
            f"{folder} is a folder of the Hugging Face cache with {len(found)} snapshots: give one, such as {found[0]}"
        )
    return found[0]


def _name_of(path: Path) -> str:
    """Return the model's name on the Hub, ORGANIZATION/MODEL, if the path is in its cache, or else the last part."""
    entry = path.parent.parent.name
    return entry[8:].replace("--", "/") if entry.startswith("models--") else path.name


def _refuse_checkpoint(path: Path) -> None:
    """Refuse a folder that is already a fairseq checkpoint, or the name of an encoder included in the package."""
    if (path / CHECKPOINT_FILE).is_file() or (not path.exists() and str(path) in shipped_encoders()):
        raise ValueError(
            f"{path} is a checkpoint already: give it as --checkpoint; `maelm export --checkpoint {quote(str(path))} "
            "--format fairseq` writes a checkpoint file of fairseq"
        )


def _write(path: Path, given: Source, folder: Path, name: str, title: str, positions: int | None) -> Imported:
    source = given if positions is None else with_positions(path, given, positions)
    vocabulary = given.vocabulary
    symbols = "".join(f"{symbol} 1\n" for symbol in vocabulary.symbols)
    (folder / DICTIONARY_FILE).write_text(symbols, encoding="utf-8", newline="\n")
    for file, encoder in vocabulary.files.items():
        (folder / file).write_bytes(encoder)
    dictionary = load_dictionary(str(folder))
    if len(dictionary) != len(vocabulary.order):
        raise refuse(path, f"its {len(vocabulary.order)} symbols became {len(dictionary)} in dict.txt")
    ours = converted(given, dictionary, folder)
    found, other = _verify(path, given, ours), "the source"
    if source is not given:
        ours, other = converted(source, dictionary, folder), "the source, compared with its own positions,"
    if source.files or path.is_file():
        order, fingerprint = torch.tensor(vocabulary.order), dictionary_fingerprint(dictionary)
        files = source.files | facts_and_card(name, source.facts, path.parent if path.is_file() else path)
        kept = SourceFiles(order, fingerprint, files, source.kept_weights, source.heads)
        kept.write(folder, source.options["max_positions"])
    target = choose_target(ours, default_format(ours), "encoder")
    write_model(ours, target, folder)
    if vocabulary.files and (TOKENIZER_FILE in vocabulary.files or not warn_of_export(folder / MODEL_FILE)):
        _write_tokenizer(ours, folder)
    if vocabulary.tokenize is not None:
        compare_tokens(
            path, vocabulary.tokenize, ours.tokenizer.encode, vocabulary.order, vocabulary.added, vocabulary.own
        )
    model, task = fairseq_options(source.options), arguments_of(MLM_TASK)
    facts = {"source": name, **source.facts, "model": f"`{' '.join(model)}`"}
    facts |= {
        "continued pretraining": f"`--task maelm {' '.join(task)}`",
        "imported by": f"fairseq_maelm {__version__}",
    }
    card = model_card(
        ours, target, title, None, f"Imported, and not trained since.\n\n{table(facts)}", compared(found, other),
        [complete_section(ours, title)],
    )  # fmt: skip
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    complete(ours, folder)
    return Imported(folder, found, model, task, bool(vocabulary.files), effects_of_pretraining(ours.checkpoint))


def _write_tokenizer(ours: LoadedCheckpoint, folder: Path) -> None:
    """Write tokenizer files for transformers, with our ids; existing files are kept."""
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = open_tokenizer_file(folder / TOKENIZER_FILE)
    else:
        tokenizer = build_tokenizer(folder / MODEL_FILE, ours.dictionary)
    for file, text in tokenizer_files(tokenizer, ours.model.max_positions()).items():
        if not (folder / file).exists():
            (folder / file).write_text(text, encoding="utf-8")


def _verify(path: Path, source: Source, ours: LoadedCheckpoint) -> list[Agreement]:
    """Compare the source's outputs with the checkpoint's; raise ValueError for more than rounding errors."""
    head = next(iter(ours.checkpoint.heads), None)
    return agreements(
        source.compute,
        lambda tokens: checkpoint_outputs(ours.model, ours.checkpoint.view, source.architecture, head, tokens),
        comparison_batches(ours.model, masks=source.architecture == "masked-lm"),
        str(refuse(path, "the checkpoint computes different values")),
    )
