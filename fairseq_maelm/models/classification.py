"""Score texts for the classes of a checkpoint that was fine-tuned on sentences."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.models.batched_inference import Places, predict
from fairseq_maelm.text.cleaning import checked_examples
from fairseq_maelm.text.dictionary import class_names


class TextLabel(NamedTuple):
    """The class that a model finds most likely for a text.

    Attributes:
        label: name of the class.
        probability: probability of the class, in [0, 1].
    """

    label: str
    probability: float


def is_multi_label(hub: Any) -> bool:
    """Return whether the checkpoint was fine-tuned on texts with any number of labels."""
    return getattr(hub.task, "label_separator", None) is not None


def find_head(model: Any, name: str) -> Any:
    """Return a head (a module) of a ``MaelmModel``; raise a ValueError if there is none of this name."""
    if name not in model.classification_heads:
        known = ", ".join(model.classification_heads) or "none"
        raise ValueError(f"the model has no head {name!r} (it has: {known})")
    return model.classification_heads[name]


def names_of_classes(hub: Any, head: str) -> list[str] | None:
    """Return the names of the classes that a head scores; None if it predicts a value.

    Raises:
        ValueError: there is no such head, or the checkpoint has no names of classes.
    """
    if find_head(hub.model, head).out_proj.out_features == 1:  # there are at least two classes
        return None
    dictionary = getattr(hub.task, "label_dictionary", None)
    if dictionary is None:
        raise ValueError(
            "the checkpoint has no names of classes, because it was not fine-tuned by the task maelm_sentences: use "
            "predict(head, tokens), which scores classes by index"
        )
    return class_names(dictionary)


def score_texts(
    hub: Any, texts: Sequence[str | Sequence[str]], head: str, batch_size: int = 32, progress: str | None = None
) -> Tensor:
    """Score texts or pairs of texts.

    Args:
        hub: ``MaelmHubInterface`` of a checkpoint of the task maelm_sentences, or of fairseq's sentence_prediction.
        texts: texts or pairs. Texts longer than the maximum length of training, or of the model, are truncated as in
            training.
        head: name of the head.
        batch_size: texts in a batch; texts of similar length share a batch.
        progress: label of a progress bar; None for no bar.

    Returns:
        logits <float32>[n, classes], or values <float32>[n, 1] of a regression, on the CPU.

    Raises:
        ValueError: the checkpoint was trained on pairs and a text is single, or vice versa.
    """
    # The task's limit is that of training, which may be lower than the model's.
    limit, examples = min(hub.model.max_positions(), hub.task.max_positions()), checked_examples(texts)
    expected = getattr(hub.task.cfg, "texts", None)
    if expected and any(len(example) != expected for example in examples):
        form = "single texts, not tuples of two" if expected == 1 else "pairs: give tuples of two texts"
        raise ValueError(f"the checkpoint was trained on {form}")
    sequences = [hub.encode(*example, max_length=limit, masks=False).numpy() for example in examples]
    lengths = np.array([len(sequence) for sequence in sequences])

    def collate(places: Places) -> Tensor:
        rows = [sequences[place] for place in places]
        return torch.from_numpy(pad_rows(rows, lengths[places], hub.dictionary.pad()))

    def forward(tokens: Tensor) -> Tensor:
        return hub.predict(head, tokens, return_logits=True).float().cpu()

    rows = predict(hub.model, lengths, collate, forward, batch_size=batch_size, progress=progress)
    return torch.stack(rows) if rows else torch.empty(0, 1)
