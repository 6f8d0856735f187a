"""Preparing SQuAD: files in, a folder for the task ``maelm_squad`` out."""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.files import sha256_of, write_json
from fairseq_maelm.finetuning.squad.offsets import AlignedTokens, Aligner, token_span
from fairseq_maelm.finetuning.squad.prepared import NO_ANSWER, NOT_LOCATED, PreparedSplit, Texts
from fairseq_maelm.finetuning.squad.reading import SquadFile, read_squad
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, FAIRSEQ_SYMBOLS, MODEL_FILE, UNKNOWN, load_sentencepiece

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
PROBLEMS = "problems.json"
INSIDE_PIECES = "answers that begin or end inside a piece, whose whole piece belongs to the predicted text"

_QUESTIONS_AT_A_TIME = 4096
_SHOWN = 3


def prepare_squad(files: Mapping[str, Path], data: Path, output: Path) -> dict[str, Any]:
    """Prepare splits of SQuAD with the vocabulary of a data folder.

    Everything is read and checked before anything is written, and the folder gets its name when it is complete.

    Args:
        files: split ("train", "valid", "test") -> JSON file.
        data: folder with ``sentencepiece.bpe.model`` and ``dict.txt``, as `maelm prepare` writes it.
        output: the new folder.

    Returns:
        the manifest, as it is written.

    Raises:
        OSError: if a file is missing.
        ValueError: if a file is not in the layout of SQuAD, a split that needs answers has none, the vocabulary does
            not fit together, or ``output`` exists.
    """
    if output.exists():
        raise ValueError(f"{output} exists already: name another folder, or remove it first")
    aligner, symbols = load_aligner(data)
    sources = {split: read_squad(path) for split, path in files.items()}
    for split, source in sources.items():
        if split != "test" and not source.has_answers:
            raise ValueError(f"{files[split]} has no answers: give it as --test, which needs none")
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in (DICTIONARY_FILE, MODEL_FILE):
        shutil.copy(data / name, partial)
    facts, problems = {}, {}
    for split, source in sources.items():
        prepared, inside = build_split(aligner, source, np.uint16 if symbols < 2**16 else np.int32, split)
        prepared.save(partial, split)
        problems[split] = source.problems | ({INSIDE_PIECES: inside} if inside else {})
        facts[split] = _facts(files[split], source, prepared, problems[split])
        _report(split, facts[split], problems[split])
    write_json(partial / PROBLEMS, problems)
    outputs = {path.name: {"sha256": sha256_of(path)} for path in sorted(partial.iterdir())}
    manifest = {"splits": facts, "outputs": outputs}
    write_json(partial / MANIFEST, manifest)
    os.rename(partial, output)
    return manifest


def load_aligner(data: Path) -> tuple[Aligner, int]:
    """Read the vocabulary of a data folder.

    Returns:
        what cuts texts into its tokens, and the number of symbols of ``dict.txt`` with fairseq's special ones.

    Raises:
        OSError: if a file is missing.
        ValueError: if the two files do not belong together.
    """
    lines = (data / DICTIONARY_FILE).read_text(encoding="utf-8").splitlines()
    symbols = [*FAIRSEQ_SYMBOLS, *(line.rsplit(" ", 1)[0] for line in lines)]
    return Aligner.from_symbols(load_sentencepiece(data / MODEL_FILE), symbols, UNKNOWN), len(symbols)


