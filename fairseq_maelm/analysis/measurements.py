"""Analyze several models, with a result file for each, so that an interruption loses one model at most.

The output folder is locked for one process and one set of settings. Figures are like the paper's Figures 1, 5 and 6, as
PNG and SVG: color and marker show the model, and the line style shows the input or the set of tokens, so that curves
can be told apart without color.
"""

import contextlib
import csv
import hashlib
import io
import logging
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm.analysis import theorem
from fairseq_maelm.analysis.analysis_settings import CONDITIONS, AnalysisSettings
from fairseq_maelm.analysis.collect import (
    Blocks,
    CheckpointEncoder,
    LayerGrams,
    TextBlocks,
    chosen_layers,
    collect,
    model_inputs,
)
from fairseq_maelm.analysis.spectrum import compare_subspaces, effective_rank, singular_values
from fairseq_maelm.data.blocks import TokenBlocks, split_files
from fairseq_maelm.files.atomic import (
    PARTIAL_SUFFIX,
    FolderLock,
    read_json,
    remove_partial_files,
    write_bytes,
    write_json,
)
from fairseq_maelm.files.optional_imports import import_pyplot

logger = logging.getLogger(__name__)

# Maximum number of real tokens in the check of the theorem; the pseudo-inverse takes time cubic in it.
_STACK_TOKENS = 1024

Result = dict[str, Any]


def analyze(models: dict[str, Path], settings: AnalysisSettings, output: Path, device: str) -> None:
    """Analyze the models for which ``output`` has no results yet, and write the report on all models.

    ``models`` (name -> path) are in the order of the figures; ``output`` is new, empty, or of an analysis with the same
    ``settings``.
    """
    import_pyplot()
    recorded = settings.recorded()
    with claimed(output, recorded):
        (output / MODELS_FOLDER).mkdir(exist_ok=True)
        text = _text_fingerprint(settings)
        for name, path in models.items():
            file, fingerprint = output / MODELS_FOLDER / f"{name}.json", fingerprint_of(path)
            found = read_json(file) if file.exists() else None
            if found is None:
                facts = {"fingerprint": fingerprint, "text_fingerprint": text}
                write_json(file, {**_analyze_one(name, path, settings, device), **facts})
            elif found["fingerprint"] != fingerprint:
                raise ValueError(
                    f"{file} has results of a different model that is also named {name!r}: choose another name or "
                    "folder"
                )
            elif found.get("text_fingerprint") != text:
                raise ValueError(f"{file} has results from before the text changed: choose another --output")
            else:
                logger.info("%s has results already", name)
        found = {path.stem: read_json(path) for path in sorted((output / MODELS_FOLDER).glob("*.json"))}
        # Models of earlier commands come last, as far as their text is the same.
        others = [name for name in found if name not in models and found[name].get("text_fingerprint") == text]
        write_report([{**found[name], "settings": recorded} for name in (*models, *others)], output)


def _analyze_one(name: str, path: Path, settings: AnalysisSettings, device: str) -> dict[str, Any]:
    encoder = CheckpointEncoder(path, settings.vocabulary or settings.data).to(device)
    suits = settings.conditions or (CONDITIONS if encoder.kind == "maelm" else CONDITIONS[:2])
    conditions = tuple(condition for condition in CONDITIONS if condition in suits)
    chosen = replace(settings, conditions=conditions, layers=tuple(chosen_layers(name, encoder, settings.layers)))
    blocks = _blocks(encoder, settings)
    grams = collect(encoder, blocks, chosen, device, name)
    logger.info("%s: computing spectra and subspaces, checking the theorem", name)
    first = grams[chosen.conditions[0]]
    return {
        "name": name,
        "path": str(path),
        "kind": encoder.kind,
        "model_settings": encoder.settings,
        "num_layers": encoder.num_layers,
        "width": encoder.width,
        "text_tokens": first.real[0].rows + first.mask[0].rows,
        "ranks": rank_rows(grams, settings.tau, settings.centered),
        "subspace": subspace_rows(grams, settings.tau, settings.centered),
        "theorem": theorem_rows(encoder, blocks, chosen, device),
    }


