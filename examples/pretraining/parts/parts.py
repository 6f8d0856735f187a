#!/usr/bin/env python3
"""Pretrain the rows of rows.yaml alike, and show their loss on held-out text against tokens, FLOP and time.

The same command goes on after an interruption. Rows and seeds can be added to a study later.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import study
from tabulate import tabulate

from fairseq_maelm.arguments import CommandParser, UsageError
from fairseq_maelm.files import write_bytes
from fairseq_maelm.sweep.jobs import Job, Process, is_finished, read_json, visible
from fairseq_maelm.sweep.runner import add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import data_fingerprint, study_folder
from fairseq_maelm.train_command import Machine, add_precision, machine_of

HERE = Path(__file__).resolve().parent


class Run(NamedTuple):
    """One pretraining: a row, an objective and a seed."""

    row: str
    objective: str
    seed: int
    options: dict[str, Any]
    first: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.row}.{self.objective}.seed_{self.seed}"


def runs_of(plan: dict[str, Any], rows: Sequence[str], seeds: int | None) -> Iterator[Run]:
    """Make the runs of rows, the first seeds of all before the second ones."""
    most = max(plan["rows"][name].get("seeds", 1) for name in rows)
    for seed in range(1, (seeds or most) + 1):
        for name in rows:
            row = plan["rows"][name]
            for objective in row.get("objectives", ["maelm"]):
                options = dict(plan["common"])
                for part in row["parts"]:
                    options |= plan["parts"][part]
                options |= row.get("options", {})
                options |= plan["objectives"][objective]
                if seed <= row.get("seeds", 1):
                    yield Run(name, objective, seed, options, row.get("first"))


def command(
    run: Run, tokens: int, plan: dict[str, Any], machine: Machine, data: Path, save_dir: Path, is_first: bool = False
) -> list[str]:
    """Return the command of a run, or of a part of one."""
    options = dict(run.options)
    updates = math.ceil(tokens / options["max-tokens"])
    interval = max(1, round(plan["validate-tokens"] / options["max-tokens"]))
    own = {
        **study.schedule(options, updates, decays=not is_first), **options, **machine.options(), "seed": run.seed,
        "max-update": updates, "validate-interval-updates": interval, "save-interval-updates": interval,
        "keep-interval-updates": 1, "max-tokens-valid": 8192, "max-valid-steps": 12, "log-interval": 50,
    }  # fmt: skip
    return study.pretraining(data, save_dir, own)


def job_of(run: Run, plan: dict[str, Any], machine: Machine, data: Path, output: Path) -> Job:
    """Make the job of a run; one with a first part follows that."""
    tokens, save_dir = plan["tokens"], output / "runs" / run.name
    if run.first is None:
        words = command(run, tokens, plan, machine, data, save_dir)
        return _job(run.name, output, words)
    share = run.first["share"]
    before = run._replace(options=run.options | run.first["options"])
    first_dir = output / "runs" / f"{run.name}.first"
    words = command(before, round(share * tokens), plan, machine, data, first_dir, is_first=True)
    first = _job(f"{run.name}.first", output, words)
    words = command(run, tokens - round(share * tokens), plan, machine, data, save_dir)
    words += ["--finetune-from-model", str(first_dir / "checkpoint_last.pt")]
    first.followers.append(_job(run.name, output, words))
    return first


def _job(name: str, output: Path, words: list[str]) -> Job:
    marker = output / "runs" / name / "result.json"
    return Job(name, marker, lambda slot: Process(words, visible(slot)), study.last_loss, resumes=True)


# What came out


def curve(run: Run, plan: dict[str, Any], output: Path) -> list[tuple[int, float]]:
    """Return the losses on held-out text in bits, by the tokens read until then."""
    points, per_update = [], run.options["max-tokens"]
    parts = [(run.name, 0)]
    if run.first is not None:
        parts = [(f"{run.name}.first", 0), (run.name, round(run.first["share"] * plan["tokens"]))]
    for name, before in parts:
        losses = study.losses(output / "runs" / name / "result.log")
        points += [(before + updates * per_update, loss) for updates, loss in losses.items()]
    return points


def results(runs: Sequence[Run], plan: dict[str, Any], output: Path, vocabulary: int) -> list[dict[str, Any]]:
    """Return a line for each row and objective of which a run is finished."""
    lines = []
    for row, objective in dict.fromkeys((run.row, run.objective) for run in runs):
        own = [run for run in runs if (run.row, run.objective) == (row, objective)]
        done = [run for run in own if is_finished(output / "runs" / run.name / "result.json")]
        if not done:
            continue
        found = [read_json(output / "runs" / run.name / "result.json") or {} for run in done]
        ends = [result["loss"] for result in found]
        curves = [dict(curve(run, plan, output)) for run in done]
        speeds = [result["updates_per_second"] for result in found if result.get("updates_per_second")]
        line = {"row": row, "objective": objective, "seeds": len(done)}
        for share in (0.05, 0.1, 0.25, 0.5):
            at = [_at(points, share * plan["tokens"]) for points in curves]
            line[f"{share * plan['tokens'] / 1e6:g} M"] = sum(at) / len(at)
        line["loss"] = sum(ends) / len(ends)
        line["spread"] = max(ends) - min(ends)
        line["MFLOP a token"] = study.training_flops(done[0].options, vocabulary) / 1e6
        line["tokens/s"] = median(speeds) * done[0].options["max-tokens"] if speeds else math.nan
        lines.append(line)
    return lines


def _at(points: dict[int, float], tokens: float) -> float:
    return points[min(points, key=lambda place: abs(place - tokens))]


def write_results(runs: Sequence[Run], plan: dict[str, Any], output: Path, vocabulary: int) -> str:
    """Write table.md, curves.csv and curves.png, as far as there are results; return the table."""
    lines = results(runs, plan, output, vocabulary)
    table = tabulate([line.values() for line in lines], list(lines[0]) if lines else (), "github", floatfmt=".3f")
    write_bytes(output / "table.md", (table + "\n").encode())
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["row", "objective", "seed", "tokens", "flop", "loss"])
    for run in runs:
        flops = study.training_flops(run.options, vocabulary)
        rows = curve(run, plan, output)
        writer.writerows([run.row, run.objective, run.seed, at, f"{at * flops:.4g}", loss] for at, loss in rows)
    write_bytes(output / "curves.csv", text.getvalue().encode())
    return table


def draw(output: Path) -> None:
    """Draw curves.png from curves.csv: loss against tokens and against FLOP, the main rows."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with open(output / "curves.csv", newline="", encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    names = list(dict.fromkeys((point["row"], point["objective"]) for point in points if point["seed"] == "1"))
    for number, (row, objective) in enumerate(names):
        own = [p for p in points if (p["row"], p["objective"], p["seed"]) == (row, objective, "1")]
        for axis, quantity in zip(axes, ("tokens", "flop")):
            axis.plot(
                [float(point[quantity]) for point in own], [float(point["loss"]) for point in own],
                label=f"{row}, {objective}", color=f"C{number % 10}", linestyle="--" if objective == "mlm" else "-",
            )  # fmt: skip
    for axis, label in zip(axes, ("tokens", "floating-point operations")):
        axis.set_xlabel(label)
        axis.set_xscale("log")
    axes[0].set_ylabel("bits a predicted token, held-out text, 15 % masked")
    axes[1].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(output / "curves.png", dpi=110)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder of `maelm prepare corpus`")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument("--plan", type=Path, default=HERE / "rows.yaml", metavar="FILE", help="rows and their options")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="names of rows (default: all)")
    parser.add_argument("--seeds", type=int, metavar="N", help="highest number of seeds (default: those of the rows)")
    add_precision(parser)
    add_runner_arguments(parser)
    return parser


