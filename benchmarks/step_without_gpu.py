"""Tell what one training step of a recipe launches on a GPU and needs of its memory, without a GPU.

    python benchmarks/step_without_gpu.py [RECIPE...] [--precision fp16] [--json FILE]

Forward pass, loss, backward pass, clipping and update run on fake tensors; see fake_gpu. Prints a table: launches, the
bytes of the model with its gradients and optimizer, those of each sequence of a batch, the bytes that kernels read and
write for each sequence, products and attention apart, and how many sequences `maelm pretrain` gives to GPUs of 40, 80
and 141 GB.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import fake_gpu  # before torch
from fake_gpu.device import plug_in
from fake_gpu.step import take_step

from fairseq_maelm.commands.pretrain import RECIPES, sequences_that_fit
from fairseq_maelm.training.options import Machine, load_yaml, names_in

CARDS = (40, 80, 141)
# Symbols of the recipes' vocabularies.
CASED, UNCASED = 64_000, 32_768
FEW, MANY = 8, 32


def describe(name: str, precision: str) -> dict[str, Any]:
    """Take two steps of a recipe and return what the batch's size adds, and what is there without it."""
    recipe = load_yaml(Path(name), RECIPES)
    sizes = recipe["sequence-length"], CASED if name.endswith("plus_plus") else UNCASED
    options = {name: recipe["options"][name] for name in ("dropout", "attention-dropout")}
    changes = {name.replace("-", "_"): value for name, value in options.items()}
    few, many = (take_step(recipe["options"]["arch"], count, *sizes, precision, **changes) for count in (FEW, MANY))
    each = (many.peak - few.peak) / (MANY - FEW)
    found = {"fixed": (few.peak - FEW * each) / 1e9, "sequence": each / 1e9, "recipe": name, "precision": precision}
    found |= {"layers": many.layers, "launches": many.launches, "update_launches": many.update_launches}
    found["moved"] = (many.moved - few.moved) / (MANY - FEW) / 1e9
    copies, missing = few.copies + many.copies, few.without_gradient + many.without_gradient
    return {**found, "copies": copies, "without_gradient": missing}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=names_in(RECIPES), help="names of recipes (default: all)")
    parser.add_argument("--precision", nargs="+", default=["fp16", "bf16"], choices=["fp16", "bf16", "fp32"])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    plug_in()
    found = []
    cards = " | ".join(f"{size} GB" for size in CARDS)
    print(f"| recipe | precision | launches | update | model, GB | a sequence, GB | a sequence moves, GB | {cards} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in args.recipes:
        recipe = load_yaml(Path(name), RECIPES)
        for precision in args.precision:
            step = describe(name, precision)
            found.append(step)
            chosen: list[Any] = [recipe["sequences-per-gpu"]] * len(CARDS)
            if recipe["sequences-per-gpu"] == "auto":
                needed = {**recipe, "memory-gb": [step["fixed"], step["sequence"]]}
                chosen = [sequences_that_fit(needed, Machine(8, "bf16"), card * 1e9) for card in CARDS]
            sizes = [f"{step['fixed']:.2f}", f"{step['sequence']:.3f}", f"{step['moved']:.3f}"]
            cells = [name, precision, step["launches"], step["update_launches"], *sizes, *chosen]
            print("|", *(f"{cell} |" for cell in cells), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    fake_gpu.leave()


if __name__ == "__main__":
    main()
