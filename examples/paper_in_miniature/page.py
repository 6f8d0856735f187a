"""The page: what was run, the paper's figures, and the numbers under them."""

import html
from pathlib import Path
from statistics import median
from typing import Any

from commands import MODELS, RANDOM
from glue import TASKS
from results import FIGURE_3_SEEDS, FIGURE_3_TASKS, average

from fairseq_maelm.libraries import import_pyplot
from fairseq_maelm.sweep.tables import markdown_table

# Each analysis' figures that the paper has, with what stands under them.
FIGURES = {
    "pretrained": {
        "figure_1a_rank": "Figure 1(a): effective rank of all tokens, with [MASK] in the input and without",
        "figure_1b_rank_of_mask": "Figure 1(b): effective rank of [MASK] alone",
        "figure_5a_rank_pretrained": "Figure 5(a): after pretraining",
    },
    "fine_tuned": {"figure_5b_rank_fine_tuned": "Figure 5(b): after fine-tuning, on the text of the task"},
}
# Rank curves in the table, as results.ranks names them.
CURVES = {
    "masked, all": "all tokens, input with [MASK]",
    "masked, real": "real tokens, input with [MASK]",
    "whole, real": "input without [MASK]",
    "masked, mask": "[MASK] alone",
}

_LOOKS = {"MLM": ("#000000", "o"), "MAE-LM": ("#D55E00", "s")}
_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;line-height:1.4}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}"
    "th{background:#eee}td:first-child,th:first-child{text-align:left}svg{max-width:40em;height:auto}"
)

Table = tuple[list[str], list[list[str]]]


def draw_figure_3(results: dict[str, Any], folder: Path) -> None:
    """Quality against the time of pretraining, as figure_3.png and figure_3.svg."""
    pyplot = import_pyplot()
    with pyplot.rc_context({"svg.hashsalt": "figure_3", "axes.grid": True, "grid.alpha": 0.3}):
        figure, axis = pyplot.subplots(figsize=(6, 4))
        for model, points in results["figure_3"].items():
            color, marker = _LOOKS[model]
            minutes, values = [point["minutes"] for point in points], [point["score"] for point in points]
            axis.plot(minutes, values, label=model, color=color, marker=marker)
        axis.axhline(results["random_score"], color="gray", linestyle=":", label=RANDOM)
        axis.axhline(results["figure_3"]["MLM"][-1]["score"], color="black", linestyle="--", linewidth=0.8)
        axis.set(xlabel="minutes of pretraining", ylabel=f"mean of {' and '.join(FIGURE_3_TASKS)}")
        axis.legend()
        folder.mkdir(exist_ok=True)
        figure.savefig(folder / "figure_3.png", dpi=160, bbox_inches="tight")
        figure.savefig(folder / "figure_3.svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)


def fine_tuning_table(results: dict[str, Any]) -> Table:
    """Medians over the seeds with the range, and the paper's numbers under them."""
    header = ["", *(f"{name} ({TASKS[name].metric})" for name in TASKS), "mean"]
    rows = []
    for model, row in results["table"].items():
        cells = [f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})" for values in row.values()]
        rows.append([model, *cells, f"{average(row):.1f}"])
    for name, field in (("the paper's MLM, base size", "mlm"), ("the paper's MAE-LM, base size", "maelm")):
        numbers = [getattr(task, field) for task in TASKS.values()]
        rows.append([name, *(f"{number:.1f}" for number in numbers), f"{sum(numbers) / len(numbers):.1f}"])
    return header, rows


def rank_table(ranks: dict[str, dict[str, list[int]]], wanted: dict[str, str]) -> Table:
    """rank_0.9 layer by layer, a row for each model and kind of token."""
    layers = max((len(curve) for curves in ranks.values() for curve in curves.values()), default=0)
    rows = [
        [f"{model}, {text}", *map(str, curves[name])]
        for model, curves in ranks.items()
        for name, text in wanted.items()
        if name in curves
    ]
    return ["layer", *map(str, range(layers))], rows


