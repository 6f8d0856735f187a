"""Labels of texts by a checkpoint that was fine-tuned on labels, behind the hub interface."""

from typing import Any, List, NamedTuple, Sequence, Union

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.text.dictionary import class_names


class TextLabel(NamedTuple):
    """The class that a model finds most likely for a text.

    Attributes:
        label: its name.
        probability: in [0, 1], among all classes.
    """

    label: str
    probability: float


def classify(
    hub: Any, texts: Sequence[Union[str, Sequence[str]]], head: str, batch_size: int = 32
) -> Union[List[TextLabel], List[float]]:
    """Label texts or pairs of texts, or give each its number.

    Args:
        hub: ``MaelmHubInterface`` of a checkpoint of the task maelm_sentences, or of fairseq's sentence_prediction.
        texts: each a text or a pair; longer ones than the model has positions are cut as in training.
        head: name of the head.
        batch_size: texts at a time; those of near-equal length go together.

    Returns:
        for each text its most likely label; of a model of regression its value.
    """
    pairs = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    sequences = [hub.encode(*pair, max_length=hub.model.max_positions()).numpy() for pair in pairs]
    lengths = np.array([len(sequence) for sequence in sequences])
    order = np.argsort(-lengths, kind="stable")
    rows: List[Any] = [None] * len(sequences)
    with torch.no_grad():
        for begin in range(0, len(order), batch_size):
            places = order[begin : begin + batch_size]
            padded = pad_rows([sequences[place] for place in places], lengths[places], hub.dictionary.pad())
            logits: Tensor = hub.predict(head, torch.from_numpy(padded), return_logits=True)
            for place, row in zip(places, logits.float().cpu()):
                rows[place] = row
    if all(row.numel() == 1 for row in rows):  # there are two classes at least
        return [float(row) for row in rows]
    names = class_names(hub.task.label_dictionary)
    best = [row.softmax(dim=-1).max(dim=-1) for row in rows]
    return [TextLabel(names[int(index)], float(probability)) for probability, index in best]
