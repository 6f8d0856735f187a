"""The options of fairseq-train for ``maelm pretrain``, from a recipe, --set, --flops and the machine."""

import argparse
import logging
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_maelm.launch.command_line import number_if_it_is_one, spelled
from fairseq_maelm.launch.machine import OF_MACHINE, UNKNOWN_GPU, Machine
from fairseq_maelm.launch.recipes import SIZES, PretrainingRecipe, read_recipe, recipe_names
from fairseq_maelm.options import UsageError, number

logger = logging.getLogger(__name__)

OBJECTIVES = ("mae-lm", "mlm")
_NUMBERS = {**dict.fromkeys((*SIZES, "max-update"), number(int, 1)), "passes": number(float, above=0, below=math.inf)}
# Options of fairseq-train that follow from settings of the recipe.
_COMPUTED = {
    "tokens-per-sample": "sequence-length",
    "max-tokens": "sequences-per-gpu",
    "update-freq": "batch-sequences",
    "total-num-update": "max-update",
}
# Option of fairseq-train -> option of this command that decides it; the first of several decides the others.
OWNED = {
    "save-dir": "--output",
    "arch": "--arch",
    "finetune-from-model": "--checkpoint",
    "general-data": "--general-data",
    "max-update": "--set max-update",
    **{option: f"--set {name}" for option, name in _COMPUTED.items()},
    **OF_MACHINE,
}
# Values of --set that are not numbers or text.
_WORDS = {"true": True, "false": False, "none": None}
# For sequences-per-gpu=auto: the choices; the usable share of a GPU's memory (the allocator, the exchange between GPUs
# and the driver need some); the largest choice for a CPU, or for a recipe without memory-gb.
_CHOICES = (8, 16, 32, 64, 128, 256)
_USABLE = 0.8
_DEFAULT_CHOICE = 32
# As in the authors' script: the loss scale starts low and is doubled after 256 updates without overflow.
_FP16 = {"fp16-scale-window": 256}


