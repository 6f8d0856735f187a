"""The command ``maelm pretrain``."""

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.checkpoints.locate import add_checkpoint
from fairseq_maelm.data.token_files import read_index
from fairseq_maelm.launch.options import (
    OF_MACHINE,
    Machine,
    add_machine_arguments,
    count_gpus,
    fairseq_train,
    load_yaml,
    machine_of,
    mapping_of,
    names_in,
    number_if_it_is_one,
    recipe_type,
    spelled,
)
from fairseq_maelm.launch.training import add_run_arguments, after_interrupt, end_training, start_training
from fairseq_maelm.options import USER_DIR, UsageError, add_output, number

PASSES_OPTIONS_ON = True
AFTER_INTERRUPT = after_interrupt

RECIPES = USER_DIR / "recipes" / "pretraining"
_OBJECTIVES = ("mae-lm", "mlm")
_SIZES = ("batch-sequences", "sequence-length", "sequences-per-gpu")
_NUMBERS = {**dict.fromkeys((*_SIZES, "max-update"), number(int, 1)), "passes": number(float, above=0, below=math.inf)}
# Options of fairseq-train that follow from settings of the recipe.
_COMPUTED = {
    "tokens-per-sample": "sequence-length",
    "max-tokens": "sequences-per-gpu",
    "update-freq": "batch-sequences",
    "total-num-update": "max-update",
}
# Option of fairseq-train -> option of this command that decides it; the first of several decides the others.
_OWNED = {
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
# and the driver need some); the assumed memory without a GPU; the largest choice for a CPU, or for a recipe without
# memory-gb.
_CHOICES = (8, 16, 32, 64, 128, 256)
_USABLE = 0.8
_UNKNOWN_GPU = 40e9
_DEFAULT_CHOICE = 32
# As in the authors' script: the loss scale starts low and is doubled after 256 updates without overflow.
_FP16 = {"fp16-scale-window": 256}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm pretrain``."""
    parser.usage = (
        "maelm pretrain DATA --output FOLDER (--recipe NAME | --checkpoint PATH) [options] [-- FAIRSEQ OPTIONS]"
    )
    parser.description = (
        "Pretrains with fairseq-train by a recipe. The batch size is the same for any number of GPUs. The same "
        "command resumes an interrupted run. Options after -- are passed to fairseq-train and override the recipe, "
        "except those that this command decides. By "
        "default all GPUs of the machine are used; under torchrun or SLURM, --gpus counts the GPUs of all machines."
    )
    parser.add_argument(
        "data", metavar="DATA", help="folder written by `maelm prepare corpus`, or its shards separated by colons"
    )
    add_output(parser, "folder for the checkpoints")
    parser.add_argument("--arch", metavar="NAME", help="architecture (default: the recipe's)")
    parser.add_argument(
        "--recipe", type=recipe_type(RECIPES), metavar="NAME",
        help=f"a YAML file, or one of {', '.join(names_in(RECIPES))} (default: the recipe of --arch, or 'adapt' "
        "with --checkpoint)",
    )  # fmt: skip
    add_checkpoint(parser, "encoder or pretrained model to continue from", required=False)
    parser.add_argument(
        "--objective", choices=_OBJECTIVES, default=_OBJECTIVES[0],
        help="with --checkpoint: train by MAE-LM (mae-lm) or by BERT's masked language modeling (mlm, 80/10/10), "
        "which is only for encoders without a decoder",
    )  # fmt: skip
    parser.add_argument(
        "--general-data", metavar="DATA",
        help="with --checkpoint: folder of general text, prepared with the same vocabulary, to mix into the training; "
        "training stops if the loss on its valid split rises too far",
    )  # fmt: skip
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help=f"changes to the recipe: {', '.join(_SIZES)}, passes, or any option of fairseq-train, such as lr=1e-3; "
        "NAME=true passes the option as a flag, NAME=none omits it",
    )  # fmt: skip
    add_machine_arguments(parser)
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Pretrain, or print the fairseq-train command."""
    folders = [Path(folder) for folder in args.data.split(":")]
    if not (folders[0] / "dict.txt").is_file():
        if shards := sorted(path.parent for path in folders[0].glob("*/dict.txt")):
            raise UsageError(f"{folders[0]} is a folder of shards: give {':'.join(map(str, shards))} as DATA")
        raise FileNotFoundError(
            f"there is no dict.txt in {folders[0]}: DATA must be the folder of `maelm prepare corpus`"
        )
    for index in (path for folder in folders for path in folder.glob("*.idx") if path.with_suffix(".bin").is_file()):
        read_index(str(index.with_suffix("")))
    changes = dict(map(_setting, args.set))
    recipe = _recipe(args, changes)
    if args.checkpoint is not None:
        from fairseq_maelm.launch.continued import continue_from  # imports torch and fairseq

        recipe = continue_from(recipe, changes, args.checkpoint, folders, args.objective, args.general_data)
    import torch  # takes seconds

    visible = range(torch.cuda.device_count())
    memory = min((torch.cuda.get_device_properties(gpu).total_memory for gpu in visible), default=_UNKNOWN_GPU)
    options = train_options(recipe, machine_of(count_gpus(args.gpus, None, args.dry_run), args.precision), memory)
    words = [*fairseq_train(args.data, args.output, options), *args.fairseq_options]
    after = ["fill", "--checkpoint", args.output, "A text with a <mask>."]
    what = f"pretraining {options['arch']}"
    if args.checkpoint is not None:
        what, after = "further pretraining", ["export", "--checkpoint", args.output, "--output", "FOLDER"]
    start_training(words, args, f"{what} on {args.data}", _OWNED)
    end_training(args, after)


def _setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE from --set into the name and the converted value."""
    name, equals, value = text.partition("=")
    name = name.replace("_", "-")
    if not equals:
        raise UsageError(f"--set {text}: give NAME=VALUE")
    if name in (*_COMPUTED, "save-dir"):
        raise UsageError(f"--set {text}: give {_OWNED[name]} instead")
    return name, _WORDS.get(value.lower(), number_if_it_is_one(value))


def _recipe(args: argparse.Namespace, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Read the recipe that the arguments name, and apply --set and --arch."""
    if args.recipe is None and args.arch is None and args.checkpoint is None:
        raise UsageError(f"give --arch, --checkpoint, or --recipe with one of {', '.join(names_in(RECIPES))}")
    if args.checkpoint is not None and (args.arch is not None or "arch" in changes):
        raise UsageError("with --checkpoint the architecture is the checkpoint's: omit --arch")
    if args.checkpoint is not None and "finetune-from-model" in changes:
        raise UsageError("--checkpoint names the checkpoint to start from: omit --set finetune-from-model")
    if args.checkpoint is None and (args.general_data is not None or args.objective != _OBJECTIVES[0]):
        raise UsageError("--objective and --general-data need --checkpoint")
    by_default = Path("adapt" if args.arch is None else args.arch.removeprefix("maelm_"))
    recipe = load_yaml(args.recipe or by_default, RECIPES)
    recipe["options"] = dict(mapping_of(recipe.get("options"), "options"))
    for name, value in changes.items():
        (recipe if name in recipe and name != "options" else recipe["options"])[name] = value
    if args.arch is not None:
        recipe["options"]["arch"] = args.arch
    given = {**recipe["options"], **recipe}
    for name in given.keys() & _NUMBERS.keys():
        try:
            if (name, given[name]) != ("sequences-per-gpu", "auto"):
                _NUMBERS[name](spelled(given[name]))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--set {name} or the recipe: {error}") from None
    return recipe


def sequences_that_fit(recipe: dict[str, Any], machine: Machine, memory: float) -> int:
    """Return the largest number of sequences that a GPU with ``memory`` bytes can process at a time."""
    share = int(recipe["batch-sequences"]) // max(1, machine.gpus)
    if not machine.gpus or "memory-gb" not in recipe:
        return math.gcd(share, _DEFAULT_CHOICE)
    fixed, each = (float(number) * (2e9 if machine.precision == "fp32" else 1e9) for number in recipe["memory-gb"])
    choices = [choice for choice in _CHOICES if not share % choice] or [math.gcd(share, _CHOICES[0])]
    return max((choice for choice in choices if fixed + each * choice <= _USABLE * memory), default=choices[0])


def train_options(recipe: dict[str, Any], machine: Machine, memory: float = _UNKNOWN_GPU) -> dict[str, Any]:
    """Return the fairseq-train options for a run on all GPUs of a machine, each with ``memory`` bytes.

    Raises:
        ValueError: the recipe lacks an option, or its batch cannot be divided among the GPUs.
    """
    options = dict(recipe["options"])
    if recipe.get("sequences-per-gpu") == "auto":
        recipe = {**recipe, "sequences-per-gpu": sequences_that_fit(recipe, machine, memory)}
    missing = [name for name in _SIZES if name not in recipe]
    missing += [name for name in ("arch", "max-update") if name not in options]
    if missing:
        raise ValueError(f"the recipe does not set {', '.join(missing)}")
    batch, length, share = (int(recipe[name]) for name in _SIZES)
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
    elif options.get("lr-scheduler") == "tri_stage":
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
