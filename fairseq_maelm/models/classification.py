"""Score texts by a checkpoint that was fine-tuned on sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.models.batched_inference import Places, predict
from fairseq_maelm.models.labels import Classes, Numbers
from fairseq_maelm.text.cleaning import checked_examples


def find_head(model: Any, name: str) -> Any:
    """Return a head (a module) of a ``MaelmModel``; raise a ValueError if there is none of this name."""
    if name not in model.classification_heads:
        known = ", ".join(model.classification_heads) or "none"
        raise ValueError(f"the model has no head {name!r} (it has: {known})")
    return model.classification_heads[name]


def labels_of_head(hub: Any, head: str) -> Classes | Numbers:
    """Return what a sentence head's outputs stand for; raise a ValueError without such a head or names of classes."""
    labels = hub.labels
    if find_head(hub.model, head).out_proj.out_features == 1:  # there are at least two classes
        return labels if isinstance(labels, Numbers) else Numbers()
    if not isinstance(labels, Classes):
        raise ValueError(
            "the checkpoint has no names of classes, because it was not fine-tuned by the task maelm_sentences: use "
            "predict(head, tokens), which scores classes by index"
        )
    return labels


def score_texts(
    hub: Any, texts: Sequence[str | Sequence[str]], head: str, batch_size: int = 32, progress: str | None = None
) -> Tensor:
    """Return the logits of texts or pairs <float32>[n, classes], or <float32>[n, 1] of a regression, on the CPU.

    ``hub`` has a checkpoint of the task maelm_sentences or of fairseq's sentence_prediction; ``hub.labels`` turns
    logits into answers. Texts longer than ``hub.limits`` are truncated as in training; those of similar length share a
    batch. ``progress`` is the label of a progress bar. A ValueError says that a text is single where training had
    pairs, or vice versa.
    """
    limits, examples = hub.limits, checked_examples(texts)
    if limits.texts and any(len(example) != limits.texts for example in examples):
        form = "single texts, not tuples of two" if limits.texts == 1 else "pairs: give tuples of two texts"
        raise ValueError(f"the checkpoint was trained on {form}")
    sequences = [hub.encode(*example, max_length=limits.tokens, masks=False).numpy() for example in examples]
    lengths = np.array([len(sequence) for sequence in sequences])

    def collate(places: Places) -> Tensor:
        rows = [sequences[place] for place in places]
        return torch.from_numpy(pad_rows(rows, lengths[places], hub.dictionary.pad()))

    def forward(tokens: Tensor) -> Tensor:
        return hub.predict(head, tokens, return_logits=True).float().cpu()

    rows = predict(hub.model, lengths, collate, forward, batch_size=batch_size, progress=progress)
    return torch.stack(rows) if rows else torch.empty(0, 1)
