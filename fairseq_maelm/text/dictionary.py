"""Loading and checking of a data folder's dictionary; classes and frequencies of its symbols."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from fairseq_maelm.files.atomic import read_json, refuse_special_files, sha256_of
from fairseq_maelm.text.vocabulary import MASK_SYMBOL as MASK
from fairseq_maelm.text.vocabulary import MODEL_FILE as SENTENCEPIECE_MODEL
from fairseq_maelm.text.vocabulary import dictionary_symbols, load_sentencepiece

# Rows without a token have names of this form, as in fairseq's dictionaries.
FILLER = "madeupword"
# Frequencies are counted on the first tokens of the text; more tokens hardly change them.
_COUNTED_TOKENS = 20_000_000


def load_dictionary(folder: str) -> Dictionary:
    """Read ``dict.txt``, check it against the folder's manifest and sentencepiece model, and append ``<mask>``."""
    path = os.path.join(folder, "dict.txt")
    if not os.path.exists(folder):
        raise FileNotFoundError(f"there is no folder {folder}")
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"there is no dict.txt in {folder}: give the folder that `maelm prepare corpus` wrote, or copy "
            "into this folder the dictionary that the text was binarized with"
        )
    refuse_special_files(Path(folder, name) for name in ("dict.txt", "manifest.json", SENTENCEPIECE_MODEL))
    dictionary = Dictionary.load(path)
    _check_manifest(folder, path)
    _check_sentencepiece(folder, dictionary)
    if dictionary.add_symbol(MASK) != len(dictionary) - 1:
        raise ValueError(
            f"{path} lists {MASK} in line {dictionary.index(MASK) - dictionary.nspecial + 1}, but it must be the last "
            "symbol or absent: remove the line, and binarize the text with the new file"
        )
    return dictionary


def class_names(dictionary: Dictionary) -> list[str]:
    """Return the labels in a label dictionary, ordered by class index."""
    # <mask> and the filler words of fairseq-preprocess are not labels.
    labels = dictionary.symbols[dictionary.nspecial :]
    return [label for label in labels if label != MASK and not label.startswith(FILLER)]


def check_shards(folders: Sequence[str]) -> None:
    """Check all shards of a corpus before training, since each is opened only in its epoch, perhaps days later."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder} (the data argument is {os.pathsep.join(folders)})")
    dictionaries = [path for path in (Path(folder, "dict.txt") for folder in folders) if path.exists()]
    for path in dictionaries[1:]:
        if path.read_bytes() != dictionaries[0].read_bytes():
            raise ValueError(
                f"{path} differs from {dictionaries[0]}: the shards of a corpus must share one dictionary. Prepare "
                "them together, by `maelm prepare corpus --shards`, or with the first shard's sentencepiece.bpe.model"
            )


def _check_manifest(folder: str, dictionary_path: str) -> None:
    manifest = Path(folder, "manifest.json")
    if not manifest.exists():
        return
    outputs = read_json(manifest).get("outputs", {})
    # Each shard's manifest lists the files of all shards.
    sums = {facts["sha256"] for name, facts in dict(outputs).items() if name.split("/")[-1] == "dict.txt"}
    if not sums:
        raise ValueError(
            f"{manifest} is damaged: it does not list dict.txt. Restore the original, or prepare the text again"
        )
    if sha256_of(Path(dictionary_path)) not in sums:
        raise ValueError(
            f"{dictionary_path} is not the dictionary that {folder} was prepared with (its sha256 differs from the one "
            "in manifest.json): restore the original, or prepare the text again"
        )


def _check_sentencepiece(folder: str, dictionary: Dictionary) -> None:
    model = Path(folder, SENTENCEPIECE_MODEL)
    if not model.exists():
        return
    pieces = set(dictionary_symbols(load_sentencepiece(model)))
    symbols = set(dictionary.symbols[dictionary.nspecial :])
    missing, surplus = pieces - symbols, {symbol for symbol in symbols - pieces if FILLER not in symbol}
    if missing or surplus:
        example = repr(sorted(missing or surplus)[0])
        raise ValueError(
            f"dict.txt and {SENTENCEPIECE_MODEL} in {folder} do not belong together: {len(missing)} pieces of the "
            f"model are not in dict.txt, and {len(surplus)} symbols of dict.txt are not pieces of the model (for "
            f"example {example}). dict.txt must be made from the model, as `maelm prepare corpus` does, not from "
            "counts over a text"
        )


def special_tokens(dictionary: Dictionary) -> np.ndarray:
    """Return <bool>[V], True for fairseq's special symbols and <mask>."""
    tokens = np.arange(len(dictionary))
    return (tokens < dictionary.nspecial) | (tokens == dictionary.index(MASK))


def real_tokens(dictionary: Dictionary) -> np.ndarray:
    """Return the token ids <int64>[R] of ordinary text: all but fairseq's special symbols and <mask>."""
    return np.flatnonzero(~special_tokens(dictionary))


def log_frequencies(text: np.ndarray, blocks: int, dictionary: Dictionary) -> np.ndarray:
    """Return each symbol's log relative frequency <float32>[V] in a text <int>[tokens], with add-one smoothing.

    The text contains no ``<s>``, so one ``<s>`` per block is added to the counts.
    """
    counted = text[:_COUNTED_TOKENS]
    counts = np.bincount(counted, minlength=len(dictionary)) + 1.0
    counts[dictionary.bos()] += blocks * len(counted) / len(text)
    return np.log(counts / counts.sum()).astype(np.float32)
