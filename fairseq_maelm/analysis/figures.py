"""Figures of ranks like the paper's Figures 1, 5 and 6, as PNG and SVG.

Color and marker show the model; the line style shows the input or the set of tokens. So curves can be told apart
without color.
"""

import io
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.files.optional_imports import import_pyplot

# The palette of Okabe and Ito for all kinds of color vision, ordered so that neighbors also differ in gray.
_COLORS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_SOLID, _DASHED = "-", "--"

Result = dict[str, Any]
# One curve per model: line style, legend text after the model's name, condition, set of tokens.
Line = tuple[str, str, str, str]
Lines = dict[str, list[Line]]  # by kind of model
_WHOLE: Line = (_DASHED, "", "whole", "real")
_BOTH: list[Line] = [(_SOLID, " w. [MASK]", "masked", "all"), (_DASHED, " w/o [MASK]", "whole", "real")]
_KINDS = ("mlm", "maelm", "fine-tuned")
_ALL_TOKENS: Lines = dict.fromkeys(_KINDS, [(line[0], f", input{line[1]}", *line[2:]) for line in _BOTH])
_OF_MASK: Lines = dict.fromkeys(_KINDS, [(_SOLID, "", "masked", "mask")])
_PRETRAINED: Lines = {"mlm": _BOTH, "maelm": [_WHOLE]}
_FINE_TUNED: Lines = {"fine-tuned": [_WHOLE]}


def save_figures(results: list[Result], folder: Path) -> None:
    """Draw all figures that these results have data for, as ``folder``/NAME.png and .svg."""
    pyplot = import_pyplot()
    folder.mkdir(exist_ok=True)
    settings, kinds = results[0]["settings"], {result["kind"] for result in results}
    replaces = settings["leave_unmasked_prob"] or settings["random_token_prob"]
    has_mask = any(result["subspace"] for result in results)
    figures = [("figure_6_rank_bert_masking" if replaces else "figure_1a_rank", "All tokens of the input", _ALL_TOKENS)]
    figures += [("figure_1b_rank_of_mask", "[MASK] tokens", _OF_MASK)] if has_mask else []
    figures += [("figure_5a_rank_pretrained", "After pretraining", _PRETRAINED)] if kinds != {"fine-tuned"} else []
    if "fine-tuned" in kinds:
        figures.append(("figure_5b_rank_fine_tuned", "After fine-tuning, input w/o [MASK]", _FINE_TUNED))
    for name, title, lines in figures:
        # A fixed salt makes the ids inside an SVG, and so the file, reproducible.
        with pyplot.rc_context({"svg.hashsalt": name, "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
            figure = _rank_figure(results, title, lines)
            for suffix, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
                stream = io.BytesIO()
                figure.savefig(stream, format=suffix, bbox_inches="tight", **options)
                write_bytes(folder / f"{name}.{suffix}", stream.getvalue())
            pyplot.close(figure)


def _rank_figure(results: list[Result], title: str, lines: Lines) -> Any:
    figure, axis = import_pyplot().subplots(figsize=(6, 4))
    for number, result in enumerate(results):
        for style, text, *which in lines.get(result["kind"], []):
            if rows := [row for row in result["ranks"] if [row["condition"], row["token_set"]] == which]:
                layers, ranks = [row["layer"] for row in rows], [row["effective_rank"] for row in rows]
                axis.plot(layers, ranks, label=result["name"] + text, **_look_of(number, style))
    settings = results[0]["settings"]
    label = f"rank$_{{{settings['tau']:g}}}$" + (" (centered)" if settings["centered"] else "")
    axis.set(xlabel="layer", ylabel=label, title=title)
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    figure.tight_layout()
    if axis.get_legend_handles_labels()[0]:
        # Outside the axes, where it cannot hide curves.
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, handlelength=3.5)
    return figure


def _look_of(number: int, style: str) -> dict[str, Any]:
    """Return matplotlib's line options for the model with index ``number``."""
    return {
        "color": _COLORS[number % len(_COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": style,
        "markersize": 5,
        "markerfacecolor": "white" if style == _DASHED else None,
    }
