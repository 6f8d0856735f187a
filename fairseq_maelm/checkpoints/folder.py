"""A checkpoint as a folder for transformers: written by ``maelm export --complete``, and read without pickle.

``model.safetensors`` holds the encoder's weights under transformers' names. All other weights are in a second file
under our names, because transformers warns of unused weights. ``checkpoint.json`` holds the rest of a fairseq
checkpoint, without the optimizer's state, and identifies the checkpoint by the checksums of both weight files.
``SHA256SUMS`` holds the checksums of all files, for ``sha256sum --check``.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_maelm.architecture.families import FAMILIES, take_weights
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.files.atomic import read_json, refuse_special_files, sha256_of
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
OTHER_WEIGHTS_FILE = "decoder_and_heads.safetensors"
SUMS_FILE = "SHA256SUMS"

_WEIGHT_FILES = (WEIGHTS_FILE, OTHER_WEIGHTS_FILE)
# The files that determine the results of a checkpoint.
_VERIFIED = (CHECKPOINT_FILE, CONFIG_FILE, *_WEIGHT_FILES, DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE)


def write_folder(folder: Path, state: dict[str, Any]) -> None:
    """Add the files that make a folder with ``config.json`` and encoder weights a checkpoint, except ``SHA256SUMS``.

    ``state`` is the checkpoint without the optimizer's state, with weights in the data type in which they are saved.
    """
    from safetensors.torch import load_file

    weights = state["model"]
    encoder = load_file(folder / WEIGHTS_FILE)
    known = _weights_of_encoder(folder, encoder, state["cfg"]["model"])
    others = {name: weight.contiguous().clone() for name, weight in weights.items() if name not in known}
    save_weights(others, folder / OTHER_WEIGHTS_FILE)
    sums = {name: sha256_of(folder / name) for name in _WEIGHT_FILES}
    content = {"weights": sums, **{name: value for name, value in state.items() if name != "model"}}
    (folder / CHECKPOINT_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write weights as safetensors, with the permissions of ``config.json`` in the same folder."""
    from safetensors.torch import save_file

    save_file(weights, path, metadata={"format": "pt"})
    # The library makes files that only their owner can read.
    shutil.copymode(path.with_name(CONFIG_FILE), path)


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS_FILE)
    lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS_FILE).write_text("".join(lines), encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums recorded in a folder: file name -> SHA-256."""
    lines = (folder / SUMS_FILE).read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def read_folder(folder: Path) -> dict[str, Any]:
    """Read the content of a checkpoint from its folder; weights become <float32>."""
    from safetensors.torch import load_file

    refuse_special_files(folder.iterdir())
    sums = read_sums(folder)
    for name in _VERIFIED:
        if (name in sums or (folder / name).exists()) and sha256_of(folder / name) != sums.get(name):
            raise ValueError(f"{name} is damaged or was changed: its checksum differs from the one in {SUMS_FILE}")
    content = read_json(folder / CHECKPOINT_FILE)
    if content.pop("weights") != {name: sums[name] for name in _WEIGHT_FILES}:
        raise ValueError(f"{CHECKPOINT_FILE} belongs to other weights than those in this folder")
    encoder, others = (load_file(folder / name) for name in _WEIGHT_FILES)
    weights = {**_weights_of_encoder(folder, encoder, content["cfg"]["model"]), **others}
    return {**content, "model": {name: _single(weight) for name, weight in weights.items()}}


def _weights_of_encoder(folder: Path, encoder: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    """Return the encoder's weights under our names; the options have not been checked yet."""
    if options["encoder_layers"] > len(encoder):
        raise ValueError(
            f"its options say {options['encoder_layers']} layers, but its encoder has only {len(encoder)} weights"
        )
    family = FAMILIES[read_json(folder / CONFIG_FILE)["model_type"]]
    return take_weights(encoder, family, options, "encoder")


def _single(weight: Tensor) -> Tensor:
    return weight.float() if weight.is_floating_point() else weight