def pretraining_table(results: dict[str, Any]) -> Table:
    """Loss and time of both models."""
    header = ["", "loss on held-out text, bits", "minutes in training steps"]
    rows = [
        [model, f"{row['loss']:.3f}", f"{results['figure_3'][model][-1]['minutes']:.1f}"]
        for model, row in results["pretraining"].items()
    ]
    return header, rows


def figure_3_table(results: dict[str, Any]) -> Table:
    """The points of Figure 3."""
    header = ["", "updates of the last stage", "minutes", f"mean of {', '.join(FIGURE_3_TASKS)}"]
    return header, [
        [model, f"{point['updates']:,}", f"{point['minutes']:.1f}", f"{point['score']:.1f}"]
        for model, points in results["figure_3"].items()
        for point in points
    ]


def settings_table(results: dict[str, Any]) -> Table:
    """What was run, and on what."""
    minutes = {f"{step}, minutes": f"{seconds / 60:.1f}" for step, seconds in results["seconds"].items()}
    facts = {**results["settings"], **results["machine"], **minutes}
    return ["", ""], [[name, str(value)] for name, value in facts.items()]


def sections(results: dict[str, Any]) -> list[tuple[str, str, Table]]:
    """Headings, the sentences under them, and tables, in the page's order."""
    text = {
        "ranks": "rank_0.9 of the representations of held-out text, layer 0 being the embeddings. The gap between the "
        "first and the third line of MLM is what inputs without [MASK] leave unused.",
        "tuned": "The same models fine-tuned, on the text of the task.",
        "table": "Medians over the seeds, with the lowest and the highest, on GLUE's development sets. A score is the "
        "best of the validations, one an epoch. Settings are the same for all three rows and were not searched.",
        "figure_3": f"Medians over {min(FIGURE_3_SEEDS, results['settings']['seeds'])} seeds from the "
        "beginning, the middle and the end of the last stage. Dashed: where MLM ends. Dotted: random weights.",
        "pretraining": "Both see the same text in the same order with the same tokens masked, in the same updates.",
    }
    return [
        ("Pretraining", text["pretraining"], pretraining_table(results)),
        ("Effective rank after pretraining", text["ranks"], rank_table(results["ranks"], CURVES)),
        (
            "Effective rank after fine-tuning",
            text["tuned"],
            rank_table(results["fine_tuned_ranks"], {"whole, real": CURVES["whole, real"]}),
        ),
        ("Fine-tuning", text["table"], fine_tuning_table(results)),
        ("Figure 3: quality against the time of pretraining", text["figure_3"], figure_3_table(results)),
        ("What was run", "", settings_table(results)),
    ]


def as_markdown(results: dict[str, Any]) -> str:
    """The tables for people who read files."""
    parts = []
    for heading, text, (header, rows) in sections(results):
        parts += [f"## {heading}", *([text] if text else []), markdown_table(header, rows)]
    return "\n\n".join(parts) + "\n"


def as_html(results: dict[str, Any], output: Path) -> str:
    """One page that needs no other file."""
    parts = [f"<h1>{' and '.join(MODELS)} in miniature</h1>"]
    for heading, text, (header, rows) in sections(results):
        parts.append(f"<h2>{html.escape(heading)}</h2><p>{html.escape(text)}</p>")
        parts += _drawings(heading, output)
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(f"<table><tr>{head}</tr>{body}</table>")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>MAE-LM in miniature</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _drawings(heading: str, output: Path) -> list[str]:
    if heading.startswith("Figure 3"):
        return [_svg(output / "figures" / "figure_3.svg")]
    for name in FIGURES:
        if heading.endswith({"pretrained": "rank after pretraining", "fine_tuned": "rank after fine-tuning"}[name]):
            folder = output / "analysis" / name / "figures"
            return [
                f"<h3>{html.escape(text)}</h3>{_svg(folder / f'{file}.svg')}" for file, text in FIGURES[name].items()
            ]
    return []


def _svg(path: Path) -> str:
    drawing = path.read_text(encoding="utf-8")
    # An XML declaration may not stand inside HTML.
    return drawing[drawing.index("<svg") :]
