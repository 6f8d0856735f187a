"""The folder of the task ``maelm_squad``: contexts and questions as token ids, with the characters of each token.

The data do not depend on the sequence length or the stride, because windows are cut when the data are loaded. Each
split has two files: ``SPLIT.npz`` with the arrays for training, and ``SPLIT.json`` with the texts for scoring and
prediction.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.files.atomic import read_json, write_json
from fairseq_maelm.finetuning import task_folder
from fairseq_maelm.finetuning.squad.reading import SquadFile, read_squad
from fairseq_maelm.text.offsets import AlignedTokens, encodable
from fairseq_maelm.text.vocabulary import TextEncoder

logger = logging.getLogger(__name__)

PROBLEMS = "problems.json"
INSIDE_PIECES = "answers that begin or end inside a piece, so that predictions contain the whole piece"

_SHOWN = 3

# Stored instead of an answer's first and last piece.
NO_ANSWER = -1
NOT_LOCATED = -2


class Texts(NamedTuple):
    """The texts of a split."""

    version: str  # "1.1" or "2.0"
    contexts: list[str]
    identities: list[str]  # of the questions
    answers: list[list[str]] | None  # the right answers of each question; None if they are unknown


class PreparedSplit:
    """Q questions about C contexts as tokens; ``texts`` are the texts, or the file to read them from.

    ``arrays`` has ``context_tokens`` <uint16 or uint32>[pieces of all contexts]; ``context_begin`` and ``context_end``
    <int32>[pieces of all contexts] (see ``AlignedTokens``); ``context_start`` <int64>[C + 1], the first piece of each
    context; ``question_tokens`` and ``question_start``, the same for questions; ``question_context`` <int32>[Q], the
    index of each question's context; ``answers`` <int32>[Q, 2], the first and last piece (inclusive) of the first right
    answer in the context, or ``NO_ANSWER`` or ``NOT_LOCATED`` twice.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], texts: Texts | Path) -> None:
        self.arrays = arrays
        self.context_start = arrays["context_start"]
        self.question_start = arrays["question_start"]
        self.question_context = arrays["question_context"]
        self.answers = arrays["answers"]
        self.question_lengths = np.diff(self.question_start)
        # Pieces of each question's context.
        self.context_lengths = np.diff(self.context_start)[self.question_context]
        self._texts = texts

    @cached_property
    def texts(self) -> Texts:
        """The texts, read on first use."""
        return Texts(**read_json(self._texts)) if isinstance(self._texts, Path) else self._texts

    def __len__(self) -> int:
        return len(self.question_context)

    def question(self, number: int) -> NDArray[Any]:
        """Return the tokens [n] of a question."""
        return self.arrays["question_tokens"][self.question_start[number] : self.question_start[number + 1]]

    def context(self, number: int, name: str) -> NDArray[Any]:
        """Return ``tokens``, ``begin`` or ``end`` [pieces] of a context."""
        return self.arrays[f"context_{name}"][self.context_start[number] : self.context_start[number + 1]]

    def characters(self, question: int, first: int, last: int) -> tuple[int, int]:
        """Return the character span of pieces ``first`` to ``last`` (inclusive) in the question's context."""
        start = self.context_start[self.question_context[question]]
        return int(self.arrays["context_begin"][start + first]), int(self.arrays["context_end"][start + last])

    def answer_text(self, question: int, first: int, last: int) -> str:
        """Return the text of pieces ``first`` to ``last`` (inclusive) in the question's context."""
        return self.texts.contexts[self.question_context[question]][slice(*self.characters(question, first, last))]

    def answer_texts(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> list[str]:
        """Return ``answer_text`` for every question; ``first`` and ``last`` are [Q]."""
        return [self.answer_text(*pieces) for pieces in zip(range(len(self)), first.tolist(), last.tolist())]


def load_split(folder: Path | str, split: str) -> PreparedSplit:
    """Open a split of a prepared folder; errors are those of ``task_folder.load_split``."""
    return PreparedSplit(task_folder.load_split(Path(folder), "squad", split), Path(folder) / f"{split}.json")


def prepare_squad(
    files: Mapping[str, Path], vocabulary: Path, output: Path, allow_unknown: bool = False
) -> dict[str, Any]:
    """Prepare splits ("train", "valid", "test") and return the manifest; only a test split may lack answers."""
    write = partial(_write, files)
    return task_folder.prepare_task_folder(output, "squad", {}, files, vocabulary, write, allow_unknown=allow_unknown)


def _write(files: Mapping[str, Path], folder: Path, encoder: TextEncoder) -> dict[str, Any]:
    sources = {split: read_squad(path) for split, path in files.items()}
    for split, source in sources.items():
        if split != "test" and not source.has_answers:
            raise ValueError(f"{files[split]} has no answers: only --test may lack them")
    facts, problems = {}, {}
    for split, source in sources.items():
        prepared, inside = build_split(encoder, source, split)
        task_folder.save_split(folder, split, prepared.arrays)
        write_json(folder / f"{split}.json", prepared.texts._asdict())
        problems[split] = source.problems | ({INSIDE_PIECES: inside} if inside else {})
        facts[split] = _facts(split, source, prepared, problems[split])
    write_json(folder / PROBLEMS, problems)
    return {"splits": facts}


def build_split(encoder: TextEncoder, source: SquadFile, name: str | None = None) -> tuple[PreparedSplit, list[str]]:
    """Tokenize a file; return the split, and the ids of questions whose answer begins or ends inside a piece.

    ``name`` is the split's name for a progress bar; None shows no bar.
    """
    progress = tqdm(source.contexts, f"{name}: contexts", disable=name is None)
    contexts = list(map(encoder.encode_with_offsets, progress))
    for text, context in zip(source.contexts, contexts):
        if not (context.begin < context.end).any():
            raise ValueError(
                f"the context {text[:60]!r} has no text that an answer could be taken from: remove or replace this "
                "context"
            )
    # The end symbols are not stored.
    questions = [ids[:-1] for ids in encoder.encode([encodable(question.text) for question in source.questions])]
    answers, inside = _answer_pieces(source, contexts)
    arrays = {
        "context_tokens": np.concatenate([context.tokens for context in contexts]).astype(encoder.dtype),
        "context_begin": np.concatenate([context.begin for context in contexts]),
        "context_end": np.concatenate([context.end for context in contexts]),
        "context_start": np.cumsum([0, *(len(context.tokens) for context in contexts)], dtype=np.int64),
        "question_tokens": np.concatenate(questions),
        "question_start": np.cumsum([0, *map(len, questions)], dtype=np.int64),
        "question_context": np.array([question.context for question in source.questions], dtype=np.int32),
        "answers": answers,
    }
    right = [question.answers for question in source.questions]
    identities = [question.identity for question in source.questions]
    texts = Texts(source.version, source.contexts, identities, right if source.has_answers else None)
    return PreparedSplit(arrays, texts), inside


def token_span(begin: NDArray[np.int32], end: NDArray[np.int32], first: int, last: int) -> tuple[int, int] | None:
    """Return the first and last token (inclusive) that overlap, also partly, characters [``first``, ``last``), or None.

    ``begin`` and ``end`` [T] are those of ``AlignedTokens``.
    """
    first_token = int(np.searchsorted(end, first, side="right"))
    last_token = int(np.searchsorted(begin, last, side="left")) - 1
    return (first_token, last_token) if first_token <= last_token else None


def _answer_pieces(source: SquadFile, contexts: Sequence[AlignedTokens]) -> tuple[NDArray[np.int32], list[str]]:
    """Return each answer's first and last piece [Q, 2], and the ids of answers that begin or end inside a piece."""
    answers = np.full((len(source.questions), 2), NO_ANSWER, dtype=np.int32)
    inside = []
    for number, question in enumerate(source.questions):
        if question.impossible:
            continue
        aligned = contexts[question.context]
        found = token_span(aligned.begin, aligned.end, *question.span) if question.span else None
        answers[number] = NOT_LOCATED if found is None else found
        if found is not None and (aligned.begin[found[0]], aligned.end[found[1]]) != question.span:
            inside.append(question.identity)
    return answers, inside


def _facts(split: str, source: SquadFile, prepared: PreparedSplit, problems: Mapping[str, list[str]]) -> dict[str, Any]:
    """Log the counts and problems of a split, and return them for the manifest."""
    counts = {
        "contexts": len(source.contexts),
        "context_tokens": int(prepared.context_start[-1]),
        "questions": len(source.questions),
        "impossible": sum(question.impossible for question in source.questions),
        "not_located": int((prepared.answers[:, 0] == NOT_LOCATED).sum()),
    }
    described = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
    logger.info("%s: version %s, %s", split, source.version, described)
    for problem, identities in problems.items():
        log = logger.info if problem == INSIDE_PIECES else logger.warning
        shown = ", ".join(identities[:_SHOWN]) + (", ..." if len(identities) > _SHOWN else "")
        log("%s: %s %s (%s)", split, f"{len(identities):,}", problem, shown)
    found = {problem: len(identities) for problem, identities in problems.items()}
    return {"version": source.version, "has_answers": source.has_answers, **counts, "problems": found}
