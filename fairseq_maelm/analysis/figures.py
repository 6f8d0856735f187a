"""Figures in the form of the paper's 1, 5 and 6, of spectra and subspaces, as PNG and SVG.

A model keeps its color and marker in all figures; the line style says which input or which tokens. Both can be told
apart without color.
"""

import io
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Optional

import numpy as np

from fairseq_maelm.files import write_bytes
from fairseq_maelm.libraries import import_pyplot

logger = logging.getLogger(__name__)

# Okabe and Ito's colors, which people of every color vision tell apart, ordered so that neighbors differ in gray.
_COLORS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_SOLID, _DASHED, _DOTTED = "-", "--", ":"

Result = dict[str, Any]
Curve = tuple[list[float], list[float]]


def figure_names(results: list[Result]) -> dict[str, Callable[[list[Result]], Any]]:
    """The figures that these results can fill, by file name without its ending."""
    settings = results[0]["settings"]
    has_masks = any(result["subspace"] for result in results)
    pretrained = any(result["kind"] != "fine-tuned" for result in results)
    replaces = settings["leave_unmasked_prob"] or settings["random_token_prob"]
    wanted: dict[str, tuple[Callable[[list[Result]], Any], bool]] = {
        ("figure_6_rank_bert_masking" if replaces else "figure_1a_rank"): (rank_by_input, True),
        "figure_1b_rank_of_mask": (rank_of_mask, has_masks),
        "figure_5a_rank_pretrained": (rank_pretrained, pretrained),
        "figure_5b_rank_fine_tuned": (rank_fine_tuned, any(result["kind"] == "fine-tuned" for result in results)),
        "spectrum": (spectrum, True),
        "subspace": (subspace, has_masks),
        "collapse": (collapse, any(result["theorem"] for result in results)),
    }
    return {name: draw for name, (draw, possible) in wanted.items() if possible}


