"""Find the vocabulary of a checkpoint: in a given folder, or next to the checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import MODEL_FILE as SENTENCEPIECE_MODEL


def find_tokenizer(folders: Sequence[Path]) -> Path:
    """Return the path of the first tokenizer in folders and their ``input0``, or raise a FileNotFoundError."""
    candidates = _with_subfolders(folders)
    for folder in candidates:
        if (folder / SENTENCEPIECE_MODEL).exists():
            return folder / SENTENCEPIECE_MODEL
        if (folder / TOKENIZER_FILE).exists() and (folder / DICTIONARY_FILE).exists():
            return folder / TOKENIZER_FILE
    raise FileNotFoundError(
        f"there is no {SENTENCEPIECE_MODEL} in {', '.join(map(str, candidates))}, nor a {TOKENIZER_FILE} and dict.txt "
        "written by `maelm import`: copy the file that the corpus was prepared with into one of these folders"
    )


def find_dictionary(folders: Sequence[Path]) -> Path:
    """Return the first folder with a ``dict.txt`` among folders and their ``input0``, or raise FileNotFoundError."""
    for folder in _with_subfolders(folders):
        if (folder / DICTIONARY_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f"there is no {DICTIONARY_FILE} in {', '.join(map(str, dict.fromkeys(folders)))}: pass the folder that the "
        f"model was trained on as --vocabulary, or copy its {DICTIONARY_FILE} and {SENTENCEPIECE_MODEL} next to the "
        "checkpoint"
    )


def _with_subfolders(folders: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(candidate for folder in folders for candidate in (folder, folder / "input0")))
