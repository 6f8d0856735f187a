"""Sizes in a folder's config.json that its weights do not have are refused before anything of these sizes is made."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# Of which a model makes as many modules as they say, and the most that any has.
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers")
_DEEPEST = 1000
# Larger numbers of anything must be the size of some weight: positions may be computed, and have none.
_COMMON = 100_000
# A pooler, or a head that the weights lack, is made anew.
_SLACK = 2


def refuse_sizes(folder: Path, auto_class: Any, **safely: Any) -> None:
    """Compare config.json with the shapes of the weights beside it; without these there is nothing to compare.

    Args:
        folder: that ``save_pretrained`` wrote.
        auto_class: of transformers, that is to open it.
        safely: options of ``from_config`` that keep it from running code of the folder.

    Raises:
        ValueError: says which number is larger than the weights.
    """
    shapes = dict(_shapes(folder))
    if not shapes:
        return
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    largest = max(_COMMON, *(size for shape in shapes.values() for size in shape))
    for name, value in options.items():
        if type(value) is int and value > (_DEEPEST if name in _DEPTHS else largest):
            raise ValueError(f"config.json says {name} {value}, which the weights beside it do not have")
    from transformers import AutoConfig

    with torch.device("meta"):
        model = auto_class.from_config(AutoConfig.from_pretrained(folder, local_files_only=True, **safely), **safely)
    held = sum(torch.Size(shape).numel() for shape in shapes.values())
    asked = sum(parameter.numel() for parameter in model.parameters())
    if asked > _SLACK * held:
        raise ValueError(f"config.json asks for {asked:,} numbers, and the weights beside it are {held:,}")


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for file in sorted(folder.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(file, "pt") as weights:
            yield from ((name, tuple(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118
    for file in sorted(folder.glob("pytorch_model*.bin")):
        state = torch.load(file, map_location="meta", weights_only=True)
        yield from ((name, tuple(weight.shape)) for name, weight in state.items())
