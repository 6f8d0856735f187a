#!/usr/bin/env python3
"""Pretrain any rows of the paper's Table 2 and Figure 4 alike, fine-tune each, and set them beside the paper's numbers.

The same command goes on after an interruption. Rows, tasks and seeds can be added to a study later.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study
import table
from rows import ROWS, ModelSize, Row, chosen, row_options, same_rows
from study import METRICS, is_squad, last_loss, logged_name, metrics_of
from table import fine_tuning_marker, pretraining_marker

from fairseq_maelm.arguments import CommandParser, number
from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.sweep.jobs import Job, Process, visible
from fairseq_maelm.sweep.log import best_validation
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import data_fingerprint, study_folder
from fairseq_maelm.train_command import Machine, add_precision, machine_of

# Of one machine, for pretraining.
_MOST_GPUS = 16
# How often a pretraining is validated and saved.
_STOPS = 10
# Arguments that are options of fairseq-train, and of `maelm finetune`.
_OPTIONS = (
    "arch", "sample-break-mode", "tokens-per-sample", "max-tokens", "lr", "clip-norm", "seed", "mask-prob",
    "leave-unmasked-prob", "random-token-prob",
)  # fmt: skip
_SETTING = ("lr", "epochs", "batch-size", "warm-up")
# What decides the results, apart from data, rows and tasks.
_PRETRAINING = (
    "arch", "updates", "tokens_per_sample", "sample_break_mode", "max_tokens", "update_freq", "lr", "warm_up_updates",
    "clip_norm", "seed", "mask_prob", "leave_unmasked_prob", "random_token_prob", "precision", "pretraining_options",
)  # fmt: skip
_FINE_TUNING = (
    "fine_tuning_lr", "fine_tuning_epochs", "fine_tuning_batch_size", "fine_tuning_warm_up", "fine_tuning_options",
)  # fmt: skip


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.replace("-", "").replace("_", "").isalnum() and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", help="folder of `maelm prepare corpus`; several shards with a colon between them")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, metavar="ROW",
        help=f"{', '.join(ROWS)} (default: all but those that compute at this size what another does, as delta_1)",
    )  # fmt: skip
    parser.add_argument(
        "--tasks", nargs="*", type=_named, default=[], metavar="NAME=FOLDER",
        help="of fine-tuning: sentences of examples/finetuning, or questions of `maelm prepare squad`",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", nargs="*", type=_named, default=[], metavar="NAME=METRIC",
        help=f"{', '.join(METRICS)}; otherwise accuracy, spearman where labels are numbers, exact of answers",
    )  # fmt: skip
    parser.add_argument("--seeds", type=number(int, 1), default=5, help="of fine-tuning, for each task")
    add_runner_arguments(parser)
    _add_training(parser)
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pretraining, equal for all rows")
    group.add_argument("--arch", choices=SIZES, default="maelm_base", help="size")
    group.add_argument("--updates", type=number(int, 1), default=125000)
    group.add_argument("--tokens-per-sample", type=number(int, 1), default=512, help="also the number of positions")
    group.add_argument("--sample-break-mode", default="complete_doc", help="as in fairseq-train")
    group.add_argument("--max-tokens", type=number(int, 1), default=16384, help="per GPU and pass")
    group.add_argument("--update-freq", type=number(int, 1), default=64, help="passes per update, over all its GPUs")
    group.add_argument("--lr", type=float, default=5e-4)
    group.add_argument("--warm-up-updates", type=int, help="default: 8 %% of --updates, as in the paper")
    group.add_argument("--clip-norm", type=float, default=2.0)
    group.add_argument("--seed", type=int, default=1, help="of data order, masks and weights")
    group.add_argument("--mask-prob", type=float, default=0.15)
    group.add_argument("--leave-unmasked-prob", type=float, default=0.0, help="BERT: 0.1")
    group.add_argument("--random-token-prob", type=float, default=0.0, help="BERT: 0.1")
    add_precision(group)
    group.add_argument(
        "--pretraining-options", type=shlex.split, default=[], metavar="OPTIONS",
        help="more of fairseq-train's, in one word: --pretraining-options='--init-std 0.05 --dropout 0'",
    )  # fmt: skip
    group = parser.add_argument_group("fine-tuning, by `maelm finetune`")
    group.add_argument("--fine-tuning-lr", type=float, default=3e-5)
    group.add_argument("--fine-tuning-epochs", type=number(int, 1), default=3)
    group.add_argument("--fine-tuning-batch-size", type=number(int, 1), default=32)
    group.add_argument("--fine-tuning-warm-up", type=float, default=0.06, help="fraction of the updates")
    group.add_argument("--fine-tuning-options", type=shlex.split, default=[], metavar="OPTIONS", help="as above")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line and complete it; a mistake ends the program before anything is written."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    if len({name for name, _ in args.tasks}) < len(args.tasks):
        parser.error("two --tasks have the same name")
    twins = same_rows(model_size(args.arch, args.pretraining_options))
    args.rows = args.rows or [name for name in ROWS if name not in twins]
    args.output = args.output.resolve()
    args.data = ":".join(str(Path(folder).resolve()) for folder in args.data.split(":"))
    args.tasks = {name: str(Path(folder).resolve()) for name, folder in args.tasks}
    args.metrics = {name: metrics_of(Path(folder))[0] for name, folder in args.tasks.items()} | dict(args.metrics)
    try:
        args.runner = runner_of(args, _MOST_GPUS)
        args.precision = machine_of(args.runner.gpus, args.precision).precision
    except ValueError as error:
        parser.error(str(error))
    if args.warm_up_updates is None:
        args.warm_up_updates = round(0.08 * args.updates)
    mistake = _mistake(args)
    if mistake:
        parser.error(mistake)
    return args


def _mistake(args: argparse.Namespace) -> str:
    for folder in args.data.split(":"):
        if not (Path(folder) / "dict.txt").exists():
            return f"there is no dict.txt in {folder}: DATA must be the folder of `maelm prepare corpus`"
    for name, folder in args.tasks.items():
        if not (is_squad(Path(folder)) or (Path(folder) / "input0" / "train.idx").exists()):
            return (
                f"{folder} (--tasks {name}) has no input0/train.idx and no train.npz: make it with examples/finetuning "
                "or `maelm prepare squad`"
            )
        if args.metrics[name] not in metrics_of(Path(folder)):
            suitable = ", ".join(metrics_of(Path(folder)))
            return f"the metric {args.metrics[name]} does not suit --tasks {name}: choose one of {suitable}"
    if set(args.metrics) - set(args.tasks):
        return f"--metrics names no task: {', '.join(sorted(set(args.metrics) - set(args.tasks)))}"
    if args.update_freq % max(1, args.runner.gpus):
        return f"--update-freq {args.update_freq} must be a multiple of the {args.runner.gpus} GPUs of a process"
    return ""


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return what decides the results, to compare with an earlier command's."""
    size = model_size(args.arch, args.pretraining_options)
    tasks = {
        name: {"folder": folder, "fingerprint": data_fingerprint(Path(folder)), "metric": args.metrics[name]}
        for name, folder in args.tasks.items()
    }
    return {
        "data": args.data,
        "fingerprints": [data_fingerprint(Path(folder)) for folder in args.data.split(":")],
        "gpus_of_a_process": args.runner.gpus,
        "pretraining": {name: getattr(args, name) for name in _PRETRAINING},
        "fine_tuning": {name: getattr(args, name) for name in _FINE_TUNING},
        "rows": {row.name: row_options(row, size) for row in chosen(args.rows)},
        "tasks": tasks,
        "seeds": args.seeds,
    }


