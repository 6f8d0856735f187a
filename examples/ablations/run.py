#!/usr/bin/env python3
"""Pretrain any rows of the paper's Table 2 and Figure 4 alike, fine-tune each, and set them beside the paper's numbers.

The same command goes on after an interruption. Rows, tasks and seeds can be added to a study later.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import table
from outcomes import best, fine_tuning_marker, last_loss, pretraining_marker
from rows import ROWS, chosen, row_options, same_rows
from stages import METRICS, fine_tuning, gpus_of, is_squad, logged_name, metrics_of, model_size, pretraining
from study import Study, sitting

from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.sweep.jobs import Job, is_finished, run
from fairseq_maelm.sweep.store import data_fingerprint

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


class _HelpWithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def _at_least_1(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=_HelpWithDefaults)
    parser.add_argument("data", help="folder of `maelm prepare`; several shards with a colon between them")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, metavar="ROW",
        help=f"{', '.join(ROWS)} (default: all but those that compute at this size what another does, as delta_1)",
    )  # fmt: skip
    parser.add_argument(
        "--tasks", nargs="*", type=_named, default=[], metavar="NAME=FOLDER",
        help="of fine-tuning: sentences of examples/finetuning, or questions of `maelm prepare-squad`",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", nargs="*", type=_named, default=[], metavar="NAME=METRIC",
        help=f"{', '.join(METRICS)}; otherwise accuracy, spearman where labels are numbers, exact of answers",
    )  # fmt: skip
    parser.add_argument("--seeds", type=_at_least_1, default=5, help="of fine-tuning, for each task")
    parser.add_argument("--jobs", type=_at_least_1, default=1, help="processes side by side on the CPU")
    parser.add_argument(
        "--gpus", nargs="+", default=[], metavar="LIST",
        help="instead of --jobs, the GPUs of each process: '0 1 2' runs three on one GPU each, '0,1 2,3' two on two",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="write the commands, do nothing")
    _add_training(parser)
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pretraining, equal for all rows")
    group.add_argument("--arch", choices=SIZES, default="maelm_base", help="size")
    group.add_argument("--updates", type=_at_least_1, default=125000)
    group.add_argument("--tokens-per-sample", type=_at_least_1, default=512, help="also the number of positions")
    group.add_argument("--sample-break-mode", default="complete_doc", help="as in fairseq-train")
    group.add_argument("--max-tokens", type=_at_least_1, default=16384, help="per GPU and pass")
    group.add_argument("--update-freq", type=_at_least_1, default=64, help="passes per update, over all its GPUs")
    group.add_argument("--lr", type=float, default=5e-4)
    group.add_argument("--warm-up-updates", type=int, help="default: 8 %% of --updates, as in the paper")
    group.add_argument("--clip-norm", type=float, default=2.0)
    group.add_argument("--seed", type=int, default=1, help="of data order, masks and weights")
    group.add_argument("--mask-prob", type=float, default=0.15)
    group.add_argument("--leave-unmasked-prob", type=float, default=0.0, help="BERT: 0.1")
    group.add_argument("--random-token-prob", type=float, default=0.0, help="BERT: 0.1")
    group.add_argument("--precision", choices=("bf16", "fp16", "fp32"), help="default: fp16 on GPUs, fp32 without")
    group.add_argument(
        "--pretraining-options", type=shlex.split, default=[], metavar="OPTIONS",
        help="more of fairseq-train's, in one word: --pretraining-options='--init-std 0.05 --dropout 0'",
    )  # fmt: skip
    group = parser.add_argument_group("fine-tuning, by finetune.sh of examples/finetuning or examples/squad")
    group.add_argument("--fine-tuning-lr", type=float, default=3e-5)
    group.add_argument("--fine-tuning-epochs", type=_at_least_1, default=3)
    group.add_argument("--fine-tuning-batch-size", type=_at_least_1, default=32)
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
    args.precision = args.precision or ("fp16" if args.gpus else "fp32")
    if args.warm_up_updates is None:
        args.warm_up_updates = round(0.08 * args.updates)
    mistake = _mistake(args)
    if mistake:
        parser.error(mistake)
    return args


def _mistake(args: argparse.Namespace) -> str:
    for folder in args.data.split(":"):
        if not (Path(folder) / "dict.txt").exists():
            return f"there is no dict.txt in {folder}: DATA must be the folder of `maelm prepare`"
    for name, folder in args.tasks.items():
        if not (is_squad(Path(folder)) or (Path(folder) / "input0" / "train.idx").exists()):
            return (
                f"{folder} (--tasks {name}) has no input0/train.idx and no train.npz: make it with examples/finetuning "
                "or `maelm prepare-squad`"
            )
        if args.metrics[name] not in metrics_of(Path(folder)):
            suitable = ", ".join(metrics_of(Path(folder)))
            return f"the metric {args.metrics[name]} does not suit --tasks {name}: choose one of {suitable}"
    if set(args.metrics) - set(args.tasks):
        return f"--metrics names no task: {', '.join(sorted(set(args.metrics) - set(args.tasks)))}"
    sizes = {gpus_of(slot) for slot in args.gpus}
    if len(sizes) > 1:
        return "--gpus: every process needs the same number of GPUs, or rows would see their data in another order"
    if sizes and args.update_freq % max(sizes):
        return f"--update-freq {args.update_freq} must be a multiple of the {max(sizes)} GPUs of a process"
    return ""


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """What decides the results, to compare with an earlier command's."""
    size = model_size(args.arch, args.pretraining_options)
    tasks = {
        name: {"folder": folder, "fingerprint": data_fingerprint(Path(folder)), "metric": args.metrics[name]}
        for name, folder in args.tasks.items()
    }
    return {
        "data": args.data,
        "fingerprints": [data_fingerprint(Path(folder)) for folder in args.data.split(":")],
        "gpus_of_a_process": gpus_of(args.gpus[0]) if args.gpus else 0,
        "pretraining": {name: getattr(args, name) for name in _PRETRAINING},
        "fine_tuning": {name: getattr(args, name) for name in _FINE_TUNING},
        "rows": {row.name: row_options(row, size) for row in chosen(args.rows)},
        "tasks": tasks,
        "seeds": args.seeds,
    }


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """A pretraining for each row, followed by its fine-tunings."""
    jobs = []
    for row in chosen(args.rows):
        marker = pretraining_marker(args.output, row.name)
        save_dir = marker.parent / "checkpoints"
        job = Job(
            f"{row.name} pretraining",
            marker,
            lambda slot, row=row, save_dir=save_dir: pretraining(args, row, save_dir, slot),
            last_loss,
            resumes=True,
        )
        for task in args.tasks:
            logged = logged_name(args.metrics[task], Path(args.tasks[task]))
            for seed in range(1, args.seeds + 1):
                own = fine_tuning_marker(args.output, row.name, task, seed)
                start = (args, task, seed, save_dir / "checkpoint_last.pt", own.parent)
                job.followers.append(
                    Job(
                        f"{row.name} {task} seed {seed}",
                        own,
                        lambda slot, start=start: fine_tuning(*start, slot),
                        lambda log, logged=logged: best(log, f"valid_{logged}"),
                    )
                )
        jobs.append(job)
    return jobs


def run_all(args: argparse.Namespace) -> list[str]:
    """Do what is not done yet, and write the table even when interrupted.

    Returns:
        the runs without a result.
    """
    with Study(args.output, settings_of(args)):
        jobs = jobs_of(args)
        try:
            run(jobs, args.gpus or [""] * args.jobs)
        finally:
            sys.stdout.write(f"\n{table.write(args.output)}\n{args.output / 'table.md'}, with table.csv beside it\n")
    return [each.name for job in jobs for each in (job, *job.followers) if not is_finished(each.marker)]


def main(arguments: Sequence[str]) -> None:
    """Run the study.

    Raises:
        SystemExit: 1 if runs failed or something must be put right first, 130 when interrupted.
    """
    args = parse(arguments)
    slots = args.gpus or [""]
    if args.dry_run:
        for job in jobs_of(args):
            for each in (job, *job.followers):
                sys.stdout.write(f"# {each.name}\n{each.process(slots[0])}\n")
        return
    with sitting("run.py"):
        failed = run_all(args)
    if failed:
        raise SystemExit(f"{len(failed)} runs have no result ({failed[0]}, ...): their logs say why")


if __name__ == "__main__":
    main(sys.argv[1:])
