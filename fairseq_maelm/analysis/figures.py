"""Figures of ranks like the paper's Figures 1, 5 and 6, and figures of spectra and subspaces, as PNG and SVG.

Color and marker show the model in all figures, and the line style the input or the set of tokens, so the curves can be
distinguished without color.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_maelm.libraries import import_pyplot, save_figure

# The palette of Okabe and Ito for all kinds of color vision, ordered so that neighbors also differ in gray.
_COLORS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_SOLID, _DASHED, _DOTTED = "-", "--", ":"

Result = dict[str, Any]
# A curve of a model: line style, text after its name in the legend, input, set of tokens.
Line = tuple[str, str, str, str]


class Figure(NamedTuple):
    """A function that draws results, the figure's caption, and whether these results have any data for it."""

    draw: Callable[[list[Result]], Any]
    caption: str
    possible: bool


def figures_of(results: list[Result]) -> dict[str, Figure]:
    """Return file name without suffix -> figure, for all figures that these results have data for."""
    settings = results[0]["settings"]
    has_masks = any(result["subspace"] for result in results)
    fine_tuned = [result["kind"] == "fine-tuned" for result in results]
    replaces = settings["leave_unmasked_prob"] or settings["random_token_prob"]
    figures = {
        "figure_6_rank_bert_masking" if replaces else "figure_1a_rank": Figure(
            partial(_rank_figure, title="All tokens of the input", lines=_by_input),
            "The same with BERT's masking: some predicted tokens are kept or replaced at random (the paper's Figure 6)."
            if replaces
            else "Effective rank of all token representations, with and without [MASK] in the input (the paper's "
            "Figure 1a). The gap counts the dimensions that inputs without [MASK] leave unused.",
            True,
        ),
        "figure_1b_rank_of_mask": Figure(
            partial(_rank_figure, title="[MASK] tokens", lines=lambda result: [(_SOLID, "", "masked", "mask")]),
            "Effective rank of the [MASK] representations alone (Figure 1b).",
            has_masks,
        ),
        "figure_5a_rank_pretrained": Figure(
            partial(_rank_figure, title="After pretraining", lines=_pretrained),
            "Pretrained models: MLM with and without [MASK] in the input, and MAE-LM (Figure 5a).",
            not all(fine_tuned),
        ),
        "figure_5b_rank_fine_tuned": Figure(
            partial(_rank_figure, title="After fine-tuning, input w/o [MASK]", lines=_fine_tuned),
            "Fine-tuned models on inputs without [MASK] (Figure 5b).",
            any(fine_tuned),
        ),
        "spectrum": Figure(spectrum, "The spectrum of the last layer. The gray line is tau.", True),
        "subspace": Figure(
            subspace,
            "The subspace of [MASK]. Left: share of its energy outside the real tokens' leading directions. Middle: "
            "median principal angle between both spans of leading directions; 90 degrees is orthogonal. Right: number "
            "of directions to add to the real tokens' directions to hold tau of [MASK]'s energy.",
            has_masks,
        ),
        "collapse": Figure(
            collapse,
            "The proof of Theorem 2.2 in numbers: the distance of real tokens' representations from equal rows. "
            "Attention alone makes them collapse; residual connections and feed-forward networks prevent that.",
            any(result["theorem"] for result in results),
        ),
    }
    return {name: figure for name, figure in figures.items() if figure.possible}