def model_size(arch: str, options: list[str]) -> ModelSize:
    """Return the size that rows start from: the architecture's, unless an option changes it."""
    encoder = ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "encoder_layers")
    fields = (*encoder, "decoder_layers")
    sizes = dict(SIZES[arch])
    for word, value in zip(options, options[1:]):
        field = word[2:].replace("-", "_")
        if word.startswith("--") and field in fields:
            sizes[field] = int(value)
    return ModelSize(*(sizes[field] for field in fields))


def pretraining(args: argparse.Namespace, row: Row, save_dir: Path, slot: str) -> Process:
    """Return the command that pretrains a row, whose own options and folder alone differ from those of other rows."""
    gpus = args.runner.gpus
    shared = {name: getattr(args, name.replace("-", "_")) for name in _OPTIONS}
    options = {
        **shared,
        **Machine(gpus, args.precision).options(),
        **({"fp16-scale-window": 256} if args.precision == "fp16" else {}),
        "max-positions": args.tokens_per_sample,
        "update-freq": args.update_freq // max(1, gpus),
        "max-update": args.updates,
        "total-num-update": args.updates,
        "warmup-updates": args.warm_up_updates,
        "lr-scheduler": "polynomial_decay",
        "save-interval-updates": max(1, args.updates // _STOPS),
        "keep-interval-updates": 1,
        "log-interval": max(1, min(100, args.updates // 100)),
    }
    own = row_options(row, model_size(args.arch, args.pretraining_options))
    return Process([*study.pretraining(args.data, save_dir, options), *args.pretraining_options, *own], visible(slot))


def fine_tuning(args: argparse.Namespace, task: str, seed: int, checkpoint: Path, save_dir: Path, slot: str) -> Process:
    """Return the command that fine-tunes an encoder, by the recipe for its kind of task, on one GPU at most."""
    own = {name: getattr(args, f"fine_tuning_{name.replace('-', '_')}") for name in _SETTING}
    own |= {"seed": seed, "gpus": min(1, args.runner.gpus), "precision": args.precision}
    words = study.fine_tuning(args.tasks[task], checkpoint, save_dir, own, ["--no-save", *args.fine_tuning_options])
    return Process(words, visible(slot.split(",")[0]))


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Return a pretraining for each row, followed by its fine-tunings: rows x tasks x seeds."""
    jobs = []
    for row in chosen(args.rows):
        marker = pretraining_marker(args.output, row.name)
        save_dir = marker.parent / "checkpoints"
        train = partial(pretraining, args, row, save_dir)
        job = Job(f"{row.name} pretraining", marker, train, last_loss, resumes=True)
        for task in args.tasks:
            logged = logged_name(args.metrics[task], Path(args.tasks[task]))
            result = partial(best_validation, metric=logged, metrics=[logged], subsets=["valid"])
            for seed in range(1, args.seeds + 1):
                own = fine_tuning_marker(args.output, row.name, task, seed)
                tune = partial(fine_tuning, args, task, seed, save_dir / "checkpoint_last.pt", own.parent)
                job.followers.append(Job(f"{row.name} {task} seed {seed}", own, tune, result))
        jobs.append(job)
    return jobs


def main(arguments: Sequence[str]) -> None:
    """Do what is not done yet, and write the table even when interrupted.

    Raises:
        SystemExit: 1 if runs failed or something must be put right first, 130 when interrupted.
    """
    args = parse(arguments)
    runner: Runner = args.runner
    with sitting("run.py"):
        if runner.dry_run:
            runner.do(jobs_of(args))
            return
        with study_folder(args.output, settings_of(args)):
            try:
                runner.do(jobs_of(args))
            finally:
                written = table.write(args.output)
                sys.stdout.write(f"\n{written}\n{args.output / 'table.md'}, with table.csv beside it\n")


if __name__ == "__main__":
    main(sys.argv[1:])
