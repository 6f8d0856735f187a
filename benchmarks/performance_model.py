"""Predict a training step on GPUs from what is known without one, and say what limits it.

    python benchmarks/kernel_compilation.py --capability 80 90 --output benchmarks/results/kernel_compilation.json
    python benchmarks/performance_model.py [--measured step.json] [--output benchmarks/results/performance_model.md]

A step in bf16 at 15 % masking, 512 tokens, no padding, is the sum of

* products: three times the forward pass of ``training_step.flops``, at the share of the datasheet's rate that large
  products reach (roofline's roof),
* relative attention: the clocks of the package's kernels (kernel_compilation.py) over the waves of their programs,
* attention without a bias: torch's flash attention,
* elements: LayerNorm, GELU, dropout, residuals, casts, sums of biases: bytes over the memory's rate (roofline's slope),
* the update, whose bytes are shared by all micro-batches of 2,048 sequences, and what adds up their gradients,

unless the host, which starts the kernels while the GPU computes, takes longer. Constants that no datasheet gives are
estimates, named below; with a measurement (a file of pretraining.py on a GPU) its tokens/s stand next to the predicted.
"""

import argparse
import json
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate
from training_step.flops import BatchShape, ModelShape, StackShape, matrix_products, training_flops
from training_step.metrics import evaluate
from training_step.store import read_runs

from fairseq_maelm.models.sizes import SIZES

RESULTS = Path(__file__).parent / "results"


class Card(NamedTuple):
    """A GPU; rates as in its datasheet, shares of them that are reached."""

    capability: int
    multiprocessors: int
    clock: float  # Hz, under load
    peak: float  # FLOP/s in bf16, dense
    bandwidth: float  # bytes/s
    products: float  # share of the peak that large products reach
    flash: float  # share of the peak that flash attention of short sequences reaches


CARDS = {
    "A100": Card(80, 108, 1.41e9, 312e12, 2.04e12, 0.75, 0.50),
    "H100": Card(90, 132, 1.755e9, 989e12, 3.35e12, 0.66, 0.33),
    "H200": Card(90, 132, 1.755e9, 989e12, 4.80e12, 0.66, 0.33),
}
# Sequences of a micro-batch that leave room on a card of 40 GB.
BATCHES = {
    "maelm_base": 128,
    "maelm_base_plus_plus": 128,
    "maelm_large_plus_plus": 64,
    "maelm_modern_150m": 128,
    "maelm_modern_400m": 64,
}
# The same model in pretraining.py: the contender and the size.
MEASURED_AS = {"maelm_base": ("maelm", "base"), "maelm_modern_150m": ("modern", "modern")}
LENGTH, MASKING, VOCABULARY, SEQUENCES_PER_UPDATE = 512, 0.15, 32_768, 2048
# Of the bounds that have no latency in them: what kernels of attention and of memory reach.
REACHED, BANDWIDTH_REACHED = 0.7, 0.85


class Counted(NamedTuple):
    """Counts of a micro-batch in bf16, forward and backward, on fake tensors; see fake_gpu.

    Attributes:
        launches: of kernels.
        passes: times that a layer's states, [tokens, width] in bf16, are read or written by kernels other than products
            and attention.
        fixed: bytes that such kernels read and write whatever the batch's size.
    """

    launches: int
    passes: float
    fixed: float


COUNTED = {
    "maelm_base": Counted(674, 70.1, 2.80e9),
    "maelm_base_plus_plus": Counted(674, 70.1, 2.80e9),
    "maelm_large_plus_plus": Counted(1106, 65.5, 6.16e9),
    "maelm_modern_150m": Counted(1352, 118.0, 2.99e9),
    "maelm_modern_400m": Counted(1628, 133.0, 6.61e9),
}
# Bytes per parameter. A micro-batch that is not the first of its update adds gradients in fp32 and needs no cast to
# bf16; an update has AdamW's seven accesses, two scalings of the gradient, and its norm.
BYTES_OF_SUM, BYTES_OF_UPDATE = 12 - 6, 28 + 16 + 4
# Seconds of one core of a 2.8 GHz Xeon: a launch (17.4 ms for the 624 of base without casts of weights), our kernels of
# a layer, an update.
HOST_LAUNCH, HOST_KERNELS, HOST_UPDATE = 28e-6, 0.18e-3, 5.4e-3


def waves_seconds(card: Card, figure: dict[str, Any], programs: int, turns: int) -> float:
    """Time of one kernel, all of whose programs take as many turns of the loop."""
    rows, columns, *_ = figure["block"]
    clocks = max(figure["clocks"], figure["tensor_clocks"]) * rows * columns / (128 * 64)
    waves = ceil(programs / (card.multiprocessors * figure["blocks"]))
    return waves * figure["blocks"] * turns * clocks / card.clock / REACHED


