"""Decode answers from the start and end scores of tokens."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


class WindowSpans(NamedTuple):
    """The K best answers of B windows, sorted from best to worst."""

    first: Tensor  # <int64>[B, K] position of the first token
    last: Tensor  # <int64>[B, K] position of the last token, not before the first
    score: Tensor  # <float32>[B, K] sum of the start and end logits; -inf if a window has fewer answers
    null: Tensor  # <float32>[B] the same sum at position 0, which stands for no answer


# An answer in a window: its first and last context piece, its score, and the window's score of no answer.
WINDOW_DTYPE = np.dtype(
    [("window", "<i4"), ("first", "<i4"), ("last", "<i4"), ("score", "<f4"), ("null", "<f4")],
)


def best_spans(
    logits: Tensor, context_mask: Tensor, start_mask: Tensor, n_best: int, max_answer_length: int, kept: int
) -> WindowSpans:
    """Choose the K = ``kept`` best answers of each window, of at most ``max_answer_length`` tokens.

    As in BERT's code, the ``n_best`` best starts are combined with ends. BERT's code only considers the best ends in
    the window; here all ends near enough are considered, so that every window with a possible answer yields an answer.

    ``logits`` <float>[B, S, 2] are the scores of every token as start and as end. ``context_mask`` <bool>[B, S] is True
    at tokens that may be an end, and ``start_mask``, a subset, at those that may be a start.
    """
    logits = logits.float()
    start_logits = logits[..., 0].masked_fill(~start_mask, -torch.inf)
    end_logits = logits[..., 1].masked_fill(~context_mask, -torch.inf)
    length = logits.shape[1]
    start_scores, starts = start_logits.topk(min(n_best, length), dim=1)
    ends = starts[:, :, None] + torch.arange(max_answer_length, device=logits.device)
    end_scores = end_logits.gather(1, ends.clamp(max=length - 1).flatten(1)).view(ends.shape)
    scores = (start_scores[:, :, None] + end_scores).masked_fill(ends >= length, -torch.inf).flatten(1)
    score, chosen = F.pad(scores, (0, max(0, kept - scores.shape[1])), value=-torch.inf).topk(kept, dim=1)
    chosen = chosen.clamp(max=scores.shape[1] - 1)
    first = starts.gather(1, chosen // max_answer_length)
    last = ends.flatten(1).gather(1, chosen).clamp(max=length - 1)
    return WindowSpans(first, last, score, logits[:, 0].sum(dim=1))


def window_rows(logits: Tensor, batch: Mapping[str, Any], cfg: Any, kept: int) -> NDArray[np.void]:
    """Return the K = ``kept`` best answers <WINDOW_DTYPE>[B, K] of windows, as spans of context pieces.

    ``logits`` are <float>[B, S, 2]; ``batch`` comes from a ``SquadDataset`` with ``training=False``.
    """
    spans = best_spans(logits, batch["context_mask"], batch["start_mask"], cfg.n_best, cfg.max_answer_length, kept)
    shift = batch["shift"][:, None]
    columns = (batch["id"][:, None], spans.first + shift, spans.last + shift, spans.score, spans.null[:, None])
    rows = np.empty(spans.score.shape, dtype=WINDOW_DTYPE)
    for name, column in zip(WINDOW_DTYPE.names or (), columns):
        rows[name] = column.cpu().numpy()
    return rows


def best_of_questions(rows: NDArray[np.void], first_window: NDArray[np.int64]) -> NDArray[np.void]:
    """Choose each question's best answer <WINDOW_DTYPE>[Q] from its windows' answers <WINDOW_DTYPE>[W].

    ``first_window`` [Q + 1] is the index of each question's first window, then W. A question's score of no answer is
    the minimum over its windows.
    """
    if len(rows) != first_window[-1] or (rows["window"] != np.arange(len(rows))).any():
        raise ValueError(f"{len(rows)} windows were scored, but there are {first_window[-1]}")
    starts = first_window[:-1]
    question = np.repeat(np.arange(len(starts)), np.diff(first_window))
    # The last key is the primary one: by question, then by descending score, then by window.
    order = np.lexsort((rows["window"], -rows["score"].astype(np.float64), question))
    best = rows[order[starts]]
    best["null"] = np.minimum.reduceat(rows["null"], starts)
    return best


def null_odds(best: NDArray[np.void]) -> NDArray[np.float64]:
    """Return the score of no answer minus the score of the best answer [Q], in logits."""
    return best["null"].astype(np.float64) - best["score"]
