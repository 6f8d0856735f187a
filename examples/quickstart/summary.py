"""The summary: metrics from the logs, one table, and a picture of the curves."""

from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_maelm.files import write_json
from fairseq_maelm.libraries import import_pyplot
from fairseq_maelm.sweep.log import log_records
from fairseq_maelm.sweep.tables import markdown_table

STARTS = {"pretrained": "the pretrained encoder", "random": "random weights"}
# Two colors that color-blind readers can tell apart, the same meaning in all panels.
_BLUE, _ORANGE, _GRAY = "#0072b2", "#d55e00", "#666666"

Curve = list[tuple[int, float]]


def curve(log: Path, kind: str, metric: str) -> Curve:
    """Pairs of update and value from the records of a kind, "train_inner", "valid" or "test", by rising update.

    A resumed run repeats some updates; the last value counts.
    """
    prefix = "" if kind == "train_inner" else f"{kind}_"
    records = [each for _, each in log_records(log, [kind]) if prefix + metric in each]
    return sorted({int(each[f"{prefix}num_updates"]): each[prefix + metric] for each in records}.items())


def test_curve(log: Path) -> Curve:
    """Test accuracy in percent over the updates of a fine-tuning."""
    return curve(log, "test", "accuracy")


def smooth(points: Curve, span: int) -> Curve:
    """Average every value with its neighbors, up to ``span`` points in all, fewer at the ends."""
    half = span // 2
    return [
        (update, mean(value for _, value in points[max(0, place - half) : place + half + 1]))
        for place, (update, _) in enumerate(points)
    ]


def mask_lines(filled: dict[str, Any]) -> list[str]:
    """Show a sentence and the candidates for its mask with their probabilities."""
    candidates = ", ".join(f"{token} {100 * probability:.0f} %" for token, probability in filled["candidates"])
    return [filled["text"], f"    {candidates}"]


def summary_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The results of all steps as rows of a name and a value."""
    text, data, start, trained, tuning = (results[name] for name in ("text", "data", "start", "score", "fine_tuning"))
    held_out = "masked-token accuracy on held-out text (15 % masked)"
    rows = [
        ("text", f"{text['characters'] / 1e6:.1f} million characters, {text['documents']:,} documents"),
        ("tokens to train on / held out", f"{data['tokens']['train']:,} / {data['tokens']['valid']:,}"),
        (f"{held_out}, before", f"{start['accuracy']:.1f} %"),
        (f"{held_out}, after", f"{trained['accuracy']:.1f} %"),
        ("perplexity on held-out text, before", f"{start['perplexity']:,.0f}"),
        ("perplexity on held-out text, after", f"{trained['perplexity']:,.1f}"),
    ]
    if tuning["accuracy"]:
        train = data["examples"]["train"]
        rows.append(("fine-tuning task", f"{len(data['classes'])} classes, {train:,} labeled texts"))
        for name, accuracy in tuning["accuracy"].items():
            spread = f" ({min(accuracy):.1f} to {max(accuracy):.1f}, {len(accuracy)} seeds)" if accuracy[1:] else ""
            rows.append((f"test accuracy from {STARTS[name]}", f"{mean(accuracy):.1f} %{spread}"))
        rows.append(("test accuracy by guessing", f"{tuning['chance']:.1f} %"))
    else:
        rows.append(("fine-tuning task", "none: the text has no two sources that are large enough"))
    minutes = {name: step["seconds"] / 60 for name, step in results.items()}
    pretrained = minutes["short"] + minutes["pretraining"]
    return [*rows, ("time", f"{sum(minutes.values()):.1f} minutes, {pretrained:.1f} of pretraining")]


def write_summary(folder: Path, results: dict[str, Any]) -> str:
    """Write summary.md, summary.json and curves.png from the results of all steps and their logs; returns the table."""
    draw_curves(folder / "logs", results, folder / "curves.png")
    write_json(folder / "summary.json", results)
    overview = markdown_table(["", ""], summary_rows(results))
    masks = "\n\n".join("\n".join(f"    {line}" for line in mask_lines(each)) for each in results["masks"]["filled"])
    (folder / "summary.md").write_text(f"{overview}\n\n{masks}\n", encoding="utf-8")
    return f"{overview}\n\nthis table: {folder / 'summary.md'}\nthe curves: {folder / 'curves.png'}"


def draw_curves(logs: Path, results: dict[str, Any], path: Path) -> None:
    """Draw loss and accuracy of pretraining, and the test accuracy of fine-tuning if there was any."""
    pyplot, tuning = import_pyplot(), results["fine_tuning"]
    panels = 3 if tuning["accuracy"] else 2
    figure, axes = pyplot.subplots(1, panels, figsize=(4.7 * panels, 4.2), layout="constrained")
    labels = {"loss": "loss (bits per masked token)", "accuracy": "masked-token accuracy (%)"}
    for axis, (name, label) in zip(axes, labels.items()):
        before = 0
        for stage, kind, marker in (("short", "short sequences", "o"), ("pretraining", "long, more masks", "s")):
            train, held_out = (curve(logs / f"{stage}.log", kind_, name) for kind_ in ("train_inner", "valid"))
            shifted = [(before + update, value) for update, value in smooth(train, 9)]
            axis.plot(*zip(*shifted), color=_GRAY, linewidth=1.2, label="training text (smoothed)" if before else None)
            shifted = [(before + update, value) for update, value in held_out]
            axis.plot(*zip(*shifted), color=_BLUE, marker=marker, markersize=4, label=f"held-out text, {kind}")
            before += held_out[-1][0]
        axis.set(title="Pretraining", xlabel="updates", ylabel=label)
    for (start, accuracy), color in zip(tuning["accuracy"].items(), (_BLUE, _ORANGE)):
        curves = [test_curve(logs / f"fine_tuning_{start}_{seed}.log") for seed in range(1, len(accuracy) + 1)]
        for each in curves:
            axes[2].plot(*zip(*each), color=color, alpha=0.3, linewidth=1)
        averages = [(points[0][0], mean(value for _, value in points)) for points in zip(*curves)]
        axes[2].plot(*zip(*averages), color=color, marker="o", markersize=4, label=f"from {STARTS[start]}")
    if tuning["accuracy"]:
        axes[2].axhline(tuning["chance"], color=_GRAY, linestyle="--", linewidth=1, label="guessing")
        axes[2].set(title=f"Fine-tuning, {len(results['data']['classes'])} classes", xlabel="updates")
        axes[2].set(ylabel="test accuracy (%)", ylim=(0, 100))
    for axis in axes:
        axis.legend(frameon=False)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
