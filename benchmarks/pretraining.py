"""The cost of a pretraining step, side by side: ours, fairseq's RoBERTa, the authors' code and Hugging Face's models.

    python benchmarks/pretraining.py --data DATA --output benchmarks/results/pretraining_cpu.json

DATA is a folder of `maelm prepare corpus`. Every contender runs in a separate process and takes real training steps
(forward, backward, clipping, optimizer) on the same sequences; they are measured in turn, one at a time, round after
round, and compared within rounds. A Markdown table is written next to the JSON. See benchmarks/README.md.
"""

import argparse
import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from training_step.contenders import CHANGES, CONTENDERS, split_name  # noqa: E402
from training_step.measure import Measurement, Plan, say  # noqa: E402
from training_step.report import report, run_report  # noqa: E402
from training_step.settings import DEVICES, PRECISIONS, SIZES, Settings  # noqa: E402
from training_step.store import is_measured, read_runs, write_runs  # noqa: E402

# What is measured unless named: the authors' code only where it is.
DEFAULT_CONTENDERS = ("maelm", "mlm", "roberta", "authors")


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list contenders and sizes, and exit")
    parser.add_argument("--data", type=Path, help="folder with dict.txt, train.bin and train.idx")
    parser.add_argument("--output", type=Path, help="result file (.json); a table is written next to it")
    parser.add_argument("--resume", action="store_true", help="skip runs that the result file already has")
    parser.add_argument("--contenders", help="names separated by commas (see --list)")
    parser.add_argument("--references", default="roberta,authors", help="contenders to compare with (roberta,authors)")
    parser.add_argument("--authors-code", type=Path, help="a copy of the authors' repository")
    parser.add_argument("--ours-options", default="", help="further fairseq-train options for our contenders")
    _add_settings(parser)
    _add_measuring(parser)
    arguments = parser.parse_args(words)
    if not arguments.list and arguments.output is None:
        parser.error("--output FILE is missing: name a file for the results")
    if not arguments.list and arguments.data is None:
        parser.error("--data FOLDER is missing: give the folder of the training text")
    return arguments


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="base", help="model size of all contenders (base)")
    parser.add_argument("--layers", type=int, help="encoder layers, for quick checks (as in --size)")
    parser.add_argument("--length", type=int, default=512, help="tokens per sequence (512)")
    parser.add_argument("--batch", type=int, help="sequences per step (4 on a CPU, 128 on a GPU)")
    parser.add_argument("--masking", type=float, nargs="+", default=[0.15, 0.4], help="masking rates (0.15 0.4)")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", help="(fp32 on a CPU, bf16 on a GPU)")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout of all contenders (0.1)")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="(cpu)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads per process (all cores)")
    parser.add_argument("--num-workers", type=int, help="data loader's processes (0 on a CPU, 4 on a GPU)")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="rounds over all contenders (5)")
    parser.add_argument("--steps", type=int, help="timed steps per round (1 on a CPU, 20 on a GPU)")
    parser.add_argument("--warm-up", type=int, help="steps before the rounds (1 on a CPU, 10 on a GPU)")
    parser.add_argument(
        "--brief", action="store_true", help="use only prepared batches and time no stages: half as many steps"
    )
    parser.add_argument("--budget", type=float, default=24.0, help="minutes after which no new round starts (24)")
    parser.add_argument("--timeout", type=float, default=900.0, help="time limit of one command, in seconds (900)")
    parser.add_argument(
        "--clock",
        choices=("wall", "processor"),
        default="wall",
        help="time in the tables; processor time suits a loaded machine",
    )