def relative_attention_seconds(
    card: Card, kernels: dict[str, dict[str, Any]], heads: int, sequences: int, visible: int
) -> float:
    """Time of one layer's kernels, forward and backward."""
    seconds = 0.0
    for name in ("forward_kernel", "query_gradient_kernel", "key_value_gradient_kernel"):
        rows, columns, *_ = kernels[name]["block"]
        programs = sequences * heads * ceil(visible / rows)
        seconds += waves_seconds(card, kernels[name], programs, ceil(visible / columns))
    rows, columns, *_ = kernels["pair_gradient_kernel"]["block"]
    blocks = heads * ceil(LENGTH / rows) * ceil(LENGTH / columns)
    parts = max(1, min(sequences, 1024 // blocks))
    return seconds + waves_seconds(card, kernels["pair_gradient_kernel"], blocks * parts, ceil(sequences / parts))


def shape_of(name: str) -> ModelShape:
    """Return the shape of a named size with a decoder as wide as the encoder."""
    size = SIZES[name]
    numbers = [size[f"encoder_{each}"] for each in ("embed_dim", "ffn_embed_dim", "attention_heads")]
    gated = size["layer"] == "modern"
    encoder = StackShape(size["encoder_layers"], *numbers, gated)
    return ModelShape(encoder, VOCABULARY, StackShape(size["decoder_layers"], *numbers, gated))


def predict(card: Card, name: str, kernels: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of each part of a micro-batch, and of the host."""
    model, sequences = shape_of(name), BATCHES[name]
    encoder, decoder_layers = model.encoder, SIZES[name]["decoder_layers"]
    predicted = round(MASKING * LENGTH)
    visible = LENGTH - predicted
    products = matrix_products(model, BatchShape(sequences, LENGTH, visible, predicted))
    relative = SIZES[name]["positions"] == "absolute"
    parts = dict.fromkeys(("products", "relative attention", "flash attention", "elements", "update"), 0.0)
    for product in products:
        if product.name not in ("attention logits", "weighted values"):
            parts["products"] += 3 * product.flops / card.peak / card.products
        elif not (relative and product.stage == "encoder"):
            # The backward pass computes the logits once more: five products where the forward pass has two.
            parts["flash attention"] += 3.5 * product.flops / card.peak / card.flash
    if relative:
        layer = relative_attention_seconds(card, kernels, encoder.attention_heads, sequences, visible)
        parts["relative attention"] = encoder.layers * layer
    tokens = sequences * (encoder.layers * visible + decoder_layers * LENGTH)
    rate = card.bandwidth * BANDWIDTH_REACHED
    counted = COUNTED[name]
    parts["elements"] = (counted.passes * tokens * encoder.embed_dim * 2 + counted.fixed) / rate
    layers, share = encoder.layers + decoder_layers, sequences / SEQUENCES_PER_UPDATE
    width, inner = encoder.embed_dim, encoder.ffn_embed_dim
    parameters = layers * width * (4 * width + inner * (3 if encoder.gated else 2)) + VOCABULARY * width
    parts["update"] = (share * BYTES_OF_UPDATE + (1 - share) * BYTES_OF_SUM) * parameters / rate
    host = counted.launches * HOST_LAUNCH + share * HOST_UPDATE + (encoder.layers * HOST_KERNELS if relative else 0.0)
    return {**parts, "host": host}


def measured_rate(runs: list[dict[str, Any]], card: str, name: str) -> str:
    """Return the tokens/s of the latest measurement in bf16 on a card at 15 %, or "-"."""
    contender, size = MEASURED_AS.get(name, ("", ""))
    for run in reversed(runs):
        settings = run["settings"]
        wanted = (settings["size"], settings["precision"], settings["masking"]) == (size, "bf16", MASKING)
        wall = run["contenders"].get(contender, {}).get("wall")
        if wanted and wall and card in run["machine"].get("gpu", ""):
            return f"{settings['length'] * settings['sequences'] / wall['seconds'][0] / 1e3:,.0f}"
    return "-"


def compare(path: Path) -> list[dict[str, Any]]:
    """Return the measurements of pretraining.py with the predictions for their cards, if any."""
    found = []
    for run in read_runs(path):
        settings = run["settings"]
        for row in evaluate(run):
            same = [
                each
                for each in rows(recorded_kernels(), [])
                if each["card"] in run["machine"].get("gpu", "")
                and MEASURED_AS.get(f"maelm_{each['size']}") == (row["name"], settings["size"])
                and (settings["precision"], settings["masking"]) == ("bf16", MASKING)
            ]
            entry = {name: run[name] for name in ("date", "machine", "settings")}
            found.append({**entry, "predicted": same[0] if same else None, "measured": row})
    return found


def recorded_kernels(path: Path = RESULTS / "kernel_compilation.json") -> list[dict[str, Any]]:
    """Return what is known of the kernels with dropout that base models run in bf16."""
    compiled = json.loads(path.read_text(encoding="utf-8"))
    kernels = [each for each in compiled["kernels"] if (each["dtype"], each["head_dim"]) == ("bfloat16", 64)]
    return [each for each in kernels if each["dropout"] > 0]


def rows(kernels: list[dict[str, Any]], runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each card and size."""
    for card_name, card in CARDS.items():
        own = {each["kernel"]: each for each in kernels if each["capability"] == card.capability}
        for name, sequences in BATCHES.items():
            parts = predict(card, name, own)
            host = parts.pop("host")
            busy = sum(parts.values())
            seconds, longest = max(busy, host), max(parts, key=parts.__getitem__)
            predicted = round(MASKING * LENGTH)
            flops = training_flops(shape_of(name), BatchShape(sequences, LENGTH, LENGTH - predicted, predicted))
            yield {
                "card": card_name,
                "size": name.removeprefix("maelm_"),
                "sequences": sequences,
                "1,000 tokens/s": f"{sequences * LENGTH / seconds / 1e3:,.0f}",
                "measured": measured_rate(runs, card_name, name),
                "MFU": f"{flops / seconds / card.peak:.0%}",
                "limited by": "host" if host > busy else f"{longest}, {parts[longest] / busy:.0%}",
                **{f"{part}, ms": f"{1e3 * value:.1f}" for part, value in {**parts, "host": host}.items()},
            }


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, default=RESULTS / "kernel_compilation.json")
    parser.add_argument("--measured", type=Path, help="JSON file of pretraining.py")
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    runs = read_runs(options.measured) if options.measured else []
    table = tabulate(
        list(rows(recorded_kernels(options.kernels), runs)), headers="keys", tablefmt="github", disable_numparse=True
    )
    print(table)
    if options.output:
        options.output.write_text(f"# Predicted training steps, not measured\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
