"""Where the vocabulary of a checkpoint lies: in a folder that was named, or beside it."""

import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.tokenizer import find_imported_tokenizer
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE
from fairseq_maelm.text.vocabulary import MODEL_FILE as SENTENCEPIECE_MODEL


def find_tokenizer(folder: str, data: str) -> str:
    """Find what encodes text in the data folder or beside the checkpoint, there or in the folder ``input0`` of each.

    Returns:
        the path of an imported tokenizer.json, or of a sentencepiece model.

    Raises:
        FileNotFoundError: says where it was looked for.
    """
    places = list(dict.fromkeys([data, os.path.join(data, "input0"), folder, os.path.join(folder, "input0")]))
    for place in places:
        model = os.path.join(place, SENTENCEPIECE_MODEL)
        found = model if os.path.exists(model) else find_imported_tokenizer([place])
        if found is not None:
            return found
    raise FileNotFoundError(
        f"there is no {SENTENCEPIECE_MODEL} in {', '.join(places)}, and no {TOKENIZER_FILE} of `maelm import` with its "
        "dict.txt either: copy there what the corpus was prepared with"
    )


def find_dictionary(places: Sequence[Path]) -> Path:
    """Find the first of several folders that holds ``dict.txt``, itself or in its folder ``input0``.

    Raises:
        FileNotFoundError: says where it was looked for.
    """
    for place in places:
        for folder in (place, place / "input0"):
            if (folder / DICTIONARY_FILE).is_file():
                return folder
    raise FileNotFoundError(
        f"there is no {DICTIONARY_FILE} in {', '.join(map(str, dict.fromkeys(places)))}: give as --vocabulary the "
        f"folder that the model was trained on, or copy its {DICTIONARY_FILE} and {SENTENCEPIECE_MODEL} beside the "
        "checkpoint"
    )