def base_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings before precisions and masking rates are applied."""
    on_gpu = arguments.device == "cuda"
    workers = arguments.num_workers
    return Settings.of_size(
        arguments.size,
        arguments.layers,
        length=arguments.length,
        sequences=arguments.batch or (128 if on_gpu else 4),
        masking=arguments.masking[0],
        dropout=arguments.dropout,
        precision="fp32",
        device=arguments.device,
        threads=arguments.threads,
        num_workers=(4 if on_gpu else 0) if workers is None else workers,
    )


def points(arguments: argparse.Namespace) -> list[Settings]:
    """Return all requested measurements."""
    base = base_settings(arguments)
    precisions = arguments.precision or ["bf16" if arguments.device == "cuda" else "fp32"]
    return [replace(base, precision=each, masking=rate) for each in precisions for rate in arguments.masking]


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the settings of the measurement; an unknown contender is a ValueError."""
    on_gpu = arguments.device == "cuda"
    names = tuple((arguments.contenders or "").split(",")) if arguments.contenders else DEFAULT_CONTENDERS
    if not arguments.contenders and arguments.authors_code is None:
        names = tuple(name for name in names if name != "authors")
    for name in names:
        split_name(name)
    check(arguments)
    return Plan(
        contenders=names,
        references=tuple(name for name in arguments.references.split(",") if name in names),
        data=str(arguments.data.resolve()),
        code=arguments.authors_code.resolve() if arguments.authors_code else None,
        extra=tuple(shlex.split(arguments.ours_options)),
        repeats=arguments.repeats,
        steps=arguments.steps or (20 if on_gpu else 1),
        # What lay idle while the others took their turns is cold.
        untimed=5 if on_gpu else int(not arguments.brief or arguments.repeats > 1),
        warm_up=arguments.warm_up or (10 if on_gpu else 1),
        profiled=10 if on_gpu else 1,
        iterations=20 if on_gpu else 1,
        timeout=arguments.timeout,
        brief=arguments.brief,
    )


def check(arguments: argparse.Namespace) -> None:
    """Raise a ValueError for what would fail in every process."""
    if arguments.authors_code is not None and not arguments.authors_code.is_dir():
        raise ValueError(f"--authors-code {arguments.authors_code} is not a folder")
    missing = [name for name in ("dict.txt", "train.bin", "train.idx") if not (arguments.data / name).is_file()]
    if missing:
        raise ValueError(
            f"--data {arguments.data} has no {', '.join(missing)}: give a folder made by `maelm prepare corpus`"
        )
    for name in ("repeats", "threads", "batch", "steps", "warm_up", "layers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1 and is {value}")


def measure(arguments: argparse.Namespace, runs: list[dict]) -> list[dict]:
    """Take all measurements left, writing the file after each; a ValueError says that all contenders of one failed."""
    plan, wanted = plan_of(arguments), points(arguments)
    if arguments.resume:
        wanted = [each for each in wanted if not is_measured(runs, each.as_dict(), plan.contenders)]
    end = time.monotonic() + 60 * arguments.budget
    for number, settings in enumerate(wanted):
        now = time.monotonic()
        # What is left of the budget is shared by the measurements that are left.
        deadline = now + max(0.0, end - now) / (len(wanted) - number)
        run = Measurement(settings, plan, deadline).run()
        runs = [*runs, run]
        write_runs(arguments.output, runs)
        print(run_report(run, arguments.clock), end="\n\n", flush=True)
        if all("error" in contender for contender in run["contenders"].values()):
            raise ValueError(f"nothing was measured: {'; '.join(each['error'] for each in run['contenders'].values())}")
    return runs


def main(words: list[str] | None = None) -> None:
    """Measure and report."""
    arguments = arguments_of(words)
    if arguments.list:
        for contender in CONTENDERS.values():
            needs = f" (needs {contender.needs})" if contender.needs else ""
            print(f"{contender.name:12} {contender.label}: {contender.description}{needs}")
        print(f"changes to append to a name: +{', +'.join(CHANGES)} for ours, +compile for Hugging Face's")
        for size, numbers in SIZES.items():
            print(f"size {size:7} {numbers[0]} layers of {numbers[1]}, {numbers[4]} decoder layers")
        return
    try:
        runs = measure(arguments, read_runs(arguments.output))
    except ValueError as error:
        raise SystemExit(str(error)) from error
    write_runs(arguments.output, runs)
    shown = arguments.output.with_suffix(".md")
    shown.write_text(report(runs, arguments.clock), encoding="utf-8")
    say(f"written: {arguments.output}, {shown}")


if __name__ == "__main__":
    main()