def main(arguments: Sequence[str]) -> None:
    """Do what is not done yet, and write the table even when interrupted.

    Raises:
        SystemExit: 2 for wrong options, 1 if runs failed, 130 when interrupted.
    """
    parser = make_parser()
    args = parser.parse_args(arguments)
    plan = yaml.safe_load(args.plan.read_text(encoding="utf-8"))
    unknown = set(args.rows or ()) - set(plan["rows"])
    if unknown or not (args.data / "dict.txt").is_file():
        parser.error(f"no rows {', '.join(sorted(unknown))}" if unknown else f"there is no dict.txt in {args.data}")
    data, output = args.data.resolve(), args.output.resolve()
    runs = list(runs_of(plan, args.rows or list(plan["rows"]), args.seeds))
    with open(data / "dict.txt", encoding="utf-8") as file:
        vocabulary = sum(1 for _ in file) + 5
    try:
        runner = runner_of(args)
        machine = machine_of(runner.gpus, args.precision)
    except UsageError as error:
        parser.error(str(error))
    jobs = [job_of(run, plan, machine, data, output) for run in runs]
    settings = {
        "data": str(data), "fingerprint": data_fingerprint(data), "precision": machine.precision,
        "tokens": plan["tokens"], "rows": {run.name: run.options for run in runs},
    }  # fmt: skip
    with sitting("parts.py"):
        if runner.dry_run:
            runner.do(jobs)
            return
        with study_folder(output, settings):
            try:
                runner.do(jobs)
            finally:
                sys.stdout.write(write_results(runs, plan, output, vocabulary) + "\n")
                draw(output)


if __name__ == "__main__":
    main(sys.argv[1:])
