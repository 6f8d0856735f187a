"""The domain's tasks as the tables and columns that the fine-tuning recipes read, and the table of their scores."""

import csv
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sklearn.metrics import accuracy_score, f1_score

from fairseq_maelm.sweep.tables import markdown_table

SPLITS = ("train", "dev", "test")


def tasks_in(folder: Path) -> dict[str, str]:
    """Name the tasks of a folder, in alphabetical order: name -> "jsonl" or "conll"."""
    found = {}
    for path in sorted(folder.iterdir()):
        for kind in ("jsonl", "conll"):
            if path.is_dir() and (path / f"train.{kind}").exists():
                missing = [split for split in SPLITS if not (path / f"{split}.{kind}").exists()]
                if missing:
                    raise SystemExit(f"there is no {path / missing[0]}.{kind}")
                found[path.name] = kind
    if not found:
        raise SystemExit(f"{folder} has no folder with train, dev and test as .jsonl or .conll")
    return found


def read_jsonl(path: Path) -> list[tuple[str, str]]:
    """Read text and label of every line; white space in the text becomes single spaces."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                text, label = " ".join(record["text"].split()), " ".join(str(record["label"]).split())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SystemExit(
                    f'{path}, line {number} is not a record with "text" and "label" ({error!r})'
                ) from error
            if not text or not label:
                raise SystemExit(f"{path}, line {number} has an empty text or label")
            rows.append((text, label))
    return rows


def first_examples(rows: list[tuple[str, str]], number: int | None) -> list[tuple[str, str]]:
    """Take the first examples, the first one of every label among them, so that no label is unknown; None for all."""
    if number is None:
        return rows
    first_of_label = {label: place for place, (_, label) in reversed(list(enumerate(rows)))}
    places = [*first_of_label.values(), *range(len(rows))]
    return [rows[place] for place in sorted(set(list(dict.fromkeys(places))[:number]))]


def write_table(source: Path, target: Path, number: int | None) -> None:
    """Write a .jsonl file as the table of sentences and labels that `maelm prepare sentences` reads."""
    rows = first_examples(read_jsonl(source), number)
    target.write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")


def write_columns(source: Path, target: Path, number: int | None) -> None:
    """Write the first sentences of a .conll file; None for all."""
    text = source.read_text(encoding="utf-8")
    sentences = text.split("\n\n")
    target.write_text(text if number is None else "\n\n".join(sentences[:number]) + "\n", encoding="utf-8")


def score_of_table(table: Path, predicted: Path) -> dict[str, float]:
    """Score the labels that `maelm predict` wrote for a table: macro F1 and accuracy in percent."""
    gold = [line.split("\t")[1] for line in table.read_text(encoding="utf-8").splitlines()]
    labels = [line.split("\t")[0] for line in predicted.read_text(encoding="utf-8").splitlines()[1:]]
    return {
        "macro F1": 100 * float(f1_score(gold, labels, average="macro", zero_division=0)),
        "accuracy": 100 * float(accuracy_score(gold, labels)),
    }


def write_results(scores: dict[tuple[str, str, int], float], metrics: dict[str, str], output: Path) -> str:
    """Write every run's score into results.csv, and the medians into table.md.

    Args:
        scores: (task, "before", "after" or "control", seed) -> percent; the control may be missing.
        metrics: task -> the name of its metric.
        output: folder of both files.

    Returns:
        the table.
    """
    with open(output / "results.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "metric", "model", "seed", "score"])
        writer.writerows([task, metrics[task], model, seed, score] for (task, model, seed), score in scores.items())
    measured = {model for _, model, _ in scores}
    models = [model for model in ("before", "control", "after") if model in measured]
    head = ["task", "metric", *models, *(f"after - {model}" for model in models[:-1])]
    lines = []
    for task, metric in metrics.items():
        values = [_scores(scores, task, model) for model in models]
        gains = [f"{statistics.median(values[-1]) - statistics.median(others):+.1f}" for others in values[:-1]]
        lines.append([task, metric, *map(_spread, values), *gains])
    table = markdown_table(head, lines) + "\n"
    (output / "table.md").write_text(table, encoding="utf-8")
    return table


def _scores(scores: dict[tuple[str, str, int], float], task: str, model: str) -> list[float]:
    return [score for (own, name, _), score in scores.items() if (own, name) == (task, model)]


def _spread(scores: Iterable[Any]) -> str:
    values = sorted(scores)
    return f"{statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"