def save_figures(results: list[Result], folder: Path) -> dict[str, str]:
    """Draw all figures as ``folder``/NAME.png and .svg, and return NAME -> SVG text."""
    pyplot = import_pyplot()
    folder.mkdir(exist_ok=True)
    drawings = {}
    for name, each in figures_of(results).items():
        # The salt makes the identifiers inside an SVG, and so the file, the same in every run.
        with pyplot.rc_context({"svg.hashsalt": name, "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
            drawings[name] = save_figure(each.draw(results), folder / name)
    return drawings


def _by_input(result: Result) -> list[Line]:
    return [(_SOLID, ", input w. [MASK]", "masked", "all"), (_DASHED, ", input w/o [MASK]", "whole", "real")]


def _pretrained(result: Result) -> list[Line]:
    """Return curves with and without [MASK] for MLM, and only without for MAE-LM."""
    if result["kind"] == "mlm":
        return [(_SOLID, " w. [MASK]", "masked", "all"), (_DASHED, " w/o [MASK]", "whole", "real")]
    return [] if result["kind"] == "fine-tuned" else [(_DASHED, "", "whole", "real")]


def _fine_tuned(result: Result) -> list[Line]:
    return [(_DASHED, "", "whole", "real")] if result["kind"] == "fine-tuned" else []


def _ranks(result: Result, condition: str, tokens: str) -> list[dict[str, Any]]:
    return [row for row in result["ranks"] if (row["condition"], row["token_set"]) == (condition, tokens)]


def _rank_figure(results: list[Result], title: str, lines: Callable[[Result], list[Line]]) -> Any:
    figure, axis = import_pyplot().subplots(figsize=(6, 4))
    for number, result in enumerate(results):
        for style, text, condition, tokens in lines(result):
            if rows := _ranks(result, condition, tokens):
                layers, ranks = [row["layer"] for row in rows], [row["effective_rank"] for row in rows]
                axis.plot(layers, ranks, label=result["name"] + text, **look_of(number, style))
    settings = results[0]["settings"]
    label = f"rank$_{{{settings['tau']:g}}}$" + (" (centered)" if settings["centered"] else "")
    axis.set(xlabel="layer", ylabel=label, title=title)
    axis.set_ylim(bottom=0)
    whole_numbers(axis.xaxis)
    return _with_legend(figure, axis)


def spectrum(results: list[Result]) -> Any:
    """Draw the share of energy in the leading directions of the last layer, and its singular values."""
    figure, axes = import_pyplot().subplots(1, 2, figsize=(10, 4))
    for number, result in enumerate(results):
        last = max(row["layer"] for row in result["ranks"])
        for style, text, condition, tokens in (
            (_SOLID, "all, w. [MASK]", "masked", "all"),
            (_DASHED, "w/o [MASK]", "whole", "real"),
            (_DOTTED, "[MASK] only", "masked", "mask"),
        ):
            for row in _ranks(result, condition, tokens):
                if row["layer"] == last:
                    values = np.array(row["singular_values"])
                    numbers, energy = np.arange(1, len(values) + 1), np.cumsum(values**2)
                    look = {**look_of(number, style, len(values) // 8 or 1), "label": f"{result['name']}, {text}"}
                    axes[0].plot(numbers, energy / energy[-1], **look)
                    axes[1].plot(numbers, values / values[0], **look)
    tau = results[0]["settings"]["tau"]
    axes[0].axhline(tau, color="gray", linewidth=0.8)
    axes[0].set(xlabel="directions", ylabel="share of the energy", xscale="log", title="Last layer: energy held")
    axes[1].set(xlabel="direction", ylabel="singular value / largest", xscale="log", yscale="log")
    axes[1].set(title="Last layer: spectrum", ylim=(1e-4, 1.5))
    return _with_legend(figure, axes[1])


def subspace(results: list[Result]) -> Any:
    """Draw [MASK] compared with the real tokens of the same input (solid) and of the whole text (dashed)."""
    figure, axes = import_pyplot().subplots(1, 3, figsize=(13, 4))
    panels: tuple[tuple[str, Callable[[Any], float]], ...] = (
        ("share of [MASK] energy outside", lambda row: row["mask_energy_outside"]),
        ("median principal angle (degrees)", lambda row: float(np.median(row["principal_angles"]))),
        ("directions used by [MASK] alone", lambda row: row["mask_dimensions"]),
    )
    for number, result in enumerate(results):
        for style, reference, text in (
            (_SOLID, "masked", "real tokens, same input"),
            (_DASHED, "whole", "input w/o [MASK]"),
        ):
            rows = [row for row in result["subspace"] if row["reference"] == reference]
            for axis, (label, value) in zip(axes, panels):
                look = look_of(number, style)
                layers = [row["layer"] for row in rows]
                axis.plot(layers, [value(row) for row in rows], label=f"{result['name']} vs. {text}", **look)
                axis.set(xlabel="layer", ylabel=label)
    for axis in axes:
        axis.set_ylim(bottom=0)
        whole_numbers(axis.xaxis)
    whole_numbers(axes[2].yaxis)
    return _with_legend(figure, axes[2])


def collapse(results: list[Result]) -> Any:
    """Draw the residual in each layer of attention alone, which collapses, and of the whole encoder."""
    figure, axis = import_pyplot().subplots(figsize=(6, 4))
    for number, result in enumerate(results):
        for name, style, text in (
            ("encoder", _SOLID, "whole encoder"),
            ("trained", _DASHED, "its attention alone"),
            ("random", _DOTTED, "random attention alone"),
        ):
            rows = result["theorem"].get(name, [])
            values = [row["relative"] for row in rows]
            if name != "encoder":
                values = [*values[:1], *(row["relative_after"] for row in rows)]
            # Rows that are equal to the last bit have a residual of 0, which a logarithmic axis cannot show.
            axis.plot(
                range(len(values)),
                [max(value, 1e-17) for value in values],
                label=f"{result['name']}, {text}",
                **look_of(number, style),
            )
    axis.set(xlabel="layer", ylabel="|R| / |H| of real tokens", yscale="log", title="Distance from equal rows")
    whole_numbers(axis.xaxis)
    return _with_legend(figure, axis)


def look_of(number: int, style: str, markevery: int = 1) -> dict[str, Any]:
    """Return the matplotlib options for the curve of a model, given by its number, in all figures."""
    return {
        "color": _COLORS[number % len(_COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": style,
        "markersize": 5,
        "markevery": markevery,
        "markerfacecolor": "white" if style == _DASHED else None,
    }


def _with_legend(figure: Any, axis: Any) -> Any:
    """Put the legend outside the axes, where it cannot hide curves."""
    figure.tight_layout()
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, handlelength=3.5)
    return figure


def whole_numbers(axis: Any) -> None:
    """Label an axis with whole numbers only."""
    axis.get_major_locator().set_params(integer=True)
