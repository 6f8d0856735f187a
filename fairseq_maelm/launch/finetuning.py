"""The fairseq-train command of a fine-tuning, from a recipe, a checkpoint and a task's folder."""

import argparse
import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from fairseq import tasks, utils

from fairseq_maelm.architecture.encoder_options import DEFAULT_SIZE, SIZES
from fairseq_maelm.checkpoints.fit import dictionary_fingerprint
from fairseq_maelm.checkpoints.reader import describe_checkpoint
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.launch.command_line import fairseq_train, parsed_command, set_options, words_of
from fairseq_maelm.launch.machine import OF_MACHINE, Machine
from fairseq_maelm.launch.recipes import OWNED, SEARCHED, FineTuningRecipe
from fairseq_maelm.options import UsageError

logger = logging.getLogger(__name__)

# The paper's Table 4, and logging; a recipe can override them.
_FINE_TUNING: dict[str, Any] = {
    "optimizer": "fused_adamw",
    "adam-betas": "(0.9, 0.98)",
    "adam-eps": "1e-6",
    "weight-decay": 0.01,
    "clip-norm": 0,
    "lr-scheduler": "polynomial_decay",
    "dropout": 0.1,
    "attention-dropout": 0.1,
    "required-batch-size-multiple": 1,
    "log-interval": 100,
}
# Option of fairseq-train -> option of `maelm finetune` that decides it.
RUN_OWNED = {**OWNED, **OF_MACHINE, "maximize-best-checkpoint-metric": "--metric", "patience": "--patience"}
# What fairseq cannot parse a command without; its default is --max-update, which is 0 for no limit.
_NOT_COUNTED = {"total-num-update": 0}
# With few examples, the smallest of these batches of which a pass needs no more than so many updates.
_SMALL_BATCHES = (8, 16)
_MOST_UPDATES_OF_PASS = 90
# Epochs differ by less than the standard error of a smaller validation set: 3 % with 200 examples.
_FEWEST_TO_CHOOSE = 200
# The option that takes the encoder's sizes from --finetune-from-model.
FROM_CHECKPOINT = {"arch": "maelm"}
# Options for the length of sequences, which are limited by the encoder's positions, and for lengths within a sequence,
# which are then limited to a quarter of the positions.
_LENGTHS = ("tokens-per-sample", "max-length")
_WITHIN = ("window-overlap", "doc-stride", "max-question-length")
_INITIALIZATION = ("init_std", "embedding_init_std")


class Encoder(NamedTuple):
    """A checkpoint's encoder: options for fairseq-train, name without leading dashes -> value, and its vocabulary."""

    options: dict[str, Any]  # options that build an encoder into which the weights fit
    drawn: dict[str, Any]  # options of the random initialization before pretraining
    vocabulary: int  # fingerprint of the dictionary

    @property
    def positions(self) -> int:
        """The maximum number of tokens in a sequence."""
        return int(self.options["max-positions"])


