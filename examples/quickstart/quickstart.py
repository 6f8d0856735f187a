"""The steps of the quickstart, from text to a summary; run.sh sets the environment up and calls this."""

import argparse
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import library_task
import recipes
import report
from commands import Command, CommandFailed, cores, log_records, run
from docstrings import installed_docstrings, read_stored_documents, write_documents
from workspace import Workspace

DEFAULT_UPDATES = 2000
DEFAULT_FINE_TUNING_UPDATES = 300
DEFAULT_SEEDS = 2

# Part of the updates of pretraining that is spent on short sequences.
SHORT_SHARE = 0.3


class Quickstart:
    """The steps of one run; each returns results for the summary and ``lines`` to show.

    Args:
        folder: for everything that is written.
        texts: the user's files; none means docstrings.
        updates: of pretraining.
        fine_tuning_updates: of each fine-tuning.
        seeds: number of fine-tunings from each start.
    """

    def __init__(self, folder: Path, texts: Sequence[Path], updates: int, fine_tuning_updates: int, seeds: int) -> None:
        self.texts = list(texts)
        self.short_updates = max(1, round(SHORT_SHARE * updates))
        self.updates = max(1, updates - self.short_updates)
        self.fine_tuning_updates = fine_tuning_updates
        self.seeds = seeds
        self.documents = folder / "documents.jsonl"
        self.text = folder / "text"
        self.data = folder / "data"
        self.task = folder / "task"
        self.short = folder / "pretraining_short"
        self.pretraining = folder / "pretraining"
        self.logs = folder / "logs"
        self.classes: Sequence[str] = ()

    def collect(self) -> dict[str, Any]:
        """Reads the docstrings, or the user's files, into documents."""
        documents = library_task.documents_of_files(self.texts) if self.texts else installed_docstrings()
        write_documents(documents, self.documents)
        sources: set[str] = set()
        characters = count = 0
        for document in read_stored_documents(self.documents):
            count += 1
            characters += sum(len(text) + 1 for passage in document.passages for text in passage)
            sources.add(document.source)
        if not count:
            raise ValueError("there is no text in " + (", ".join(map(str, self.texts)) or "this Python installation"))
        line = f"{characters / 1e6:.1f} million characters in {count:,} documents from {len(sources)} sources"
        return {"characters": characters, "documents": count, "sources": len(sources), "lines": [line]}

    def prepare(self) -> dict[str, Any]:
        """Divides the documents, prepares the text for pretraining and binarizes the task."""
        documents = list(read_stored_documents(self.documents))
        task = library_task.make_task(documents, hide_names=not self.texts)
        classes = task.classes if task else ()
        self.text.mkdir(exist_ok=True)
        library_task.write_pretraining_text(documents, classes, self.text / "train.txt", self.text / "valid.txt")
        run([Command(recipes.prepare(self.text, self.data), self.logs / "prepare.log")], "maelm prepare")
        counts = json.loads((self.data / "manifest.json").read_text(encoding="utf-8"))["counts"]
        lines = [
            f"{split}: {numbers['documents']:,} documents, {numbers['tokens']:,} tokens"
            for split, numbers in counts.items()
        ]
        tokens = {split: numbers["tokens"] for split, numbers in counts.items()}
        if task is None:
            lines.append("no task to fine-tune on: it takes two files or more, each with enough text to hold some out")
            return {"tokens": tokens, "classes": [], "lines": lines}
        library_task.binarize_task(task, self.data, self.task)
        examples = {split: len(drawn) for split, drawn in task.examples.items()}
        lines.append(f"task: which of {len(classes)} sources is a text from? ({', '.join(classes)})")
        lines.append("labeled texts: " + ", ".join(f"{split} {number:,}" for split, number in examples.items()))
        return {"tokens": tokens, "classes": list(classes), "examples": examples, "lines": lines}

    def score_start(self) -> dict[str, Any]:
        """Scores the random weights that pretraining starts from on the held-out text."""
        log = self.logs / "start.log"
        run([Command(recipes.start(self.data, self.pretraining), log)], "validating")
        return _held_out_scores(log)

    def pretrain_short(self) -> dict[str, Any]:
        """Pretrains on short sequences, or goes on from the last checkpoint."""
        command = recipes.pretrain_short(self.data, self.short, self.short_updates)
        log = self.logs / report.SHORT_LOG
        run([Command(command, log, self.short_updates)], "pretraining")
        return _held_out_scores(log)

    def pretrain(self) -> dict[str, Any]:
        """Pretrains on longer sequences, or goes on from the last checkpoint."""
        command = recipes.pretrain(self.data, self.pretraining, self.updates, self.short / "checkpoint_last.pt")
        log = self.logs / report.LONG_LOG
        run([Command(command, log, self.updates)], "pretraining")
        return _held_out_scores(log)

    def score(self) -> dict[str, Any]:
        """Scores the pretrained model as the random weights were scored."""
        log = self.logs / "score.log"
        run([Command(recipes.score(self.data, self.pretraining / "checkpoint_last.pt"), log)], "validating")
        return _held_out_scores(log)

    def fine_tune(self) -> dict[str, Any]:
        """Fine-tunes from both starts with each seed; the runs differ in nothing else."""
        if not self.classes:
            return {"accuracy": {}, "lines": ["skipped: there is no task (see above)"]}
        commands = {}
        for seed in range(1, self.seeds + 1):
            for start in report.STARTS:
                checkpoint = self.pretraining / "checkpoint_last.pt" if start == report.PRETRAINED else None
                arguments = recipes.fine_tune(self.task, len(self.classes), checkpoint, self.fine_tuning_updates, seed)
                log = report.fine_tuning_log(self.logs, start, seed)
                commands[start, seed] = Command(arguments, log, self.fine_tuning_updates)
        unfinished = [command for command in commands.values() if not _is_fine_tuned(command)]
        for command in unfinished:
            command.log.unlink(missing_ok=True)
        run(unfinished, "fine-tuning", side_by_side=min(2, cores()))
        accuracy = {
            start: [report.test_curve(commands[start, seed].log)[-1][1] for seed in range(1, self.seeds + 1)]
            for start in report.STARTS
        }
        lines = [
            f"test accuracy from {report.STARTS[start]}: " + ", ".join(f"{value:.1f} %" for value in values)
            for start, values in accuracy.items()
        ]
        return {"accuracy": accuracy, "chance": 100 / len(self.classes), "lines": lines}

    def fill_masks(self) -> dict[str, Any]:
        """Fills the masks of a few sentences through the hub interface."""
        from fairseq_maelm import MaelmModel

        interface = MaelmModel.from_pretrained(str(self.pretraining), "checkpoint_last.pt", str(self.data))
        texts = recipes.held_out_sentences(self.text / "valid.txt") if self.texts else recipes.SENTENCES
        filled = []
        for text in texts:
            candidates = interface.fill_mask(text, topk=4)[0]
            filled.append({"text": text, "candidates": [[best.token, best.probability] for best in candidates]})
        return {"filled": filled, "lines": [line for each in filled for line in report.mask_lines(each)]}


