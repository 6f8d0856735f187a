"""Score files block by block, so that an interruption loses one block; compare minimal pairs and models."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate
from tqdm import tqdm

from fairseq_maelm.files.atomic import read_json, write_json
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.files.prepared_folder import made_from, prepare_folder, read_manifest
from fairseq_maelm.models.hub import open_checkpoint
from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.options import UsageError
from fairseq_maelm.scoring.reading import SIDES, Item, input_files, read_items
from fairseq_maelm.scoring.sentence_scores import CheckpointScorer, Sentence, pseudo_log_likelihoods
from fairseq_maelm.text.unknown import check_known

logger = logging.getLogger(__name__)

KIND = "scores"
SCORES_FILE = "scores.tsv"
MEASURES = ("sum", "per_token")  # the scores by which the sentences of a pair are compared

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

    Return a dict with "sentences", "tokens" and "pseudo_perplexity" per token. For pairs also "overall", "phenomena"
    (by name) and "paradigms" (by name), each with "pairs", the accuracy in [0, 1] by each of ``MEASURES``, and
    "ties_right", the accuracy if ties count as right, as the BabyLM evaluation does. With ``others`` also "other" (the
    other model's accuracy), "difference" (this accuracy minus the other) and "interval" (95 %, bootstrap over pairs).
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


_BEGUN, _PROGRESS = "scores.begun", "progress.json"
# The most sentences, and the most tokens, that are computed and written together; a longer sentence is a block alone.
# Other numbers change the last bits of the sums.
_BLOCK_SENTENCES, _BLOCK_TOKENS = 2048, 65_536


def score_files(
    texts: Sequence[Path],
    output: Path,
    checkpoint: Path,
    vocabulary: Path | None,
    device: str,
    settings: dict[str, Any],
    compare: Path | None,
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """Score the sentences in files, or resume an interrupted run, and return the summary of ``summarize``.

    ``texts`` are files and folders, ``output`` is a new folder for the scores, and ``compare`` that of another model
    for the same pairs. ``vocabulary`` is by default the checkpoint's. ``settings`` are the options "method", "first",
    "precision" and "batch_tokens". With ``allow_unknown``, go on if most tokens are unknown.
    """
    files = input_files(texts)
    items = read_items(files, settings["first"])
    if compare is not None and not items[0].side:
        raise UsageError("--compare needs pairs (.tsv, .jsonl): single sentences have no accuracy")
    others = None if compare is None else read_scores(compare)
    if compare is not None and others is not None:
        refuse_other_items(compare, others, items)
    hub = open_checkpoint(checkpoint, vocabulary, device, precision=settings["precision"])
    scorer = CheckpointScorer(hub)
    sentences = scorer.encode([item.text for item in items], [item.place for item in items])
    check_known(hub.tokenizer.encoder, ", ".join(map(str, texts)), allow_unknown)
    tokenizer = find_tokenizer([vocabulary or checkpoint.parent, checkpoint.parent])
    origin = made_from(settings, {"checkpoint": [checkpoint], "vocabulary": [tokenizer], "texts": files})

    prepare_folder(
        output, KIND, origin, lambda result: _write(result, scorer, items, sentences, settings), resumes=True
    )
    return summarize(read_scores(output), others)


def _write(
    result: Path, scorer: CheckpointScorer, items: list[Item], sentences: list[Sentence], settings: dict[str, Any]
) -> dict[str, Any]:
    """Score the sentences that an earlier run has not scored; partial scores are next to the output folder."""
    begun, progress = result.parent / _BEGUN, result.parent / _PROGRESS
    named = have_names(items)
    header = header_of(named)
    if progress.exists() and begun.exists():
        state = read_json(progress)
        logger.info("resuming after %s of %s sentences", f"{state['done']:,}", f"{len(items):,}")
    else:
        # A run that was killed while it published its scores leaves its progress without them.
        progress.unlink(missing_ok=True)
        begun.write_text(header, encoding="utf-8")
        state = {"done": 0, "bytes": len(header)}
    with (
        begun.open("r+b") as stream,
        tqdm(total=len(items), initial=state["done"], desc="scoring", unit=" sentences") as bar,
    ):
        # Drop the part of a block that a killed run has written.
        stream.truncate(state["bytes"])
        stream.seek(state["bytes"])
        for block in _blocks([len(sentence.tokens) for sentence in sentences], state["done"]):
            found = pseudo_log_likelihoods(scorer, sentences[block], settings["method"], settings["batch_tokens"])
            lines = [line_of(item, values, named) for item, values in zip(items[block], found)]
            stream.write("".join(lines).encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
            write_json(progress, {"done": block.start + len(found), "bytes": stream.tell()})
            bar.update(len(found))
    os.replace(begun, result / SCORES_FILE)
    return {"sentences": len(items)}


def _blocks(lengths: Sequence[int], start: int) -> Iterator[slice]:
    """Yield the blocks from sentence ``start`` on, which begins one."""
    tokens = 0
    for end, length in enumerate(lengths[start:], start):
        tokens += length
        if end > start and (tokens > _BLOCK_TOKENS or end - start == _BLOCK_SENTENCES):
            yield slice(start, end)
            start, tokens = end, length
    if start < len(lengths):
        yield slice(start, len(lengths))
