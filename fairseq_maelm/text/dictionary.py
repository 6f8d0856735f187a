"""Loading the dictionary of a prepared folder, and refusing one that does not belong to it."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from fairseq_maelm.files import read_json, sha256_of
from fairseq_maelm.text.offsets import WORD_START
from fairseq_maelm.text.vocabulary import MASK_SYMBOL as MASK
from fairseq_maelm.text.vocabulary import MODEL_FILE as SENTENCEPIECE_MODEL
from fairseq_maelm.text.vocabulary import dictionary_symbols, load_sentencepiece

# The tokens from the start of the text that frequencies are counted from; more of them change nothing that matters.
_COUNTED_TOKENS = 20_000_000


def load_dictionary(folder: str) -> Dictionary:
    """Read ``dict.txt`` and append ``<mask>``.

    Raises:
        FileNotFoundError: if there is no dict.txt.
        ValueError: if the folder's manifest or sentencepiece model show that dict.txt belongs to other data.
    """
    path = os.path.join(folder, "dict.txt")
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"there is no dict.txt in {folder}: give the folder that `maelm prepare corpus` wrote, or copy the "
            "dictionary that the text was binarized with"
        )
    dictionary = Dictionary.load(path)
    _check_manifest(folder, path)
    _check_sentencepiece(folder, dictionary)
    dictionary.add_symbol(MASK)
    return dictionary


def class_names(dictionary: Dictionary) -> list[str]:
    """Return the labels of a dictionary of labels in the order of their classes, which begin after the special symbols.

    fairseq appends <mask> to it, and its preprocessing fills dictionaries up with made-up words.
    """
    labels = dictionary.symbols[dictionary.nspecial :]
    return [label for label in labels if label != MASK and not label.startswith("madeupword")]


def check_shards(folders: Sequence[str]) -> None:
    """Refuse shards that were not prepared together: a shard is opened only in its epoch, which may be days away.

    Raises:
        FileNotFoundError: if a folder is missing.
        ValueError: if its dict.txt is not the first folder's.
    """
    contents = []
    for folder in folders:
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder}; the data were given as {os.pathsep.join(folders)}")
        path = os.path.join(folder, "dict.txt")
        if os.path.exists(path):
            with open(path, "rb") as file:
                contents.append((path, file.read()))
    for path, content in contents[1:]:
        if content != contents[0][1]:
            raise ValueError(
                f"{path} is not {contents[0][0]}: the shards of a corpus must share one dictionary. Prepare them "
                "together, by `maelm prepare corpus --shards`, or with the first one's sentencepiece.bpe.model"
            )


def _check_manifest(folder: str, dictionary_path: str) -> None:
    manifest = Path(folder, "manifest.json")
    if not manifest.exists():
        return
    outputs = read_json(manifest).get("outputs", {})
    # In a corpus of several shards, every shard has the same dictionary and the names of all in its manifest.
    sums = {facts["sha256"] for name, facts in dict(outputs).items() if name.split("/")[-1] == "dict.txt"}
    if not sums:
        raise ValueError(
            f"{manifest} is damaged: it knows no dict.txt; put the original back, or prepare the text again"
        )
    if sha256_of(Path(dictionary_path)) not in sums:
        raise ValueError(
            f"{dictionary_path} is not the dictionary that {folder} was prepared with (its sha256 differs from the one "
            "in manifest.json): put the original back, or prepare the text again"
        )


def _check_sentencepiece(folder: str, dictionary: Dictionary) -> None:
    model = Path(folder, SENTENCEPIECE_MODEL)
    if not model.exists():
        return
    pieces = set(dictionary_symbols(load_sentencepiece(model)))
    symbols = set(dictionary.symbols[dictionary.nspecial :])
    missing, surplus = pieces - symbols, {symbol for symbol in symbols - pieces if "madeupword" not in symbol}
    if missing or surplus:
        example = repr(sorted(missing or surplus)[0])
        raise ValueError(
            f"dict.txt and {SENTENCEPIECE_MODEL} in {folder} do not belong together: {len(missing)} pieces of the "
            f"model are not in dict.txt and {len(surplus)} of its symbols are no pieces (for example {example}). "
            "dict.txt must be made from the model, as `maelm prepare corpus` does, and not from counts over a text"
        )


def real_tokens(dictionary: Dictionary) -> np.ndarray:
    """Return <int64>[R], the symbols of real text: neither fairseq's special symbols nor <mask>."""
    tokens = np.arange(dictionary.nspecial, len(dictionary))
    return tokens[tokens != dictionary.index(MASK)]


def word_starts(dictionary: Dictionary) -> np.ndarray:
    """Return <bool>[V], True for pieces that begin a word and for special symbols, which are words of their own.

    Raises:
        ValueError: if no piece says that it begins a word, as in vocabularies that are not of sentencepiece.
    """
    starts = np.array([symbol.startswith(WORD_START) for symbol in dictionary.symbols])
    if not starts.any():
        raise ValueError(
            f"--mask-whole-words finds words by the {WORD_START} in front of sentencepiece's pieces, and no symbol of "
            "dict.txt has one: leave it out"
        )
    starts[: dictionary.nspecial] = True
    starts[dictionary.index(MASK)] = True
    return starts


def special_tokens(dictionary: Dictionary) -> np.ndarray:
    """Return <bool>[V], True for fairseq's special symbols and <mask>."""
    special = np.ones(len(dictionary), dtype=bool)
    special[real_tokens(dictionary)] = False
    return special


def log_frequencies(text: np.ndarray, blocks: int, dictionary: Dictionary) -> np.ndarray:
    """Return the logarithm <float32>[V] of each symbol's share of a text <int>[tokens], every count raised by one.

    Each of the ``blocks`` that the text is cut into has ``<s>`` in front, which the text itself does not hold.
    """
    counted = text[:_COUNTED_TOKENS]
    counts = np.bincount(counted, minlength=len(dictionary)) + 1.0
    counts[dictionary.bos()] += blocks * len(counted) / len(text)
    return np.log(counts / counts.sum()).astype(np.float32)