def build_split(
    aligner: Aligner, source: SquadFile, dtype: type, name: str | None = None
) -> tuple[PreparedSplit, list[str]]:
    """Turn a file's texts into tokens.

    Args:
        aligner: of the vocabulary.
        source: the file.
        dtype: integer type that holds the vocabulary.
        name: of the split, for the progress bar; None shows none.

    Returns:
        the split, and the ids of questions whose answer begins or ends inside a piece.

    Raises:
        ValueError: if a context has no piece that stands for any of its characters.
    """
    contexts = [
        _aligned(aligner, context) for context in tqdm(source.contexts, f"{name}: contexts", disable=name is None)
    ]
    questions: list[NDArray[np.int64]] = []
    for begin in range(0, len(source.questions), _QUESTIONS_AT_A_TIME):
        some = source.questions[begin : begin + _QUESTIONS_AT_A_TIME]
        questions += aligner.tokens([question.text for question in some])
    answers, inside = _answer_pieces(source, contexts)
    arrays = {
        "context_tokens": _flat([context.tokens for context in contexts], dtype),
        "context_begin": _flat([context.begin for context in contexts], np.int32),
        "context_end": _flat([context.end for context in contexts], np.int32),
        "context_start": _starts([context.tokens for context in contexts]),
        "question_tokens": _flat(questions, dtype),
        "question_start": _starts(questions),
        "question_context": np.array([question.context for question in source.questions], dtype=np.int32),
        "answers": answers,
    }
    texts = Texts(
        source.version,
        source.contexts,
        [question.identity for question in source.questions],
        [[answer.text for answer in question.answers] for question in source.questions] if source.has_answers else None,
    )
    return PreparedSplit(arrays, texts), inside


def _answer_pieces(source: SquadFile, contexts: Sequence[AlignedTokens]) -> tuple[NDArray[np.int32], list[str]]:
    """First and last piece <int32>[Q, 2] of each question's answer, and the ids of those that reach into a piece."""
    answers = np.full((len(source.questions), 2), NO_ANSWER, dtype=np.int32)
    inside = []
    for number, question in enumerate(source.questions):
        if question.impossible:
            continue
        spans = [answer.span for answer in question.answers if answer.span is not None]
        aligned = contexts[question.context]
        found = token_span(aligned.begin, aligned.end, *spans[0]) if spans else None
        answers[number] = NOT_LOCATED if found is None else found
        if found is not None and (aligned.begin[found[0]], aligned.end[found[1]]) != spans[0]:
            inside.append(question.identity)
    return answers, inside


def _aligned(aligner: Aligner, context: str) -> AlignedTokens:
    aligned = aligner.align(context)
    if not (aligned.begin < aligned.end).any():
        raise ValueError(f"the context {context[:60]!r} has no character that could be an answer: remove it")
    return aligned


def _flat(parts: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts]).astype(dtype)


def _starts(parts: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)


def _facts(path: Path, source: SquadFile, prepared: PreparedSplit, problems: Mapping[str, list[str]]) -> dict[str, Any]:
    return {
        "file": path.name,
        "sha256": sha256_of(path),
        "version": source.version,
        "has_answers": source.has_answers,
        "contexts": len(source.contexts),
        "context_tokens": int(prepared.context_start[-1]),
        "questions": len(source.questions),
        "impossible": sum(question.impossible for question in source.questions),
        "not_located": int((prepared.answers[:, 0] == NOT_LOCATED).sum()),
        "problems": {problem: len(identities) for problem, identities in problems.items()},
    }


def _report(split: str, facts: Mapping[str, Any], problems: Mapping[str, list[str]]) -> None:
    logger.info(
        "%s: version %s, %s contexts of %s tokens, %s questions, %s of them impossible",
        *(split, facts["version"], f"{facts['contexts']:,}", f"{facts['context_tokens']:,}"),
        *(f"{facts['questions']:,}", f"{facts['impossible']:,}"),
    )
    for problem, identities in problems.items():
        log = logger.info if problem == INSIDE_PIECES else logger.warning
        shown = ", ".join(identities[:_SHOWN]) + (", ..." if len(identities) > _SHOWN else "")
        log("%s: %s %s (%s)", split, f"{len(identities):,}", problem, shown)
    if facts["not_located"] and split == "train":
        logger.warning(
            "train: %s questions have an answer that no piece of their context holds; training leaves them out",
            f"{facts['not_located']:,}",
        )
