"""Readers for the inputs to ``maelm probe``, which are all read before any model runs."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm.analysis.probes.tasks import (
    Classification,
    Labeled,
    Pairs,
    RepeatedWords,
    Repetition,
    Search,
    Similarity,
    Tagged,
    Tagging,
    Task,
    TokenStates,
)
from fairseq_maelm.analysis.settings import PASSAGE, ProbeSettings
from fairseq_maelm.corpus.tables import Columns, Example, read_table
from fairseq_maelm.files.conll import Layout, Sentence, read
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import open_tokenizer

# Number of a passage's first words, the search query; smallest distance in words between occurrences of a word.
_SHORT, _DISTANCE = 16, 6


def read_tasks(settings: ProbeSettings) -> list[Task]:
    """Read all inputs; raise a ValueError or an OSError for a missing or invalid file."""
    tasks: list[Task] = [] if settings.sts is None else list(_read_sts(settings.sts))
    if settings.words is not None:
        files = _tables(settings.words)
        parts = {file.stem: _read_pairs(file, score_first=False) for file in files}
        tasks.append(Similarity("words", files, parts, together=False))
    tasks += [_read_task(folder, settings) for folder in settings.tasks]
    if settings.treebank:
        tasks.append(_read_treebank(settings))
    if settings.text is not None:
        tasks += _read_text(settings.text, settings)
    names = Counter(task.name for task in tasks)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"two inputs are named {twice[0]}: rename one folder, since results are named after folders")
    return tasks


def _tables(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.tsv"))
    if not files:
        raise ValueError(f"there is no .tsv file in {folder}")
    return files


def _read_sts(folder: Path) -> Iterator[Similarity]:
    folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    # The folder may also be that of a single set.
    for each in folders or [folder]:
        files = _tables(each)
        parts = {file.stem: _read_pairs(file, score_first=True) for file in files}
        yield Similarity(f"sts-{each.name}", files, parts, together=True)


def _read_pairs(path: Path, score_first: bool) -> Pairs:
    columns = Columns("1", "2", "0") if score_first else Columns("0", "1", "2")
    examples = list(read_table(path, columns))
    scores = np.array([_score(each, score_first) for each in examples])
    if len(scores) < 2:
        raise ValueError(f"{path} has {len(scores)} pairs: a correlation needs two or more")
    return Pairs([each.texts[0] for each in examples], [each.texts[1] for each in examples], scores)


def _score(example: Example, score_first: bool) -> float:
    try:
        score = float(str(example.label))
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        layout = "score, tab, sentence, tab, sentence" if score_first else "word, tab, word, tab, score"
        raise ValueError(
            f"{example.place} has the score {example.label!r}, which is not a finite number: each line must be {layout}"
        )
    return score


def _read_task(folder: Path, settings: ProbeSettings) -> Task:
    """Read a task folder, and decode its texts so that every encoder can tokenize them with its own vocabulary."""
    is_task = all((folder / "input0" / f"{split}.idx").is_file() for split in ("train", "valid"))
    if not is_task or not (folder / "label").is_dir():
        raise ValueError(
            f"{folder} is not a task folder of `maelm prepare sentences` or `maelm prepare glue`: it lacks "
            "input0/train.idx, input0/valid.idx or label"
        )
    files = sorted(path for path in folder.rglob("*.*") if path.stem in ("train", "valid", "dict"))
    if not (folder / "label" / "dict.txt").is_file():
        columns = _texts(folder, "valid")
        if len(columns) != 2:
            raise ValueError(
                f"{folder} has scores of single texts, which cannot be probed: give task folders with scores of "
                "pairs, or with classes"
            )
        scores = np.loadtxt(folder / "label" / "valid.label", ndmin=1)
        return Similarity(folder.name, files, {"valid": Pairs(columns[0], columns[1], scores)}, together=True)
    train, test = (_labels(folder, split) for split in ("train", "valid"))
    drawn = np.sort(np.random.default_rng(settings.seed).permutation(len(train))[: settings.train_rows])
    if len(np.unique(train[drawn])) < 2:
        raise ValueError(
            f"the {len(drawn)} training examples drawn from {folder} all have the same label: raise --train-rows"
        )
    fitted = Labeled(_texts(folder, "train", drawn), train[drawn])
    return Classification(folder.name, files, fitted, Labeled(_texts(folder, "valid"), test))


def _labels(folder: Path, split: str) -> Any:
    symbols = Dictionary.load(str(folder / "label" / "dict.txt")).nspecial
    return np.array([int(row[0]) for row in MMapIndexedDataset(str(folder / "label" / split))]) - symbols


def _texts(folder: Path, split: str, chosen: Any | None = None) -> list[list[str]]:
    tokenizer = open_tokenizer(find_tokenizer(str(folder), str(folder)), load_dictionary(str(folder / "input0")))
    columns = []
    for name in ("input0", "input1"):
        if (folder / name / f"{split}.idx").is_file():
            stored = MMapIndexedDataset(str(folder / name / split))
            numbers = range(len(stored)) if chosen is None else chosen
            columns.append([tokenizer.decode(stored[int(number)].tolist()) for number in numbers])
    return columns


def _read_treebank(settings: ProbeSettings) -> Tagging:
    train, test = settings.treebank
    layout = Layout("conllu", "UPOS")
    sentences = read(train, layout).sentences
    drawn, words = [], 0
    for number in np.random.default_rng(settings.seed).permutation(len(sentences)).tolist():
        drawn.append(sentences[number])
        words += len(sentences[number].words)
        if words >= settings.train_words:
            break
    return Tagging("tagging", [train, test], _tagged(drawn), _tagged(read(test, layout).sentences))


def _tagged(sentences: Sequence[Sentence]) -> Tagged:
    tags = [tag for sentence in sentences for tag in sentence.labels]
    return Tagged([tuple(map(clean_text, sentence.words)) for sentence in sentences], np.array(tags))


def _read_text(path: Path, settings: ProbeSettings) -> list[Task]:
    passages: list[list[str]] = []
    words: list[str] = []
    for _, line in numbered_lines(path):
        words = [*words, *clean_text(line).split()] if line.strip() else []
        while len(words) >= PASSAGE:
            passages.append(words[:PASSAGE])
            words = words[PASSAGE:]
    if len(passages) < 2:
        raise ValueError(f"{path} must have at least two passages of {PASSAGE} words, each within one document")
    generator = np.random.default_rng(settings.seed)
    chosen = [passages[number] for number in generator.permutation(len(passages))[: settings.stretches].tolist()]
    cases = find_repetitions(chosen, generator)
    tasks: list[Task] = [TokenStates("tokens", [path], chosen, settings.tau)]
    tasks.append(Search("search", [path], chosen, _SHORT, settings.tau))
    return [*tasks, RepeatedWords("repeated-words", [path], cases)] if cases else tasks


def find_repetitions(passages: Sequence[list[str]], generator: np.random.Generator) -> list[Repetition]:
    """Find words that a passage repeats, and draw one occurrence of each to predict, far from its other occurrences.

    In a copy of the passage, random words replace the other occurrences. Predicted words and replacements contain only
    letters and are not among the most frequent words, which make up half of the text and can be guessed without the
    repetition.
    """
    counts = Counter(word for words in passages for word in words)
    rest, rare = sum(counts.values()) / 2, []
    for word, count in counts.most_common():
        if rest <= 0 and word.isalpha():
            rare.append(word)
        rest -= count
    known, cases = set(rare), []
    # A single word has no replacement.
    for words in passages if len(rare) > 1 else ():
        for word in sorted({each for each in words if each in known and words.count(each) > 1}):
            places = np.flatnonzero([each == word for each in words])
            place = int(generator.choice(places))
            others = places[places != place]
            if np.abs(others - place).min() >= _DISTANCE:
                replaced = list(words)
                for other in others.tolist():
                    while replaced[other] == word:
                        replaced[other] = str(generator.choice(rare))
                cases.append(Repetition(words, place, replaced))
    return cases
