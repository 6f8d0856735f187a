"""Print the tables of the adaptation study from its records: ``python study_table.py study.csv``."""

import csv
import sys
from pathlib import Path
from typing import NamedTuple

# The package is found next to the studies if it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.sweep.tables import markdown_table, mean_and_interval, with_interval


class Record(NamedTuple):
    """One value: of a row, with a seed or a tried rate, and what was measured."""

    row: str
    seed: str
    what: str
    value: float


def read(path: Path) -> list[Record]:
    """Read the records."""
    with open(path, encoding="utf-8", newline="") as file:
        return [Record(own["row"], own["seed"], own["what"], float(own["value"])) for own in csv.DictReader(file)]


def tables(records: list[Record]) -> str:
    """Return tables: means over seeds, differences between methods, both with 95 % intervals, and tried rates."""
    measured = [each for each in records if each.seed.isdecimal()]
    tried = [each for each in records if not each.seed.isdecimal()]
    rows = list(dict.fromkeys(each.row for each in measured))
    lines = []
    for what in dict.fromkeys(each.what for each in measured):
        cells = [[each.value for each in measured if (each.row, each.what) == (row, what)] for row in rows]
        lines.append([what, *(_cell(values) for values in cells)])
    compared, differing = _differences(measured)
    rates = [[each.row, each.what, each.seed, f"{each.value:.4g}"] for each in tried]
    return (
        f"{markdown_table(['', *rows], lines)}\n\nDifferences of runs with equal seeds (paired t):\n\n"
        f"{markdown_table(['', *compared], differing)}\n\nRates that were tried, with seed 1:\n\n"
        f"{markdown_table(['row', 'what', 'rate', 'value'], rates)}\n"
    )


def _differences(measured: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Return a column for each row that is compared with the MLM of its domain and size, and the lines of the table."""
    values = {(each.row, each.what, each.seed): each.value for each in measured}
    others = {row: row.rpartition("mae-lm")[0] or row.rpartition("half")[0] for row, _, _ in values}
    pairs = {row: f"{start}mlm" for row, start in others.items() if start}
    lines = []
    for what in dict.fromkeys(each.what for each in measured):
        cells = []
        for row, mlm in pairs.items():
            seeds = [seed for own, name, seed in values if (own, name) == (row, what) and (mlm, what, seed) in values]
            cells.append(_cell([values[row, what, seed] - values[mlm, what, seed] for seed in seeds], "+.2f"))
        lines.append([what, *cells])
    return [f"{row} - {mlm}" for row, mlm in pairs.items()], lines


def _cell(values: list[float], style: str = ".4g") -> str:
    if not values:
        return "–"
    found = mean_and_interval(values)
    return with_interval(style, found["mean"], found["low"], found["high"])


if __name__ == "__main__":
    sys.stdout.write(tables(read(Path(sys.argv[1]))))