def _text_fingerprint(settings: AnalysisSettings) -> str | None:
    """Return a fingerprint of the file with the text, or None if it is missing, which is refused later."""
    file = settings.text or Path(f"{settings.data}/{settings.split or 'valid'}.bin")
    return fingerprint_of(file) if file.is_file() else None


def _blocks(encoder: CheckpointEncoder, settings: AnalysisSettings) -> Blocks:
    length = min(settings.max_length, encoder.max_length)
    if settings.text is not None:
        return TextBlocks(settings.text, encoder, length, settings.tokens)
    assert settings.data is not None
    encoder.check_data(settings.data)
    paths = split_files(str(settings.data), settings.split or "valid", False)
    blocks = TokenBlocks(paths, "complete_doc", length, encoder.vocabulary.first)
    blocks.check_tokens(encoder.vocabulary.mask)
    return blocks


def rank_rows(grams: dict[str, LayerGrams], tau: float, centered: bool) -> list[dict[str, Any]]:
    """Return the effective rank and the descending spectrum for each condition, set of tokens and layer."""
    rows = []
    for condition, each in grams.items():
        for place, layer in enumerate(each.layers):
            for tokens, accumulator in each.sets(place).items():
                values = singular_values(accumulator.gram(centered))
                spectrum = [float(f"{value:.8g}") for value in values.tolist()]
                place_of_row = {"condition": condition, "token_set": tokens, "layer": layer, "rows": accumulator.rows}
                rows.append(
                    {**place_of_row, "effective_rank": effective_rank(values, tau), "singular_values": spectrum}
                )
    return rows


def subspace_rows(grams: dict[str, LayerGrams], tau: float, centered: bool) -> list[dict[str, Any]]:
    """Compare each layer's [MASK] states with the states of real tokens in the same input and in the unmasked input."""
    masked = grams.get("masked")
    if masked is None or not masked.mask[0].rows:
        return []
    references = {"masked": masked.real, **({"whole": grams["whole"].real} if "whole" in grams else {})}
    rows = []
    for name, accumulators in references.items():
        for place, layer in enumerate(masked.layers):
            sets = (accumulators[place], masked.mask[place], masked.sets(place)["all"])
            real, mask, joint = (each.gram(centered) for each in sets)
            comparison = compare_subspaces(real, mask, joint, tau)
            rows.append({"reference": name, "layer": layer, **comparison._asdict()})
    return rows


