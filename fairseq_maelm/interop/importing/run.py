"""From a source to a folder that fairseq trains from: checkpoint, dictionary and tokenizer, verified."""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.files import write_json
from fairseq_maelm.interop.agreement import (
    PAD,
    Agreement,
    agreements,
    checkpoint_outputs,
    comparison_batches,
    differences,
    scores_of,
)
from fairseq_maelm.interop.export.run import CHECKPOINT_FILE
from fairseq_maelm.interop.export.source import Source as Written
from fairseq_maelm.interop.export.source import load_source
from fairseq_maelm.interop.hard_strings import HARD_STRINGS, ORDINARY_STRINGS
from fairseq_maelm.interop.importing.checkpoint import build_state, fairseq_options, task_options
from fairseq_maelm.interop.importing.source import Source, refuse
from fairseq_maelm.prepared_folder import whole_folder
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE
from fairseq_maelm.version import __version__

logger = logging.getLogger(__name__)

FACTS_FILE = "import.json"


class Imported(NamedTuple):
    """The folder that was written, with the options of fairseq-train that build its model and continue its training.

    ``reads_text`` says whether the folder holds what text is encoded with.
    """

    folder: Path
    agreements: list[Agreement]
    model_options: list[str]
    task_options: list[str]
    reads_text: bool


def download(name: str) -> Path:
    """Download a model of the Hugging Face Hub, in safetensors where there are any, and return its folder.

    Raises:
        ValueError: huggingface_hub is not installed, or the Hub does not give the model.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError("--download needs huggingface_hub: pip install 'fairseq_maelm[hf]'") from error
    settings = ["*.json", "*.txt", "*.model"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "model*.safetensors"]))
        if not any(folder.glob("model*.safetensors")):
            huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "pytorch_model*.bin"])
    except Exception as error:  # of the network, of the Hub, for a name that is none
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"the Hugging Face Hub does not give {name}: {reason}") from error
    return folder


def open_source(path: Path, vocabulary: Path | None) -> Source:
    """Open a Hugging Face folder or a fairseq checkpoint."""
    # Each kind brings a large library along; only the one that is needed is imported.
    if path.is_file():
        from fairseq_maelm.interop.importing.fairseq_roberta import open_checkpoint

        return open_checkpoint(path, vocabulary)
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no folder or checkpoint {path}: give one on this machine, as save_pretrained makes it, or "
            "--download for a name on the Hugging Face Hub"
        )
    from fairseq_maelm.interop.importing.huggingface import open_folder

    return open_folder(path)


def import_model(path: Path, output: Path, vocabulary: Path | None = None, name: str | None = None) -> Imported:
    """Import a model into a new folder, which gets its name when everything in it is verified.

    Args:
        path: a Hugging Face folder, or a checkpoint of fairseq's RoBERTa.
        output: the folder to write; must not exist.
        vocabulary: for a checkpoint, the folder of its dict.txt; by default its own.
        name: of the source, for the record; by default the path's last part.

    Raises:
        FileNotFoundError: something of the source is missing.
        FileExistsError: the output exists.
        ValueError: the source cannot be imported exactly; nothing is left behind.
    """
    with whole_folder(output, "maelm import") as folder:
        imported = _write(path, open_source(path, vocabulary), folder, name or path.name)
    return imported._replace(folder=output)


def _write(path: Path, source: Source, folder: Path, name: str) -> Imported:
    content = "".join(f"{symbol} 1\n" for symbol in source.vocabulary.symbols)
    (folder / DICTIONARY_FILE).write_text(content, encoding="utf-8", newline="\n")
    for file, encoder in source.vocabulary.files.items():
        (folder / file).write_bytes(encoder)
    dictionary = load_dictionary(str(folder))
    if len(dictionary) != len(source.vocabulary.order):
        raise refuse(path, f"its {len(source.vocabulary.order)} symbols became {len(dictionary)} in dict.txt")
    torch.save(build_state(source, dictionary), folder / CHECKPOINT_FILE)
    # Read back from the disk as users read it.
    written = load_source(folder / CHECKPOINT_FILE)
    found = _verify(path, source, written)
    if source.vocabulary.tokenize is not None and source.vocabulary.files:
        _compare_tokens(path, source, written)
    model, task = fairseq_options(source), task_options(source)
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


def _verify(path: Path, source: Source, written: Written) -> list[Agreement]:
    """Compare the source's model with the checkpoint; refuse more than rounding."""
    order, of_masks = torch.tensor(source.vocabulary.order), scores_of("masked-lm")

    def theirs(tokens: Tensor) -> dict[str, Tensor]:
        outputs = source.compute(order[tokens], tokens.ne(PAD))
        return {what: output[:, order] if what == of_masks else output for what, output in outputs.items()}

    checkpoint = written.checkpoint
    head = next(iter(checkpoint.heads), None)
    return agreements(
        theirs,
        lambda tokens: checkpoint_outputs(written.model, checkpoint.view, source.architecture, head, tokens),
        comparison_batches(written.model, masks=source.architecture == "masked-lm"),
        str(refuse(path, "the checkpoint computes something else")),
    )


def _compare_tokens(path: Path, source: Source, written: Written) -> None:
    """Refuse other tokens of ordinary text, and say how many hard texts have others.

    The library tokenizers reads some of these otherwise than sentencepiece, whose model it stands for.
    """
    encode, order, tokenize = written.tokenizer.encode, source.vocabulary.order, source.vocabulary.tokenize
    assert tokenize is not None

    def ours(text: str) -> list[int]:
        return [order[token] for token in encode(text)]

    wrong = differences(tokenize, ours, ORDINARY_STRINGS)
    if wrong:
        text, expected, found = wrong[0]
        raise refuse(path, f"its tokenizer makes {expected} of {text!r} and the imported one {found}")
    hard = [text for text in HARD_STRINGS if "<mask>" not in text]
    other = differences(tokenize, ours, hard)
    logger.info("%d of %d hard texts have the tokens of the source", len(hard) - len(other), len(hard))
    for each in other:
        logger.warning("%s is read in another way than by the source's tokenizer", ascii(each.text))