def save_figures(results: list[Result], folder: Path) -> dict[str, str]:
    """Draw all figures as ``folder``/NAME.png and .svg.

    Returns:
        NAME -> SVG text.

    Raises:
        ValueError: if matplotlib is missing.
    """
    pyplot = import_pyplot()
    folder.mkdir(exist_ok=True)
    drawings = {}
    for name, draw in figure_names(results).items():
        # The salt makes the names inside an SVG, and with them the file, the same in every run.
        with pyplot.rc_context({"svg.hashsalt": name, "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}):
            figure = draw(results)
            for ending, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
                stream = io.BytesIO()
                figure.savefig(stream, format=ending, bbox_inches="tight", **options)
                write_bytes(folder / f"{name}.{ending}", stream.getvalue())
            drawings[name] = stream.getvalue().decode("utf-8")
            pyplot.close(figure)
    return drawings


def rank_curve(result: Result, condition: str, tokens: str) -> Optional[Curve]:
    """Layers and effective ranks, or None if the model was not run so."""
    rows = [row for row in result["ranks"] if row["condition"] == condition and row["token_set"] == tokens]
    return ([row["layer"] for row in rows], [row["effective_rank"] for row in rows]) if rows else None


def rank_by_input(results: list[Result]) -> Any:
    """Figure 1(a), and 6: rank of all tokens with [MASK] in the input, and without."""
    curves = [
        (number, style, f"{result['name']}, {text}", rank_curve(result, condition, tokens))
        for number, result in enumerate(results)
        for style, text, condition, tokens in (
            (_SOLID, "input w. [MASK]", "masked", "all"),
            (_DASHED, "input w/o [MASK]", "whole", "real"),
        )
    ]
    return _layer_figure(curves, _rank_label(results), "All tokens of the input")


def rank_of_mask(results: list[Result]) -> Any:
    """Figure 1(b): rank of the [MASK] tokens."""
    curves = [
        (number, _SOLID, result["name"], rank_curve(result, "masked", "mask")) for number, result in enumerate(results)
    ]
    return _layer_figure(curves, _rank_label(results), "[MASK] tokens")


def rank_pretrained(results: list[Result]) -> Any:
    """Figure 5(a): models that saw [MASK] in pretraining with and without it, the others without it alone."""
    curves: list[tuple[int, str, str, Optional[Curve]]] = []
    for number, result in enumerate(results):
        if result["kind"] == "fine-tuned":
            continue
        if result["kind"] == "mlm":
            curves.append((number, _SOLID, f"{result['name']} w. [MASK]", rank_curve(result, "masked", "all")))
            curves.append((number, _DASHED, f"{result['name']} w/o [MASK]", rank_curve(result, "whole", "real")))
        else:
            curves.append((number, _DASHED, result["name"], rank_curve(result, "whole", "real")))
    return _layer_figure(curves, _rank_label(results), "After pretraining")


def rank_fine_tuned(results: list[Result]) -> Any:
    """Figure 5(b): fine-tuned models on whole inputs."""
    curves = [
        (number, _DASHED, result["name"], rank_curve(result, "whole", "real"))
        for number, result in enumerate(results)
        if result["kind"] == "fine-tuned"
    ]
    return _layer_figure(curves, _rank_label(results), "After fine-tuning, input w/o [MASK]")


def spectrum(results: list[Result]) -> Any:
    """Energy that the leading directions of the last layer hold, and what is left of it."""
    figure, axes = import_pyplot().subplots(1, 2, figsize=(10, 4))
    for number, result in enumerate(results):
        last = max(row["layer"] for row in result["ranks"])
        for style, condition, tokens, text in (
            (_SOLID, "masked", "all", "all, w. [MASK]"),
            (_DASHED, "whole", "real", "w/o [MASK]"),
            (_DOTTED, "masked", "mask", "[MASK] only"),
        ):
            for row in result["ranks"]:
                if (row["condition"], row["token_set"], row["layer"]) == (condition, tokens, last):
                    label = f"{result['name']}, {text}"
                    values = np.array(row["singular_values"])
                    _spectrum_lines(axes, values, {**_look(number, style, len(values) // 8 or 1), "label": label})
    tau = results[0]["settings"]["tau"]
    axes[0].axhline(tau, color="gray", linewidth=0.8)
    axes[0].set(xlabel="directions", ylabel="share of the energy", xscale="log", title="Last layer: energy held")
    axes[1].set(xlabel="direction", ylabel="singular value / largest", xscale="log", yscale="log")
    axes[1].set(title="Last layer: spectrum", ylim=(1e-4, 1.5))
    return _with_legend(figure, axes[1])


def _spectrum_lines(axes: Any, values: np.ndarray, look: dict[str, Any]) -> None:
    numbers = np.arange(1, len(values) + 1)
    energy = np.cumsum(values**2)
    axes[0].plot(numbers, energy / energy[-1], **look)
    axes[1].plot(numbers, values / values[0], **look)


def subspace(results: list[Result]) -> Any:
    """Where [MASK] lives, against the real tokens of the same input (solid) and of the whole input (dashed)."""
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
                look = _look(number, style)
                layers = [row["layer"] for row in rows]
                axis.plot(layers, [value(row) for row in rows], label=f"{result['name']} vs. {text}", **look)
                axis.set(xlabel="layer", ylabel=label)
    for axis in axes:
        axis.set_ylim(bottom=0)
        _whole_numbers(axis.xaxis)
    _whole_numbers(axes[2].yaxis)
    return _with_legend(figure, axes[2])


def collapse(results: list[Result]) -> Any:
    """The residual through attention alone, and through the whole encoder that does not collapse."""
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
            # Rows that are equal to the last bit have no logarithm.
            axis.plot(
                range(len(values)),
                [max(value, 1e-17) for value in values],
                label=f"{result['name']}, {text}",
                **_look(number, style),
            )
    axis.set(xlabel="layer", ylabel="|R| / |H| of real tokens", yscale="log", title="Distance from equal rows")
    _whole_numbers(axis.xaxis)
    return _with_legend(figure, axis)


def _rank_label(results: list[Result]) -> str:
    settings = results[0]["settings"]
    return f"rank$_{{{settings['tau']:g}}}$" + (" (centered)" if settings["centered"] else "")


def _look(number: int, style: str, markevery: int = 1) -> dict[str, Any]:
    return {
        "color": _COLORS[number % len(_COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": style,
        "markersize": 5,
        "markevery": markevery,
        "markerfacecolor": "white" if style == _DASHED else None,
    }


def _layer_figure(curves: Iterable[tuple[int, str, str, Optional[Curve]]], label: str, title: str) -> Any:
    figure, axis = import_pyplot().subplots(figsize=(6, 4))
    for number, style, text, curve in curves:
        if curve is not None:
            axis.plot(*curve, label=text, **_look(number, style))
    axis.set(xlabel="layer", ylabel=label, title=title)
    axis.set_ylim(bottom=0)
    _whole_numbers(axis.xaxis)
    return _with_legend(figure, axis)


def _with_legend(figure: Any, axis: Any) -> Any:
    """Put the legend beside the axes: with many models it would hide curves inside."""
    figure.tight_layout()
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, handlelength=3.5)
    return figure


def _whole_numbers(axis: Any) -> None:
    axis.get_major_locator().set_params(integer=True)