@torch.inference_mode()
def theorem_rows(
    encoder: CheckpointEncoder, blocks: Blocks, settings: AnalysisSettings, device: str
) -> dict[str, list[dict[str, Any]]]:
    """Check the theorem on one batch's embeddings, with attention alone; return {} if no input has a [MASK].

    Lists have one dict per layer: "trained" has the checks for the model's weights, "random" those for random weights
    of the same shape, and "encoder" the ``relative`` residual of the same tokens in the whole encoder, with residual
    connections and feed-forward networks (``layer`` 0: embeddings).
    """
    masked = (inputs["masked"] for _, inputs in model_inputs(encoder, blocks, settings, device) if "masked" in inputs)
    batch = next((each for each in masked if len(each.mask)), None)
    if batch is None:
        return {}
    all_states = [states.flatten(0, 1).double().cpu() for states in encoder.hidden_states(batch.tokens)]
    rows = batch.real.cpu()[:_STACK_TOKENS]
    real, mask = all_states[0][rows], all_states[0][batch.mask.cpu()[: _STACK_TOKENS // 4]]
    shape = (encoder.width, encoder.num_heads, torch.Generator().manual_seed(settings.seed))
    stacks: dict[str, Iterable[theorem.AttentionWeights] | None] = {
        "trained": encoder.attention_weights(),
        "random": (theorem.random_weights(*shape) for _ in range(encoder.num_layers)),
    }
    result = {name: _check_rows(theorem.check_stack(real, mask, layers)) for name, layers in stacks.items() if layers}
    result["encoder"] = [
        {"layer": layer, "relative": theorem.relative_residual(states[rows])} for layer, states in enumerate(all_states)
    ]
    return result


def _check_rows(checks: list[theorem.LayerCheck]) -> list[dict[str, Any]]:
    logarithms = theorem.logarithm_of_recursive_bound(checks)[1:]
    return [
        {"layer": layer, **check._asdict(), "proved": check.proved, "holds": check.holds}
        | {"log10_bound_from_embeddings": logarithm}
        for layer, (check, logarithm) in enumerate(zip(checks, logarithms), 1)
    ]


def write_report(results: list[Result], folder: Path) -> None:
    """Write results.json, ranks.csv, subspace.csv, theorem.csv and figures/ into ``folder``."""
    write_json(folder / "results.json", results)
    settings = {
        name: " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        for name, value in results[0]["settings"].items()
    }
    for name, rows in tables(results).items():
        stream = io.StringIO(newline="")
        if rows:
            writer = csv.DictWriter(stream, fieldnames=list({**rows[0], **settings}))
            writer.writeheader()
            writer.writerows({**row, **settings} for row in rows)
        write_bytes(folder / f"{name}.csv", stream.getvalue().encode("utf-8"))
    save_figures(results, folder / "figures")


def tables(results: list[Result]) -> dict[str, list[dict[str, Any]]]:
    """Return all models' rows by table: "ranks" without spectra, "subspace" with extreme angles only, "theorem"."""
    lists: dict[str, list[dict[str, Any]]] = {"ranks": [], "subspace": [], "theorem": []}
    for result in results:
        model = {"model": result["name"], "kind": result["kind"]}
        for row in result["ranks"]:
            lists["ranks"].append(model | {key: value for key, value in row.items() if key != "singular_values"})
        for row in result["subspace"]:
            angles = row["principal_angles"]
            flat = {key: value for key, value in row.items() if key != "principal_angles"}
            lists["subspace"].append(model | flat | {"smallest_angle": min(angles), "largest_angle": max(angles)})
        for weights in ("trained", "random"):
            for row in result["theorem"].get(weights, []):
                lists["theorem"].append(model | {"weights": weights} | row)
    return lists


# The palette of Okabe and Ito for all kinds of color vision, ordered so that neighbors also differ in gray.
_COLORS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_SOLID, _DASHED = "-", "--"

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


MODELS_FOLDER = "models"
_SETTINGS_FILE = "settings.json"


@contextlib.contextmanager
def claimed(output: Path, recorded: dict[str, Any]) -> Iterator[None]:
    """Lock an output folder and check its settings; a new folder is removed if the work fails without a result."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with FolderLock(output.with_name(f".{output.name}.lock"), "`maelm analyze`", output):
        is_new = not _files(output)
        try:
            _claim(output, recorded)
            remove_partial_files(output)
            yield
        except BaseException:
            if is_new and _files(output) in ([], [output / _SETTINGS_FILE]):
                shutil.rmtree(output, ignore_errors=True)
            raise


def _files(folder: Path) -> list[Path]:
    """Return all files in a folder, except partial settings files that a killed run left."""
    left = f"{_SETTINGS_FILE}.*{PARTIAL_SUFFIX}"
    return [path for path in folder.rglob("*") if path.is_file() and not path.match(left)]


def _claim(output: Path, recorded: dict[str, Any]) -> None:
    path = output / _SETTINGS_FILE
    if path.exists():
        earlier = read_json(path)
        if changed := [name for name in recorded if earlier.get(name) != recorded[name]]:
            raise ValueError(
                f"{output} has results with other settings ({', '.join(changed)} differ): choose another --output"
            )
        return
    if output.exists() and (not output.is_dir() or _files(output)):
        raise ValueError(f"{output} exists but does not contain results of `maelm analyze`: choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    write_json(path, recorded)


def fingerprint_of(path: Path) -> str:
    """Hash a file's path, size and modification time; hashing its content could take as long as a small run."""
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns)]
    return hashlib.sha256(repr((str(path.resolve()), facts)).encode()).hexdigest()
