"""The options of ``maelm probe``, and readers of its inputs, all of which are read before any model runs."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
from fairseq_maelm.analysis.spectrum import SMALLEST_TAU
from fairseq_maelm.corpus.tables import Columns, Example, read_table
from fairseq_maelm.files.conll import Layout, Sentence, read
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.modules.autocast import PRECISIONS
from fairseq_maelm.options import check_limits, existing_path, option
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import open_tokenizer

_READ, _MEASURED = "inputs (at least one)", "measurement"
_INPUTS = ("sts", "words", "tasks", "treebank", "text")
# Numbers of words: of a passage, of its first part, which searches for the rest, and between two occurrences of a word.
_PASSAGE, _SHORT, _DISTANCE = 64, 16, 6


def _inputs(text: str, **more: Any) -> Any:
    return option(more.pop("default", None), help=text, type=existing_path, group=_READ, **more)


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """Options of ``maelm probe``.

    Raises:
        ValueError: there are no inputs, or a number is outside its limits.
    """

    sts: Path | None = _inputs(
        "similarity of sentences: a folder for each set, with a .tsv file for each of its parts (score, tab, sentence, "
        "tab, sentence)", metavar="FOLDER",
    )  # fmt: skip
    words: Path | None = _inputs(
        "similarity of words: a .tsv file for each set (word, tab, word, tab, score)", metavar="FOLDER"
    )
    tasks: tuple[Path, ...] = _inputs(
        "task folders of `maelm prepare sentences` or `glue`: probes predict classes, cosines are compared with scores "
        "of pairs (STS-B)", metavar="FOLDER", default=(),
    )  # fmt: skip
    treebank: tuple[Path, ...] = _inputs(
        "parts of speech: CoNLL-U files to fit the probe to and to test it on", nargs=2, default=(),
        metavar=("TRAIN", "TEST"),
    )  # fmt: skip
    text: Path | None = _inputs(
        "text for effective rank, mean cosine, search and repeated words: one paragraph per line, a blank line between "
        "documents", metavar="FILE",
    )  # fmt: skip
    vocabulary: Path | None = option(
        None, help="folder with dict.txt and the tokenizer, for checkpoints whose folder lacks them",
        metavar="FOLDER", type=existing_path, group=_MEASURED,
    )  # fmt: skip
    layers: tuple[int, ...] | None = option(
        None, help="layers, such as 0 6 12; 0 is the embeddings (default: all)", group=_MEASURED
    )
    max_length: int = option(
        128, help="maximum number of tokens in a sequence; longer texts are truncated, and longer sentences of a "
        "treebank are split",
        minimum=8, group=_MEASURED,
    )  # fmt: skip
    train_rows: int = option(
        10_000, help="maximum number of training examples of a task to fit probes to", minimum=2, group=_MEASURED
    )
    train_words: int = option(
        25_000, help="maximum number of the treebank's words to fit the probe to", minimum=2, group=_MEASURED
    )
    stretches: int = option(
        1_000, help=f"maximum number of passages of {_PASSAGE} words from the text", minimum=2, group=_MEASURED
    )
    tau: float = option(
        0.9,
        help="share of the energy, the sum of squared singular values, that the effective rank must reach",
        minimum=SMALLEST_TAU,
        maximum=1,
        group=_MEASURED,
    )
    seed: int = option(1, help="random seed of the examples and of random weights", minimum=0, group=_MEASURED)
    precision: str = option("fp32", help="precision of the computation", choices=PRECISIONS, group=_MEASURED)
    batch_tokens: int = option(8_192, help="number of tokens in a batch, padding included", minimum=1, group=_MEASURED)

    def __post_init__(self) -> None:
        check_limits(self)
        if not any(getattr(self, name) for name in _INPUTS):
            raise ValueError(f"there is nothing to probe: give one of {', '.join(f'--{name}' for name in _INPUTS)}")

    def recorded(self) -> dict[str, Any]:
        """Return the settings that determine the results, except the inputs, as JSON types."""
        left_out = {*_INPUTS, "vocabulary", "batch_tokens"}
        values = {name: value for name, value in asdict(self).items() if name not in left_out}
        return dict(json.loads(json.dumps(values)))


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
        raise ValueError(f"{example.place} has the score {example.label!r}: each line must be {layout}")
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
            raise ValueError(f"{folder} has scores of single texts: give one with scores of pairs, or with classes")
        scores = np.loadtxt(folder / "label" / "valid.label", ndmin=1)
        return Similarity(folder.name, files, {"valid": Pairs(columns[0], columns[1], scores)}, together=True)
    train, test = (_labels(folder, split) for split in ("train", "valid"))
    drawn = np.sort(np.random.default_rng(settings.seed).permutation(len(train))[: settings.train_rows])
    if len(np.unique(train[drawn])) < 2:
        raise ValueError(f"the {len(drawn)} training examples of {folder} all have one label: raise --train-rows")
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
        while len(words) >= _PASSAGE:
            passages.append(words[:_PASSAGE])
            words = words[_PASSAGE:]
    if len(passages) < 2:
        raise ValueError(f"{path} has fewer than two passages of {_PASSAGE} words within a document")
    generator = np.random.default_rng(settings.seed)
    chosen = [passages[number] for number in generator.permutation(len(passages))[: settings.stretches].tolist()]
    cases = find_repetitions(chosen, generator)
    tasks: list[Task] = [TokenStates("tokens", [path], chosen, settings.tau)]
    tasks.append(Search("search", [path], chosen, _SHORT, settings.tau))
    return [*tasks, RepeatedWords("repeated-words", [path], cases)] if cases else tasks


def find_repetitions(passages: Sequence[list[str]], generator: np.random.Generator) -> list[Repetition]:
    """Find words that occur twice or more in a passage, some words apart, and draw one place of each to predict.

    The words that make up the more frequent half of the text are left out, because a model can guess them without the
    repetition; so are words with characters other than letters. Replacements are drawn from the remaining words.
    """
    counts = Counter(word for words in passages for word in words)
    rest, rare = sum(counts.values()) / 2, []
    for word, count in counts.most_common():
        if rest <= 0 and word.isalpha():
            rare.append(word)
        rest -= count
    known, cases = set(rare), []
    for words in passages:
        for word in sorted({each for each in words if each in known and words.count(each) > 1}):
            places = np.flatnonzero([each == word for each in words])
            place = int(generator.choice(places))
            others = places[places != place]
            if np.abs(others - place).min() >= _DISTANCE:
                replaced = list(words)
                for other in others.tolist():
                    replaced[other] = str(generator.choice(rare))
                cases.append(Repetition(words, place, replaced))
    return cases
