"""The score file, accuracy on minimal pairs, and a confidence interval for the difference of two models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.files.prepared_folder import read_manifest
from fairseq_maelm.scoring.reading import SIDES, Item

KIND = "scores"
SCORES_FILE = "scores.tsv"
# The scores by which the sentences of a pair are compared.
MEASURES = ("sum", "per_token")

_COLUMNS = ("place", "side", "paradigm", "phenomenon", *MEASURES, "tokens", "text")
_RESAMPLES, _SEED = 10_000, 1


class Scored(NamedTuple):
    """A row of the score file: a sentence with its score in nats."""

    item: Item
    sum: float
    per_token: float
    tokens: int


def have_names(items: Sequence[Item]) -> bool:
    """Return whether the score file has a column of names: those of sequences in FASTA."""
    return any(item.name for item in items)


def header_of(named: bool) -> str:
    """Return the first line of the score file."""
    return "\t".join([*_COLUMNS, *["name"] * named]) + "\n"


def line_of(item: Item, values: NDArray[np.float64], named: bool) -> str:
    """Return the line of the score file for a sentence with these token log-probabilities."""
    numbers = (f"{values.sum():.6f}", f"{values.mean():.6f}", str(len(values)))
    texts = [item.text, *[item.name] * named]
    return "\t".join([item.place, item.side, item.paradigm, item.phenomenon, *numbers, *texts]) + "\n"


def read_scores(folder: Path) -> list[Scored]:
    """Read the scores in a finished output folder of `maelm score`; raise FileNotFoundError or ValueError otherwise."""
    read_manifest(folder, KIND)
    rows = (line.split("\t") for number, line in numbered_lines(folder / SCORES_FILE) if number > 1)
    return [
        Scored(Item(place, side, paradigm, phenomenon, *texts), float(total), float(per_token), int(tokens))
        for place, side, paradigm, phenomenon, total, per_token, tokens, *texts in rows
    ]


def refuse_other_items(folder: Path, scores: Sequence[Scored], items: Sequence[Item]) -> None:
    """Raise a ValueError unless both files score the same sentences."""
    if len(scores) != len(items):
        raise ValueError(f"{folder} has scores of {len(scores)} sentences, but the input has {len(items)}")
    for scored, item in zip(scores, items):
        if scored.item != item:
            raise ValueError(f"{folder} has scores of different sentences: {scored.item} instead of {item}")


def summarize(scores: Sequence[Scored], others: Sequence[Scored] | None = None) -> dict[str, Any]:
    """Summarize scores, and compare them with another model's on the same pairs.

    Returns:
        a dict with "sentences", "tokens" and "pseudo_perplexity" per token. For pairs also "overall", "phenomena" (by
        name) and "paradigms" (by name), each with "pairs", the accuracy in [0, 1] by each of ``MEASURES``, and
        "ties_right", the accuracy if ties count as right, as the BabyLM evaluation does. With ``others`` also "other"
        (the other model's accuracy), "difference" (this accuracy minus the other) and "interval" (95 %, bootstrap over
        pairs).
    """
    tokens = sum(each.tokens for each in scores)
    summary: dict[str, Any] = {
        "sentences": len(scores),
        "tokens": tokens,
        "pseudo_perplexity": float(np.exp(-sum(each.sum for each in scores) / tokens)),
    }
    if not scores[0].item.side:
        return summary
    own, other = _credits(scores), None if others is None else _credits(others)
    first = [each.item for each in scores[::2]]
    summary["overall"] = _accuracy(np.arange(len(first)), own, other)
    for name, column in (("phenomena", "phenomenon"), ("paradigms", "paradigm")):
        labels = np.array([getattr(each, column) for each in first])
        names = [label for label in dict.fromkeys(labels.tolist()) if label]
        summary[name] = {label: _accuracy(np.flatnonzero(labels == label), own, other) for label in names}
    # The table shows paradigms below their phenomenon.
    for each in first:
        summary["paradigms"][each.paradigm]["phenomenon"] = each.phenomenon
    return summary


def _credits(scores: Sequence[Scored]) -> dict[str, NDArray[np.float64]]:
    """Return, for each measure and pair, 1, 0.5 or 0 if the good sentence's score is higher, equal or lower."""
    found = {}
    for measure in MEASURES:
        values = np.array([getattr(each, measure) for each in scores]).reshape(-1, len(SIDES))
        found[measure] = (1 + np.sign(values[:, 0] - values[:, 1])) / 2
    return found


def _accuracy(
    places: NDArray[np.int64], own: dict[str, NDArray[np.float64]], other: dict[str, NDArray[np.float64]] | None
) -> dict[str, Any]:
    result: dict[str, Any] = {"pairs": len(places)}
    for measure in MEASURES:
        result[measure] = float(own[measure][places].mean())
    result["ties_right"] = {measure: float((own[measure][places] > 0).mean()) for measure in MEASURES}
    if other is not None:
        result["other"], result["difference"], result["interval"] = {}, {}, {}
        for measure in MEASURES:
            difference = own[measure][places] - other[measure][places]
            result["other"][measure] = float(other[measure][places].mean())
            result["difference"][measure] = float(difference.mean())
            result["interval"][measure] = paired_interval(difference)
    return result


def paired_interval(difference: NDArray[np.float64]) -> list[float]:
    """Return a 95 % bootstrap confidence interval for the mean of differences <float>[pairs], resampling pairs.

    Differences have few distinct values, so only the counts of these values are drawn, from a multinomial distribution.
    This is equivalent to drawing pairs, but takes time independent of their number.
    """
    values, counts = np.unique(difference, return_counts=True)
    drawn = np.random.default_rng(_SEED).multinomial(len(difference), counts / len(difference), _RESAMPLES)
    return [float(bound) for bound in np.quantile(drawn @ values / len(difference), [0.025, 0.975])]


def table(summary: dict[str, Any]) -> str:
    """Return the summary as text: for pairs a table of accuracies by phenomenon and paradigm, then a line of totals."""
    line = (
        f"{summary['sentences']:,} sentences, {summary['tokens']:,} tokens, pseudo-perplexity "
        f"{summary['pseudo_perplexity']:,.2f}\n"
    )
    if "overall" not in summary:
        return line
    rows: list[list[Any]] = []
    for name, phenomenon in [*summary["phenomena"].items(), ("", None)]:
        rows += [_row(name, phenomenon)] if phenomenon else []
        of_it = {label: each for label, each in summary["paradigms"].items() if each["phenomenon"] == name}
        rows += [_row(f"- {label}" if name else label, each) for label, each in of_it.items()]
    rows.append(_row("overall", summary["overall"]))
    header = ["accuracy in percent", "pairs", "sum", "per token"]
    if "other" in summary["overall"]:
        header += ["other's sum", "difference", "95 % interval"]
    by_sum, by_token = (100 * summary["overall"]["ties_right"][measure] for measure in MEASURES)
    ties = f"with ties counted as right: {by_sum:.1f} by sum, {by_token:.1f} per token\n"
    return tabulate(rows, header, "simple", floatfmt=".1f") + f"\n\n{ties}{line}"


def _row(name: str, accuracy: dict[str, Any]) -> list[Any]:
    row = [name, accuracy["pairs"], *(100 * accuracy[measure] for measure in MEASURES)]
    if "other" in accuracy:
        low, high = (f"{100 * bound:+.1f}" for bound in accuracy["interval"]["sum"])
        row += [100 * accuracy["other"]["sum"], 100 * accuracy["difference"]["sum"], f"{low} to {high}"]
    return row