def read_encoder(checkpoint: Path) -> Encoder:
    """Read the encoder's options from a checkpoint of our model."""
    content = describe_checkpoint(checkpoint)
    options = {name.replace("_", "-"): _plain(value) for name, value in content.encoder_options.items()}
    # A model with the sizes of another checkpoint has no named size. Any name will do: all sizes are given explicitly.
    options["arch"] = options["arch"] if options["arch"] in SIZES else DEFAULT_SIZE
    drawn = {field.replace("_", "-"): getattr(content.config.model, field) for field in _INITIALIZATION}
    return Encoder(options, drawn, content.vocabulary)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def run_command(args: argparse.Namespace, recipe: FineTuningRecipe, machine: Machine) -> tuple[list[str], Any]:
    """Return the fairseq-train command of ``maelm finetune``, and the configuration that fairseq makes of it.

    The number of updates follows from the data, which only fairseq's configuration can open. Therefore these options
    are added at the end, to both.
    """
    encoder = read_encoder(args.checkpoint)
    setting = _setting(args, recipe, encoder)
    recipe = replace(recipe, metric=args.metric or recipe.metric)
    largest, gpus = int(setting.pop("batch-size")), max(1, machine.gpus)
    if largest % gpus:
        raise UsageError(f"--batch-size {largest} must be a multiple of --gpus {gpus}")
    given = {"class-weights": args.class_weights, "pooling": args.pooling}
    of_tables = {name: value for name, value in given.items() if value is not None}
    if of_tables and recipe.options.get("criterion") != "maelm_sentences":
        raise UsageError(
            f"--{next(iter(of_tables))} is for tables of texts and labels, but {args.task} is none: omit it"
        )
    own = {"finetune-from-model": args.checkpoint, "seed": args.seed, **of_tables, "patience": args.patience}
    words = train_words({**_fixed_options(recipe, encoder, setting), **own}, args.task, args.output, machine)
    config = parsed_command([*words, *words_of(_NOT_COUNTED)], args.fairseq_options, RUN_OWNED)
    keeps_last = recipe.min_updates > 0 and not (args.patience or args.metric) and _few_to_validate(args.task)
    fits_small = recipe.min_updates > 0 and args.batch_size is None
    sizes = [size for size in _SMALL_BATCHES if size < largest and size % gpus == 0] if fits_small else []
    # A task changes its own options.
    counted = count_updates(copy.deepcopy(config), [*sizes, largest], encoder)
    size = next((size for size in sizes if counted.examples <= _MOST_UPDATES_OF_PASS * size), largest)
    updates_per_epoch = counted.updates_per_epoch[size]
    if args.epochs is None:
        setting["epochs"] = max(setting["epochs"], math.ceil(recipe.min_updates / updates_per_epoch))
    added = {**_counted_options(setting, updates_per_epoch), "batch-size": size // gpus}
    if keeps_last:
        added |= dict.fromkeys(("validate-interval", "save-interval"), added["max-epoch"])
        added["mix-start"] = _starts_frozen(config, recipe)
    others = {word.partition("=")[0] for word in args.fairseq_options}
    set_options(config, {name: value for name, value in added.items() if f"--{name}" not in others})
    return [*words, *words_of(added), *args.fairseq_options], config


def _starts_frozen(config: Any, recipe: FineTuningRecipe) -> bool:
    """Return whether the head starts from frozen states; options after -- may choose otherwise than the recipe."""
    starts = str(getattr(config.task, "head_start", None)) == "frozen"
    if not starts and recipe.options.get("head-start") == "frozen":
        logger.info("the head starts at random: the weights before training are not mixed with those after it")
    return starts


def _few_to_validate(task: Path) -> bool:
    """Return True if the validation set is too small to choose among the epochs: the last one is then kept."""
    manifest = read_json(task / MANIFEST_FILE) if (task / MANIFEST_FILE).is_file() else {}
    examples = manifest.get("splits", {}).get("valid", {}).get("examples", _FEWEST_TO_CHOOSE)
    return bool(examples < _FEWEST_TO_CHOOSE)


def _setting(args: argparse.Namespace, recipe: FineTuningRecipe, encoder: Encoder) -> dict[str, Any]:
    """Return the values of ``SEARCHED``: those of the command's options, or else the recipe's."""
    setting = dict(recipe.setting)
    if args.recipe is None:
        setting["lr"] = rate_for_width(setting["lr"], encoder.options["encoder-embed-dim"])
    given = {name: getattr(args, name.replace("-", "_")) for name in SEARCHED}
    return {**setting, **{name: value for name, value in given.items() if value is not None}}


def rate_for_width(rate: float, width: int) -> float:
    """Return a recipe's peak learning rate, scaled by max(1, 768 / ``width``)^2.

    The recipes' rates are for base models (width 768), and narrower encoders need higher rates. Example: an
    encoder of width 256, fine-tuned for ten epochs on 180 sentences of five topics, reaches 30 % accuracy with the
    recipe's rate 3e-5, and 100 % with the scaled rate 2.7e-4.
    """
    return rate * max(1.0, SIZES[DEFAULT_SIZE]["encoder_embed_dim"] / width) ** 2


def run_options(
    recipe: FineTuningRecipe,
    encoder: Encoder,
    setting: Mapping[str, Any],
    updates_per_epoch: int,
    sizes: Mapping[str, Any] = FROM_CHECKPOINT,
) -> dict[str, Any]:
    """Return the options of a run, except for the initial weights, the seed, the folders and the machine.

    ``setting`` has a value for each name in the recipe's search. ``sizes`` are the options for the encoder's sizes: for
    a run from random weights, ``encoder.options`` and ``encoder.drawn``.
    """
    return {**_fixed_options(recipe, encoder, setting, sizes), **_counted_options(setting, updates_per_epoch)}


def _fixed_options(
    recipe: FineTuningRecipe, encoder: Encoder, setting: Mapping[str, Any], sizes: Mapping[str, Any] = FROM_CHECKPOINT
) -> dict[str, Any]:
    """Return the options of a run that do not depend on the number of its updates."""
    options = {
        **_FINE_TUNING,
        "best-checkpoint-metric": recipe.metric,
        "maximize-best-checkpoint-metric": recipe.metric != "loss",
        **recipe.options,
        **sizes,
        **{name: value for name, value in setting.items() if name not in ("epochs", "warm-up")},
    }
    positions = encoder.options["max-positions"]
    if any(options.get(name, 0) > positions for name in _LENGTHS):
        most = {**dict.fromkeys(_LENGTHS, positions), **dict.fromkeys(_WITHIN, positions // 4)}
        options |= {name: min(options[name], value) for name, value in most.items() if name in options}
    return options


def _counted_options(setting: Mapping[str, Any], updates_per_epoch: int) -> dict[str, Any]:
    """Return the options of a run that depend on the number of its updates."""
    epochs = int(setting["epochs"])
    updates = epochs * updates_per_epoch
    warm_up = round(setting["warm-up"] * updates)
    return {"max-epoch": epochs, "max-update": updates, "total-num-update": updates, "warmup-updates": warm_up}


def train_words(options: Mapping[str, Any], folder: Path, save_dir: Path, machine: Machine) -> list[str]:
    """Return the command that starts a run on a task's folder, or resumes it after its last finished epoch.

    ``options`` are those of ``run_options`` plus the initial weights and the seed.
    """
    own = {"log-format": "json", "no-epoch-checkpoints": True}
    return fairseq_train(folder, save_dir, {**own, **options, **machine.options()})


class Counted(NamedTuple):
    """The number of examples and updates in a run."""

    examples: int  # number of examples that training uses
    updates_per_epoch: dict[int, int]  # batch size -> updates in a pass over these examples


def count_updates(config: Any, batch_sizes: Sequence[int], encoder: Encoder) -> Counted:
    """Count a run's training examples and, for each batch size, its updates per epoch, by making fairseq's batches.

    Batch sizes are numbers of examples over all GPUs. Data of another vocabulary than the encoder's are refused.
    """
    folder = config.task.data
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    task, checkpoint = tasks.setup_task(config.task), config.checkpoint.finetune_from_model
    if checkpoint and dictionary_fingerprint(task.source_dictionary) != encoder.vocabulary:
        raise ValueError(
            f"{folder} was not prepared with the vocabulary of {checkpoint}: prepare it with --vocabulary "
            f"{quote(str(Path(checkpoint).parent))}"
        )
    split = config.dataset.train_subset
    task.load_dataset(split, combine=True, epoch=1)
    dataset, updates, examples = task.dataset(split), {}, 0
    longest = utils.resolve_max_positions(task.max_positions(), encoder.positions, config.dataset.max_tokens)
    # --batch-size and --max-tokens limit the batches of each GPU.
    gpus = config.distributed_training.distributed_world_size
    for size in batch_sizes:
        batches = task.get_batch_iterator(
            dataset=dataset,
            max_tokens=config.dataset.max_tokens,
            max_sentences=max(1, size // gpus),
            max_positions=longest,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=config.dataset.required_batch_size_multiple,
            seed=config.common.seed,
            disable_iterator_cache=True,
        ).frozen_batches
        examples = sum(len(batch) for batch in batches)
        updates[size] = math.ceil(math.ceil(len(batches) / gpus) / config.optimization.update_freq[0])
    # Those that training uses; it leaves out questions without a located answer.
    used = len(dataset.ordered_indices())
    if examples < used:
        counts = f"{used - examples:,}", f"{used:,}", longest
        logger.warning("%s of %s training examples are longer than %s tokens and will be skipped", *counts)
    return Counted(examples, updates)