def _held_out_scores(log: Path) -> dict[str, Any]:
    scores = [numbers for kind, numbers in log_records(log) if kind == "valid"][-1]
    accuracy, perplexity = scores["valid_accuracy"], scores["valid_ppl"]
    masked = f"with {scores['valid_masked']:.0f} % of the tokens masked"
    line = f"held-out text {masked}: accuracy {accuracy:.1f} %, perplexity {perplexity:,.1f}"
    return {"accuracy": accuracy, "perplexity": perplexity, "lines": [line]}


def _is_fine_tuned(command: Command) -> bool:
    curve = report.test_curve(command.log)
    return bool(curve) and curve[-1][0] == command.updates


def run_all(folder: Path, settings: dict[str, Any], texts: Sequence[Path]) -> None:
    """Does everything that is not finished yet and writes the summary.

    Raises:
        ValueError: the folder or the text is not as it must be.
        CommandFailed: one of the commands failed.
    """
    workspace = Workspace(folder, {**settings, "texts": [[str(path), path.stat().st_size] for path in texts]}, steps=9)
    quickstart = Quickstart(folder, texts, **settings)
    results = {"text": workspace.step("text", "Collect the text", quickstart.collect)}
    results["data"] = workspace.step("data", "Divide it, train a vocabulary, encode", quickstart.prepare)
    quickstart.classes = results["data"]["classes"]
    results["start"] = workspace.step("start", "Score the random weights", quickstart.score_start)
    title = f"Pretrain on sequences of {recipes.SHORT_LENGTH} tokens for {quickstart.short_updates:,} updates"
    results["short"] = workspace.step("short", title, quickstart.pretrain_short)
    title = f"Pretrain on sequences of {recipes.LENGTH} tokens for {quickstart.updates:,} updates"
    results["pretraining"] = workspace.step("pretraining", title, quickstart.pretrain)
    results["score"] = workspace.step("score", "Score the pretrained model", quickstart.score)
    title = "Fine-tune from the pretrained encoder and from random weights"
    results["fine_tuning"] = workspace.step("fine_tuning", title, quickstart.fine_tune)
    results["masks"] = workspace.step("masks", "Fill masks", quickstart.fill_masks)
    workspace.heading("Summary")
    print(report.write_summary(folder, results))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="run.sh", description="Pretrains a small MAE-LM, fine-tunes it and shows what it learned."
    )
    parser.add_argument(
        "texts",
        nargs="*",
        type=Path,
        metavar="TEXT",
        help="files with a paragraph a line and a blank line between documents (.txt, .jsonl, also .gz, .xz); two or "
        "more give a task, which file a text is from; without any, the docstrings of this Python installation",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="(runs/quickstart)")
    parser.add_argument(
        "--updates", type=_positive, default=DEFAULT_UPDATES, metavar="N", help=f"of pretraining ({DEFAULT_UPDATES})"
    )
    parser.add_argument(
        "--fine-tuning-updates",
        type=_positive,
        default=DEFAULT_FINE_TUNING_UPDATES,
        metavar="N",
        help=f"of each fine-tuning ({DEFAULT_FINE_TUNING_UPDATES})",
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        default=DEFAULT_SEEDS,
        metavar="N",
        help=f"fine-tunings from each start ({DEFAULT_SEEDS})",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Runs the quickstart.

    Raises:
        SystemExit: 1 with a message for anything that the user can put right, 130 when interrupted.
    """
    args = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = {
        "updates": args.updates,
        "fine_tuning_updates": args.fine_tuning_updates,
        "seeds": args.seeds,
    }
    try:
        run_all(args.output.resolve(), settings, [path.resolve() for path in args.texts])
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command goes on from here\n")
        raise SystemExit(130) from None
    except (CommandFailed, OSError, ValueError) as error:
        raise SystemExit(f"\nquickstart: error: {error}") from error


if __name__ == "__main__":
    # fairseq logs to the screen when it is used from Python; what matters is printed here.
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
