"""Readers for the inputs to ``maelm probe``, which are all read before any model runs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm.analysis.analysis_settings import ProbeSettings
from fairseq_maelm.analysis.probes.tasks import Split, Task, features_of_texts, features_of_words
from fairseq_maelm.files.conll import Layout, Sentence, read
from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import open_tokenizer


def read_tasks(settings: ProbeSettings) -> list[Task]:
    """Read all inputs; raise a ValueError or an OSError for a missing or invalid file."""
    tasks: list[Task] = [_read_task(folder, settings) for folder in settings.tasks]
    if settings.treebank:
        tasks.append(_read_treebank(settings))
    names = Counter(task.name for task in tasks)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"two inputs are named {twice[0]}: rename one folder, since results are named after folders")
    return tasks


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
        raise ValueError(
            f"{folder} has scores and no classes: measure similarity with sentence-transformers' "
            "EmbeddingSimilarityEvaluator on a folder of `maelm export`"
        )
    train, test = (_labels(folder, split) for split in ("train", "valid"))
    drawn = np.sort(np.random.default_rng(settings.seed).permutation(len(train))[: settings.train_rows])
    if len(np.unique(train[drawn])) < 2:
        raise ValueError(
            f"the {len(drawn)} training examples drawn from {folder} all have the same label: raise --train-rows"
        )
    fitted = Split(_texts(folder, "train", drawn), train[drawn])
    return Task(folder.name, files, fitted, Split(_texts(folder, "valid"), test), features_of_texts)


def _labels(folder: Path, split: str) -> Any:
    symbols = Dictionary.load(str(folder / "label" / "dict.txt"))
    rows = [row[row != symbols.eos()].tolist() for row in MMapIndexedDataset(str(folder / "label" / split))]
    if any(len(row) != 1 for row in rows):
        raise ValueError(f"{folder} has rows with none or several labels, but a probe predicts exactly one")
    return np.array(rows)[:, 0] - symbols.nspecial


def _texts(folder: Path, split: str, chosen: Any | None = None) -> list[list[str]]:
    tokenizer = open_tokenizer(find_tokenizer([folder]), load_dictionary(str(folder / "input0")))
    columns = []
    for name in ("input0", "input1"):
        if (folder / name / f"{split}.idx").is_file():
            stored = MMapIndexedDataset(str(folder / name / split))
            numbers = range(len(stored)) if chosen is None else chosen
            columns.append([tokenizer.decode(stored[int(number)].tolist()) for number in numbers])
    return columns


def _read_treebank(settings: ProbeSettings) -> Task:
    train, test = settings.treebank
    layout = Layout("conllu", "UPOS")
    sentences = read(train, layout).sentences
    drawn, words = [], 0
    for number in np.random.default_rng(settings.seed).permutation(len(sentences)).tolist():
        drawn.append(sentences[number])
        words += len(sentences[number].words)
        if words >= settings.train_words:
            break
    tested = _tagged(read(test, layout).sentences)
    return Task("tagging", [train, test], _tagged(drawn), tested, features_of_words)


def _tagged(sentences: Sequence[Sentence]) -> Split:
    tags = [tag for sentence in sentences for tag in sentence.labels]
    return Split([tuple(map(clean_text, sentence.words)) for sentence in sentences], np.array(tags))
