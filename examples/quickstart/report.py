"""The summary: metrics from the logs, one table, and a picture of the curves."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from commands import log_records
from workspace import write_json

PRETRAINED, RANDOM = "pretrained", "random"
STARTS = {PRETRAINED: "the pretrained encoder", RANDOM: "random weights"}

SHORT_LOG, LONG_LOG = "pretraining_short.log", "pretraining.log"

Curve = list[tuple[int, float]]

# Two colors that color-blind readers can tell apart, the same meaning in all panels.
_BLUE, _ORANGE, _GRAY = "#0072b2", "#d55e00", "#666666"


def curve(log: Path, kind: str, metric: str) -> Curve:
    """Reads a curve from a log.

    Args:
        log: of fairseq-train with ``--log-format json``.
        kind: of record: "train_inner", "valid" or "test".
        metric: name in the record without the kind's prefix, such as "accuracy".

    Returns:
        pairs of update and value by rising update. A resumed run repeats some updates; the last value counts.
    """
    prefix = "" if kind == "train_inner" else f"{kind}_"
    values = {
        int(metrics[f"{prefix}num_updates"]): float(metrics[prefix + metric])
        for found, metrics in log_records(log)
        if found == kind and prefix + metric in metrics
    }
    return sorted(values.items())


def test_curve(log: Path) -> Curve:
    """Test accuracy in percent over the updates of a fine-tuning."""
    return curve(log, "test", "accuracy")


def fine_tuning_log(logs: Path, start: str, seed: int) -> Path:
    """Where a fine-tuning writes its log."""
    return logs / f"fine_tuning_{start}_{seed}.log"


def mask_lines(filled: dict[str, Any]) -> list[str]:
    """Shows a sentence and the candidates for its mask with their probabilities."""
    candidates = ", ".join(f"{token} {100 * probability:.0f} %" for token, probability in filled["candidates"])
    return [filled["text"], f"    {candidates}"]


def summary_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Puts the results of all steps into rows of a name and a value."""
    text, data, start, trained = (results[name] for name in ("text", "data", "start", "score"))
    rows = [
        ("text", f"{text['characters'] / 1e6:.1f} million characters, {text['documents']:,} documents"),
        ("tokens to train on / held out", f"{data['tokens']['train']:,} / {data['tokens']['valid']:,}"),
        ("masked-token accuracy on held-out text (15 % masked), before", f"{start['accuracy']:.1f} %"),
        ("masked-token accuracy on held-out text (15 % masked), after", f"{trained['accuracy']:.1f} %"),
        ("perplexity on held-out text, before", f"{start['perplexity']:,.0f}"),
        ("perplexity on held-out text, after", f"{trained['perplexity']:,.1f}"),
    ]
    tuning = results["fine_tuning"]
    if tuning["accuracy"]:
        rows.append(
            ("fine-tuning task", f"{len(data['classes'])} classes, {data['examples']['train']:,} labeled texts")
        )
        for name, accuracy in tuning["accuracy"].items():
            spread = f" ({min(accuracy):.1f} to {max(accuracy):.1f}, {len(accuracy)} seeds)" if accuracy[1:] else ""
            rows.append((f"test accuracy from {STARTS[name]}", f"{mean(accuracy):.1f} %{spread}"))
        rows.append(("test accuracy by guessing", f"{tuning['chance']:.1f} %"))
    else:
        rows.append(("fine-tuning task", "none: the text has no two sources that are large enough"))
    seconds = {name: step["seconds"] for name, step in results.items()}
    pretraining = (seconds["short"] + seconds["pretraining"]) / 60
    rows.append(("time", f"{sum(seconds.values()) / 60:.1f} minutes, {pretraining:.1f} of pretraining"))
    return rows


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Lays rows out as a Markdown table that can be read as it is."""
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"| {'':{first}} | {'':{second}} |", f"|{'-' * (first + 2)}|{'-' * (second + 2)}|"]
    return "\n".join(lines + [f"| {name:{first}} | {value:{second}} |" for name, value in rows])


def write_summary(folder: Path, results: dict[str, Any]) -> str:
    """Writes summary.md, summary.json and curves.png.

    Args:
        folder: of the run, with its logs.
        results: of all steps by name.

    Returns:
        what to show.
    """
    draw_curves(folder / "logs", results, folder / "curves.png")
    write_json(folder / "summary.json", results)
    overview = table(summary_rows(results))
    masks = "\n\n".join("\n    ".join(["", *mask_lines(filled)]).strip("\n") for filled in results["masks"]["filled"])
    (folder / "summary.md").write_text(f"{overview}\n\n{masks}\n", encoding="utf-8")
    return f"{overview}\n\nthis table: {folder / 'summary.md'}\nthe curves: {folder / 'curves.png'}"


def smooth(points: Curve, span: int) -> Curve:
    """Averages every value with its neighbors, up to ``span`` points in all, fewer at the ends."""
    half = span // 2
    return [
        (update, mean(value for _, value in points[max(0, place - half) : place + half + 1]))
        for place, (update, _) in enumerate(points)
    ]


def _shifted(points: Curve, updates: int) -> Curve:
    return [(updates + update, value) for update, value in points]


def draw_curves(logs: Path, results: dict[str, Any], path: Path) -> None:
    """Draws loss and accuracy of pretraining, and the test accuracy of fine-tuning if there was any."""
    import matplotlib

    # No window: the program may run where there is no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    accuracy = results["fine_tuning"]["accuracy"]
    panels = 3 if accuracy else 2
    figure, axes = pyplot.subplots(1, panels, figsize=(4.7 * panels, 4.2), layout="constrained")
    for axis, name, label in (
        (axes[0], "loss", "loss (bits per masked token)"),
        (axes[1], "accuracy", "masked-token accuracy (%)"),
    ):
        stages = [(logs / SHORT_LOG, 0, "o"), (logs / LONG_LOG, curve(logs / SHORT_LOG, "valid", name)[-1][0], "s")]
        for (log, before, marker), kind in zip(stages, ("short sequences", "long, more masks")):
            train = smooth(curve(log, "train_inner", name), 9)
            label_of_train = "training text (smoothed)" if before else None
            axis.plot(*zip(*_shifted(train, before)), color=_GRAY, linewidth=1.2, label=label_of_train)
            held_out = _shifted(curve(log, "valid", name), before)
            axis.plot(*zip(*held_out), color=_BLUE, marker=marker, markersize=4, label=f"held-out text, {kind}")
        axis.set(title="Pretraining", xlabel="updates", ylabel=label)
        axis.legend(frameon=False)
    if accuracy:
        _draw_fine_tuning(axes[2], logs, results)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_fine_tuning(axis: Any, logs: Path, results: dict[str, Any]) -> None:
    classes, chance = len(results["data"]["classes"]), results["fine_tuning"]["chance"]
    for (start, accuracy), color in zip(results["fine_tuning"]["accuracy"].items(), (_BLUE, _ORANGE)):
        curves = [test_curve(fine_tuning_log(logs, start, seed)) for seed in range(1, len(accuracy) + 1)]
        for each in curves:
            axis.plot(*zip(*each), color=color, alpha=0.3, linewidth=1)
        averages = [(points[0][0], mean(value for _, value in points)) for points in zip(*curves)]
        axis.plot(*zip(*averages), color=color, marker="o", markersize=4, label=f"from {STARTS[start]}")
    axis.axhline(chance, color=_GRAY, linestyle="--", linewidth=1, label="guessing")
    axis.set(title=f"Fine-tuning, {classes} classes", xlabel="updates", ylabel="test accuracy (%)", ylim=(0, 100))
    axis.legend(frameon=False, loc="upper left")
