#!/usr/bin/env python3
"""Pretrain MLM and MAE-LM alike, analyze and fine-tune both, and write one page with the paper's figures and a table.

The same command goes on after an interruption.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import page
import results
from commands import (
    MODELS,
    RANDOM,
    analyze,
    draw_weights,
    fine_tune,
    half,
    prepare_corpus,
    prepare_task,
    pretrain,
    stage_folder,
)
from glue import TASKS, check_folder, write_tables
from results import FIGURE_3_SEEDS, FIGURE_3_TASKS, FIGURE_5_TASK
from scales import SCALES, Scale
from study import METRICS, last_loss

from fairseq_maelm.arguments import number
from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.jobs import Job, Process, read_json
from fairseq_maelm.sweep.log import best_validation
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import study_folder


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "texts", nargs="+", type=Path, metavar="TEXT", help="a paragraph a line, blank lines between documents"
    )
    parser.add_argument(
        "--tasks", required=True, type=Path, metavar="GLUE", help="folder with CoLA, SST-2, RTE and STS-B"
    )
    parser.add_argument("--scale", choices=SCALES, default="cpu", help="(cpu)")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/paper_in_miniature"), help="(runs/paper_in_miniature)"
    )
    parser.add_argument("--seeds", type=number(int, 1), default=5, help="of fine-tuning (5)")
    parser.add_argument(
        "--budget", type=float, default=1.0, metavar="F", help="a fraction of updates and examples, to try it out (1)"
    )
    add_runner_arguments(parser)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; a mistake ends the program before anything is written."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    missing = [str(path) for path in args.texts if not path.is_file()]
    if missing:
        parser.error(f"there is no text {', '.join(missing)}")
    if not 0 < args.budget <= 1:
        parser.error(f"--budget must lie in (0, 1] and is {args.budget}")
    if args.scale == "gpu" and not args.gpus and args.slurm is None:
        args.gpus, args.jobs = ["0"] * (args.jobs or 4), None
    try:
        check_folder(args.tasks)
        args.runner = runner_of(args, jobs=2)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    args.texts = [path.resolve() for path in args.texts]
    args.tasks, args.output = args.tasks.resolve(), args.output.resolve()
    return args


class Miniature:
    """A run: where things stand, and the steps in their order.

    Args:
        args: of the command line, parsed.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.scale: Scale = SCALES[args.scale].shrunk(args.budget)
        self.output: Path = args.output
        self.data = self.output / "data"
        self.runner: Runner = args.runner
        self.gpu = self.runner.gpus > 0

    def settings(self) -> dict[str, Any]:
        """Return what decides the results; another command in the same folder must agree."""
        texts = {str(path): path.stat().st_size for path in self.args.texts}
        tasks = {name: str(self.args.tasks / name) for name in TASKS}
        scale = json.loads(json.dumps(asdict(self.scale)))
        shared = {"name": self.args.scale, "scale": scale, "texts": texts, "jobs": len(self.runner.slots)}
        return {**shared, "rows": dict.fromkeys(MODELS, ""), "tasks": tasks, "seeds": self.args.seeds}

    def marker(self, *names: str) -> Path:
        """Return the file that gets the result of a program."""
        return self.output.joinpath("runs", *names).with_suffix(".json")

    def model_folder(self, model: str) -> Path:
        """Return the folder of a model's checkpoints, with a folder for each stage."""
        return self.output / "models" / model

    def last_stage(self, model: str) -> Path:
        """Return the folder of the last stage's checkpoints."""
        return stage_folder(self.model_folder(model), len(self.scale.stages) - 1)

    def task_folder(self, name: str) -> Path:
        """Return the folder of a prepared task."""
        return self.output / "tasks" / name

    def _job(self, name: str, marker: Sequence[str], process: Callable[[], Process], **more: Any) -> Job:
        return Job(name, self.marker(*marker), lambda slot: process().on(slot), **more)

    def preparation(self) -> list[Job]:
        """The corpus, then the tasks with its vocabulary."""
        corpus = partial(prepare_corpus, self.args.texts, self.scale, self.data)
        tasks = []
        for name in TASKS:
            folder = self.task_folder(name)
            prepare = partial(prepare_task, name, self.output / "tables" / name, self.data, folder)
            tasks.append(self._job(f"task {name}", ["tasks", name], prepare, clears=[folder]))
        return [self._job("corpus", ["corpus"], corpus, resumes=True, followers=tasks)]

    def pretraining(self) -> list[Job]:
        """All stages of both models, and random weights."""
        draw = partial(draw_weights, self.scale, self.data, self.last_stage(RANDOM), self.gpu)
        jobs = []
        for model in MODELS:
            following: list[Job] = []
            for place in reversed(range(len(self.scale.stages))):
                train = partial(pretrain, model, self.scale, place, self.data, self.model_folder(model), self.gpu)
                stage = f"stage_{place + 1}"
                job = self._job(f"{model}, {stage}", [model, stage], train, result=last_loss, resumes=True)
                job.followers, following = following, [job]
            jobs += following
        return [*jobs, self._job(RANDOM, [RANDOM, "weights"], draw)]

    def checkpoints(self, model: str) -> dict[str, Path]:
        """Return the checkpoints of a model to fine-tune: its last, and those before by updates of the last stage."""
        last, updates = self.last_stage(model), half(self.scale)
        found = {"final": last / "checkpoint_last.pt"}
        if model != RANDOM:
            before = stage_folder(self.model_folder(model), len(self.scale.stages) - 2)
            found["0"] = before / "checkpoint_last.pt"
            matching = sorted(last.glob(f"checkpoint_*_{updates}.pt"))
            if not matching:
                raise ValueError(f"{last} holds no checkpoint of update {updates}")
            found[str(updates)] = matching[0]
        return found

    def fine_tuning(self) -> list[Job]:
        """All tasks and seeds from the last checkpoints, some of both from those before."""
        jobs = []
        for model in (*MODELS, RANDOM):
            for stage, checkpoint in self.checkpoints(model).items():
                final = stage == "final"
                for name in TASKS if final else FIGURE_3_TASKS:
                    seeds = self.args.seeds if final else min(FIGURE_3_SEEDS, self.args.seeds)
                    jobs += [self._fine_tuning(model, stage, name, seed, checkpoint) for seed in range(1, seeds + 1)]
        return jobs

    def _fine_tuning(self, model: str, stage: str, name: str, seed: int, checkpoint: Path) -> Job:
        logged = METRICS[TASKS[name].metric]
        keep = model in MODELS and (stage, name, seed) == ("final", FIGURE_5_TASK, 1)
        marker = [model, stage, name, f"seed_{seed}"]
        save_dir = self.fine_tuned(model) if keep else self.marker(*marker).parent
        tune = partial(fine_tune, self.scale, self.task_folder(name), checkpoint, seed, save_dir, self.gpu, keep)
        result = partial(best_validation, metric=logged, metrics=[logged], subsets=["valid"])
        return self._job(f"{model} {stage} {name} seed {seed}", marker, tune, result=result, resumes=keep)

    def fine_tuned(self, model: str) -> Path:
        """The folder of the fine-tuned checkpoint that is analyzed."""
        return self.model_folder(model) / "fine_tuned"

    def analysis(self) -> list[Job]:
        """Both pretrained models on held-out text, both fine-tuned ones on the text of their task."""
        folders = {"pretrained": self.last_stage, "fine_tuned": self.fine_tuned}
        texts = {"pretrained": None, "fine_tuned": self.output / "tables" / FIGURE_5_TASK / "valid.txt"}
        jobs = []
        for name, folder_of in folders.items():
            models = {model: folder_of(model) / "checkpoint_last.pt" for model in MODELS}
            output, tokens = self.output / "analysis" / name, self.scale.analyzed_tokens
            words = partial(analyze, models, output, tokens, self.data, texts[name])
            jobs.append(self._job(f"analysis, {name}", ["analysis", name], words, resumes=True))
        return jobs

    def _step(self, name: str, jobs: list[Job], side_by_side: bool = True) -> None:
        runner = self.runner if side_by_side else self.runner._replace(slots=self.runner.slots[:1])
        started = time.monotonic()
        try:
            runner.do(jobs)
        finally:
            seconds = read_json(self.output / "seconds.json") or {}
            # Several sittings add up.
            spent = seconds.get(name, 0.0) + time.monotonic() - started
            write_json(self.output / "seconds.json", {**seconds, name: spent})

    def do(self) -> Path:
        """Do everything that is not done yet and return the page."""
        with study_folder(self.output, self.settings()):
            for name in TASKS:
                write_tables(self.args.tasks, name, self.output / "tables" / name, self.scale.most_examples)
            self._step("preparation", self.preparation())
            # Models that are compared by time share nothing: one after the other on a GPU, a core each on a CPU.
            self._step("pretraining", self.pretraining(), side_by_side=not self.gpu)
            self._step("fine-tuning", self.fine_tuning())
            self._step("analysis", self.analysis(), side_by_side=False)
            return self.write_page()

    def measured(self) -> dict[str, Any]:
        """All numbers of the page."""
        runs, analysis = self.output / "runs", self.output / "analysis"
        last = self.last_stage("").name
        return {
            "settings": {
                "scale": self.args.scale,
                "budget": self.args.budget,
                "seeds": self.args.seeds,
                "texts": ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.0f} MB)" for path in self.args.texts),
                **asdict(self.scale),
            },
            "machine": results.machine(),
            "seconds": read_json(self.output / "seconds.json"),
            "pretraining": {model: read_json(self.marker(model, last)) for model in MODELS},
            "ranks": results.ranks(analysis / "pretrained"),
            "fine_tuned_ranks": results.ranks(analysis / "fine_tuned"),
            "table": results.table(runs),
            "figure_3": results.figure_3(runs, len(self.scale.stages), self.scale.last.updates),
            "random_score": results.random_score(runs),
        }

    def write_page(self) -> Path:
        """Write results.json, results.md, Figure 3 and the page, which is returned."""
        measured = self.measured()
        write_json(self.output / "results.json", measured)
        page.draw_figure_3(measured, self.output / "figures")
        (self.output / "results.md").write_text(page.as_markdown(measured), encoding="utf-8")
        path = self.output / "page.html"
        path.write_text(page.as_html(measured, self.output), encoding="utf-8")
        return path


def main(arguments: Sequence[str]) -> None:
    """Do it; stopped or refused, say so in a line."""
    args = parse(arguments)
    miniature = Miniature(args)
    with sitting("run.sh"):
        if args.runner.dry_run:
            args.runner.do([*miniature.preparation(), *miniature.pretraining()])
            sys.stdout.write("# then the checkpoints that pretraining leaves are fine-tuned and analyzed\n")
            return
        sys.stdout.write(f"{miniature.do()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
