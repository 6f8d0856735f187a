"""Batches of prompts, and scores of labels from the model's logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.masking_variants import EncoderView, encoder_input_of_masks


def prompt_input(
    examples: Sequence[Sequence[np.ndarray]], symbols: Symbols, view: EncoderView, width: int | None = None
) -> dict[str, Any]:
    """Collate prompts into the model's input.

    An example has C sequences, one for each distinct number of pieces in label words. The batch has the first sequences
    of all examples, then their second sequences, and so on.

    Args:
        examples: for each example, the C sequences <int64>[n] of ``Prompter.encode``.
        symbols: ids of padding and <mask>.
        view: what the encoder sees at masks.
        width: the padded length, for few different shapes; None for that of the longest sequence.

    Returns:
        ``src_tokens``, ``src_lengths`` and ``layout`` of all sequences; predictions are made at masks only.
    """
    sequences = [example[variant] for variant in range(len(examples[0])) for example in examples]
    lengths = np.array([len(sequence) for sequence in sequences])
    tokens = pad_rows(sequences, lengths, symbols.pad, width)
    planned = None if width is None else 0
    return encoder_input_of_masks(tokens, lengths, tokens == symbols.mask, view, symbols.pad, planned)


def label_scores(logits: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """Return scores <float32>[B, K] of K labels for B examples.

    The score of a word with n pieces is the mean log-probability of its pieces in the sequence with n masks. If all
    words are single pieces, scores are logits instead: log-probabilities up to a constant per example.

    Args:
        logits: <float>[M, V] at the masks of ``prompt_input``'s batch, in order.
        pieces: token ids of each of the K label words.
    """
    counts = sorted({len(word) for word in pieces})
    examples = len(logits) // sum(counts)
    if counts == [1]:
        return torch.stack([logits[:, piece] for (piece,) in pieces], dim=1).float()
    blocks = dict(zip(counts, logits.split([examples * count for count in counts])))
    log_probabilities = {
        count: F.log_softmax(block.float(), dim=-1).view(examples, count, -1) for count, block in blocks.items()
    }
    each = [[log_probabilities[len(word)][:, at, piece] for at, piece in enumerate(word)] for word in pieces]
    return torch.stack([torch.stack(of_word).mean(dim=0) for of_word in each], dim=1)


def prompt_loss(scores: Tensor, target: Tensor, bounds: tuple[float, float] | None) -> Tensor:
    """Compute the loss of prompt-based fine-tuning, summed over examples, in nats.

    For classification it is the cross-entropy over the label words. For regression of y in [low, high] it is the
    divergence KL(q || p) of the words' probabilities p from q = (1 - t, t), t = (y - low) / (high - low), as in the
    equation of Gao et al.; their code instead passes q to a loss that expects log q (their issue 45).

    Args:
        scores: <float>[B, K].
        target: <float>[B] classes or numbers.
        bounds: bounds of the numbers; None for classification.
    """
    log_probabilities = F.log_softmax(scores, dim=-1)
    if bounds is None:
        return F.nll_loss(log_probabilities, target.long(), reduction="sum")
    upper = (target.to(log_probabilities) - bounds[0]) / (bounds[1] - bounds[0])
    return F.kl_div(log_probabilities, torch.stack([1 - upper, upper], dim=1), reduction="sum")


def predictions(scores: Tensor, bounds: tuple[float, float] | None) -> Tensor:
    """Turn scores <float>[B, K] into predictions <float>[B]: classes, or low + (high - low) p(second word)."""
    if bounds is None:
        return scores.argmax(dim=-1).float()
    return bounds[0] + (bounds[1] - bounds[0]) * scores.softmax(dim=-1)[:, 1]