def parse_change(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE from --set into the name and the converted value."""
    name, equals, value = text.partition("=")
    name = name.replace("_", "-")
    if not equals:
        raise UsageError(f"--set {text}: give NAME=VALUE")
    if name in (*_COMPUTED, "save-dir"):
        raise UsageError(f"--set {text}: give {OWNED[name]} instead")
    return name, _WORDS.get(value.lower(), number_if_it_is_one(value))


def choose_recipe(args: argparse.Namespace, changes: Mapping[str, Any]) -> PretrainingRecipe:
    """Return the recipe that the arguments of ``maelm pretrain`` name, with the changes of --set and --arch."""
    names, by_arch = recipe_names(PretrainingRecipe), (args.arch or "").removeprefix("maelm_")
    if args.recipe is None and args.checkpoint is None and by_arch not in names:
        what = f"there is no recipe for --arch {args.arch}: give" if args.arch else "give --arch, --checkpoint, or"
        raise UsageError(f"{what} --recipe with one of {', '.join(names)}")
    if args.checkpoint is not None and (args.arch is not None or "arch" in changes):
        raise UsageError("with --checkpoint the architecture is the checkpoint's: omit --arch")
    if args.checkpoint is not None and "finetune-from-model" in changes:
        raise UsageError("--checkpoint names the checkpoint to start from: omit --set finetune-from-model")
    if args.checkpoint is None and (args.general_data is not None or args.objective != OBJECTIVES[0]):
        raise UsageError("--objective and --general-data need --checkpoint")
    recipe = read_recipe(args.recipe or Path(by_arch or "adapt"), PretrainingRecipe)
    recipe = changed(recipe, changes if args.arch is None else {**changes, "arch": args.arch})
    given = {**recipe.options, **recipe.setting}
    for name in given.keys() & _NUMBERS.keys():
        try:
            if (name, given[name]) != ("sequences-per-gpu", "auto"):
                _NUMBERS[name](spelled(given[name]))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--set {name} or the recipe: {error}") from None
    return recipe


def changed(recipe: PretrainingRecipe, changes: Mapping[str, Any]) -> PretrainingRecipe:
    """Return a recipe with other values of settings, or else of options of fairseq-train."""
    setting = {name: changes.get(name, value) for name, value in recipe.setting.items()}
    options = {name: value for name, value in changes.items() if name not in setting}
    return replace(recipe, setting=setting, options={**recipe.options, **options})


def update_flops(configuration: Any, vocabulary: int, checkpoint: Any = None) -> float:
    """Count the FLOPs of an update: the matrix products of full sequences, and those of Muon.

    Updates before --half-length-until cost a little less, which is not counted. With a checkpoint to start from, its
    sizes are the model's; ``vocabulary`` is the number of symbols, <mask> included.
    """
    from fairseq_maelm.architecture.config import DECODER_OPTIONS, complete_config  # these import torch
    from fairseq_maelm.architecture.encoder_options import ENCODER_OPTIONS
    from fairseq_maelm.models.flops import BatchShape, ModelShape, muon_flops, training_flops

    model, task, optimization = configuration.model, configuration.task, configuration.optimization
    if checkpoint is not None:
        known = ENCODER_OPTIONS + (DECODER_OPTIONS if checkpoint.has_decoder else ())
        for name in known:
            setattr(model, name, getattr(checkpoint.config.model, name))
        if not checkpoint.has_decoder and model.decoder_layers is None:
            model.decoder_layers = model.encoder_layers  # a new shared decoder
    complete_config(model)
    rate, end = task.mask_prob, task.mask_prob_end
    task.mask_prob = rate if end is None else (rate + end) / 2
    updates = optimization.update_freq[0] * configuration.distributed_training.distributed_world_size
    sequences = configuration.dataset.max_tokens // task.tokens_per_sample * updates
    shape = ModelShape.from_config(model, vocabulary)
    flops = training_flops(shape, BatchShape.from_config(task, sequences))
    return flops + (muon_flops(shape) if configuration.optimizer._name == "muon" else 0.0)


def settings_within(budget: float, each: float, options: Mapping[str, Any], given: Collection[str]) -> dict[str, int]:
    """Return "max-update" of a run of at most ``budget`` FLOPs, and a shorter run's "warmup-updates".

    An update takes ``each`` FLOPs. ``options`` are the recipe's; ``given`` has the names of the user's settings.
    """
    updates = int(budget / each)
    if not updates:
        raise UsageError(f"--flops {budget:g} is less than one update, which takes {each:.3g} FLOPs")
    logger.info("%g FLOPs are %s updates of %.3g FLOPs", budget, f"{updates:,}", each)
    settings = {"max-update": updates}
    usual, warm_up = options.get("max-update"), options.get("warmup-updates")
    if warm_up and usual and updates < int(usual) and "warmup-updates" not in given:
        settings["warmup-updates"] = max(1, round(int(warm_up) * updates / int(usual)))
    return settings


def sequences_that_fit(setting: Mapping[str, Any], machine: Machine, memory: float) -> int:
    """Return the largest number of sequences that a GPU with ``memory`` bytes can process at a time."""
    share = int(setting["batch-sequences"]) // max(1, machine.gpus)
    if not machine.gpus or "memory-gb" not in setting:
        return math.gcd(share, _DEFAULT_CHOICE)
    fixed, each = (float(number) * (2e9 if machine.precision == "fp32" else 1e9) for number in setting["memory-gb"])
    choices = [choice for choice in _CHOICES if not share % choice] or [math.gcd(share, _CHOICES[0])]
    return max((choice for choice in choices if fixed + each * choice <= _USABLE * memory), default=choices[0])


def train_options(recipe: PretrainingRecipe, machine: Machine, memory: float = UNKNOWN_GPU) -> dict[str, Any]:
    """Return the fairseq-train options for a run on all GPUs of a machine, each with ``memory`` bytes."""
    options, setting = recipe.options, recipe.setting
    if setting.get("sequences-per-gpu") == "auto":
        setting = {**setting, "sequences-per-gpu": sequences_that_fit(setting, machine, memory)}
    missing = [name for name in SIZES if name not in setting]
    missing += [name for name in ("arch", "max-update") if name not in options]
    if missing:
        raise ValueError(f"the recipe does not set {', '.join(missing)}")
    batch, length, share = (int(setting[name]) for name in SIZES)
    step = max(1, machine.gpus) * share
    if batch % step:
        # No number of sequences each divides a batch that the GPUs do not divide.
        nearest = step * max(1, round(batch / step))
        other = f"batch-sequences={nearest}" if batch % max(1, machine.gpus) else "sequences-per-gpu=..."
        raise ValueError(
            f"the batch of {batch} sequences is not a multiple of {step} ({max(1, machine.gpus)} GPUs with {share} "
            f"sequences each): change --gpus, or --set {other}"
        )
    own = {
        "tokens-per-sample": length,
        "max-positions": options.get("max-positions", length),
        "max-tokens": share * length,
        "update-freq": batch // step,
    }
    if options.get("lr-scheduler") == "polynomial_decay":
        own["total-num-update"] = options["max-update"]
    elif str(options.get("lr-scheduler")).startswith("tri_stage"):
        _refuse_without_decay(options)
    at = machine.options()
    if machine.precision == "fp16":
        at |= _FP16
        # Muon needs the shapes of the weights, which fairseq joins in one vector otherwise.
        own["fp16-no-flatten-grads"] = options.get("optimizer") == "muon"
    return {**at, **options, **own}


def _refuse_without_decay(options: Mapping[str, Any]) -> None:
    """Refuse so few updates that none is left for the last phase, by which fairseq would divide."""
    share = re.search(r"([0-9.e-]+)\s*[\])]\s*$", str(options.get("phase-ratio", "")))
    if share and int(options["max-update"] * float(share[1])) == 0:
        raise ValueError(
            f"max-update={options['max-update']} leaves no update for the last phase of phase-ratio "
            f"{options['phase-ratio']}, in which the learning rate falls: give more updates, or another phase-ratio"
        )
