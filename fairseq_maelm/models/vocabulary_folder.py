"""Find the vocabulary of a checkpoint: in a given folder, or next to the checkpoint."""

import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE
from fairseq_maelm.text.vocabulary import MODEL_FILE as SENTENCEPIECE_MODEL


def find_tokenizer(folder: str, data: str) -> str:
    """Find the tokenizer in the data folder, the checkpoint's folder, or their subfolders ``input0``.

    Returns:
        The path of an imported tokenizer.json or of a sentencepiece model.

    Raises:
        FileNotFoundError: there is no tokenizer; the message names the folders.
    """
    places = list(dict.fromkeys([data, os.path.join(data, "input0"), folder, os.path.join(folder, "input0")]))
    for place in places:
        model, tokenizer = os.path.join(place, SENTENCEPIECE_MODEL), os.path.join(place, TOKENIZER_FILE)
        if os.path.exists(model):
            return model
        if os.path.exists(tokenizer) and os.path.exists(os.path.join(place, DICTIONARY_FILE)):
            return tokenizer
    raise FileNotFoundError(
        f"there is no {SENTENCEPIECE_MODEL} in {', '.join(places)}, nor a {TOKENIZER_FILE} and dict.txt written by "
        "`maelm import`: copy the file that the corpus was prepared with into one of these folders"
    )


def find_dictionary(places: Sequence[Path]) -> Path:
    """Return the first folder with a ``dict.txt``, among the given folders and their subfolders ``input0``.

    Raises:
        FileNotFoundError: no folder has one; the message names the folders.
    """
    for place in places:
        for folder in (place, place / "input0"):
            if (folder / DICTIONARY_FILE).is_file():
                return folder
    raise FileNotFoundError(
        f"there is no {DICTIONARY_FILE} in {', '.join(map(str, dict.fromkeys(places)))}: pass the folder that the "
        f"model was trained on as --vocabulary, or copy its {DICTIONARY_FILE} and {SENTENCEPIECE_MODEL} next to the "
        "checkpoint"
    )
