"""From text to a fine-tuned model and a summary; run.sh sets the environment up and calls this."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import library_task
import texts
from summary import STARTS, mask_lines, test_curve, write_summary

import fairseq_maelm
from fairseq_maelm.arguments import number
from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.jobs import Job, Process, read_json
from fairseq_maelm.sweep.log import log_records
from fairseq_maelm.sweep.runner import Runner, sitting
from fairseq_maelm.sweep.store import study_folder

USER_DIR = str(Path(fairseq_maelm.__file__).parent)
# The same command on every machine, so that the numbers can be compared: one process, no GPU.
_MACHINE = ["--cpu", "--distributed-world-size", "1", "--num-workers", "0", "--log-format", "json"]
# The usual scale of random weights, 0.02, is meant for a width of 768 and more; this model's is 128.
_MODEL = ["--arch", "maelm_tiny", "--encoder-attention-heads", "4", "--init-std", "0.05", "--max-positions", "64"]
_OPTIMIZER = [
    "--optimizer",
    "fused_adamw",
    "--adam-betas",
    "(0.9,0.98)",
    "--adam-eps",
    "1e-6",
    "--weight-decay",
    "0.01",
]
# Training on short sequences first lets the model find out soon that neighbors tell about a masked token; from there it
# learns longer ones quickly. With most of a long sequence masked, neighbors no longer suffice, and the encoder has to
# learn what a text is about. Stage -> tokens of a sequence, share of masks, part of the updates.
STAGES = {"short": (16, "0.4", 0.3), "pretraining": (64, "0.75", 0.7)}
_SCORED_MASK_PROB = "0.15"
_FINE_TUNING_VALIDATIONS = 6
# What documentation says, with a gap; candidates can be judged by eye.
SENTENCES = (
    "Return a copy of the array with all elements <mask> in ascending order.",
    "If <mask>, print progress messages while the model is fitted.",
    "The default value is <mask>.",
    "Raise a <mask> if the file does not exist.",
)


def pretraining(data: Path, output: Path, length: int, mask_prob: str, updates: int) -> list[str]:
    """A stage of pretraining, or one that goes on from its last checkpoint."""
    return [
        "fairseq-train", str(data), "--user-dir", USER_DIR, "--task", "maelm", "--criterion", "maelm", *_MODEL,
        "--decoder-layers", "1", "--dropout", "0", "--attention-dropout", "0", "--initial-output-bias", "frequencies",
        "--mask-prob", mask_prob, "--protect-special-tokens", "--sample-break-mode", "none",
        "--tokens-per-sample", str(length), "--max-tokens", "4096", "--max-tokens-valid", "8192",
        "--max-update", str(updates), *_OPTIMIZER, "--seed", "1", "--save-dir", str(output), "--no-epoch-checkpoints",
        *_MACHINE,
    ]  # fmt: skip


def paced(updates: int) -> list[str]:
    """How a stage of pretraining learns, and how often it is validated and saved."""
    interval = str(max(1, updates // 4))
    return [
        "--lr", "1.5e-3", "--warmup-updates", str(max(1, updates // 10)), "--clip-norm", "2.0",
        "--validate-interval-updates", interval, "--save-interval-updates", interval,
        "--keep-interval-updates", "1", "--log-interval", "20",
    ]  # fmt: skip


def fine_tuning(task: Path, classes: int, checkpoint: Path | None, updates: int, seed: int) -> list[str]:
    """fairseq's own ``sentence_prediction``, from a checkpoint or from random weights."""
    start = ["--restore-file", str(checkpoint), "--reset-optimizer", "--reset-dataloader", "--reset-meters"]
    return [
        "fairseq-train", str(task), "--user-dir", USER_DIR, "--task", "sentence_prediction",
        "--criterion", "sentence_prediction", "--num-classes", str(classes), "--init-token", "0", *_MODEL,
        "--dropout", "0.1", "--attention-dropout", "0.1", "--pooler-dropout", "0.1",
        *([] if checkpoint is None else [*start, "--reset-lr-scheduler"]), "--batch-size", "32",
        "--max-update", str(updates), *_OPTIMIZER, "--lr", "1e-3", "--lr-scheduler", "polynomial_decay",
        "--total-num-update", str(updates), "--warmup-updates", str(max(1, updates // 10)), "--clip-norm", "1.0",
        "--seed", str(seed), "--valid-subset", "valid,test", "--batch-size-valid", "64", "--log-interval", "10",
        # Nothing is saved; fairseq would still make its default folder, and start from a checkpoint that lies there.
        "--no-save", "--save-dir", str(task), "--validate-interval", "1000000",
        "--validate-interval-updates", str(max(1, updates // _FINE_TUNING_VALIDATIONS)), *_MACHINE,
    ]  # fmt: skip


class Quickstart:
    """The steps of one run.

    Args:
        folder: for everything that is written.
        files: the user's texts; none means docstrings.
        updates: of pretraining.
        fine_tuning_updates: of each fine-tuning.
        seeds: number of fine-tunings from each start.
    """

    def __init__(self, folder: Path, files: Sequence[Path], updates: int, fine_tuning_updates: int, seeds: int) -> None:
        self.folder, self.files, self.fine_tuning_updates, self.seeds = folder, files, fine_tuning_updates, seeds
        self.updates = {stage: max(1, round(part * updates)) for stage, (_, _, part) in STAGES.items()}
        self.data, self.task, self.last = folder / "data", folder / "task", folder / "pretraining/checkpoint_last.pt"
        self.results: dict[str, Any] = {}
        self.begin = time.monotonic()

    def step(self, name: str, title: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do a step unless it is finished, and show its ``lines``; its results get the ``seconds`` that it took."""
        path, (minutes, seconds) = (
            self.folder / "steps" / f"{name}.json",
            divmod(int(time.monotonic() - self.begin), 60),
        )
        number = f"[{len(self.results) + 1}/8]"
        print(f"\n=== {minutes}:{seconds:02d}  {number} {title}{': done earlier' * path.exists()}", flush=True)
        if not path.exists():
            begin = time.monotonic()
            results = work()
            path.parent.mkdir(exist_ok=True)
            write_json(path, {**results, "seconds": round(time.monotonic() - begin, 1)})
        self.results[name] = read_json(path) or {}
        for line in self.results[name].get("lines", []):
            print(f"    {line}")

    def log(self, name: str) -> Path:
        """The output of a program."""
        return self.folder / "logs" / f"{name}.log"

    def run(self, programs: dict[str, list[str]], side_by_side: int = 1) -> None:
        """Run what is not finished; the same command resumes.

        Raises:
            ValueError: a program failed.
        """
        jobs = [
            Job(name, self.log(name).with_suffix(".json"), lambda slot, words=words: Process(words, {}), resumes=True)
            for name, words in programs.items()
        ]
        Runner([""] * side_by_side, 0, None, retry_failed=True, dry_run=False).do(jobs)

    def do(self) -> None:
        """Do all steps that are not finished yet."""
        self.step("text", "Collect the text", self.collect)
        self.step("data", "Divide it, train a vocabulary, encode", self.prepare)
        length, _, _ = STAGES["pretraining"]
        still = pretraining(self.data, self.folder / "pretraining", length, _SCORED_MASK_PROB, updates=1)
        # One update at learning rate 0 leaves the weights as the seed draws them; fairseq then validates them.
        still += ["--lr", "0", "--lr-scheduler", "fixed", "--no-save"]
        self.step("start", "Score the random weights", lambda: self.scored("start", still))
        for stage, (length, mask_prob, _) in STAGES.items():
            updates = self.updates[stage]
            words = [*pretraining(self.data, self.folder / stage, length, mask_prob, updates), *paced(updates)]
            if stage == "short":
                words += ["--lr-scheduler", "fixed"]
            else:
                words += ["--finetune-from-model", str(self.folder / "short" / "checkpoint_last.pt")]
                words += ["--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates)]
            title = f"Pretrain on sequences of {length} tokens for {updates:,} updates"
            self.step(stage, title, lambda stage=stage, words=words: self.scored(stage, words))
        score = [
            "fairseq-validate",
            str(self.data),
            "--user-dir",
            USER_DIR,
            "--task",
            "maelm",
            "--path",
            str(self.last),
        ]
        score += ["--mask-prob", _SCORED_MASK_PROB, "--max-tokens", "8192", *_MACHINE]
        self.step("score", "Score the pretrained model", lambda: self.scored("score", score))
        self.step("fine_tuning", "Fine-tune from the pretrained encoder and from random weights", self.fine_tune)
        self.step("masks", "Fill masks", self.fill_masks)

    def collect(self) -> dict[str, Any]:
        """Read the docstrings, or the user's files, into documents."""
        documents = list(texts.documents_of_files(self.files) if self.files else texts.installed_docstrings())
        if not documents:
            raise ValueError("there is no text in " + (", ".join(map(str, self.files)) or "this Python installation"))
        texts.write_documents(documents, self.folder / "documents.jsonl")
        characters = sum(len(text) + 1 for each in documents for passage in each.passages for text in passage)
        sources = len({document.source for document in documents})
        line = f"{characters / 1e6:.1f} million characters in {len(documents):,} documents from {sources} sources"
        return {"characters": characters, "documents": len(documents), "sources": sources, "lines": [line]}

    def prepare(self) -> dict[str, Any]:
        """Divide the documents, prepare the text for pretraining and binarize the task."""
        documents = texts.read_stored_documents(self.folder / "documents.jsonl")
        task, text = library_task.make_task(documents, hide_names=not self.files), self.folder / "text"
        classes = task.classes if task else ()
        text.mkdir(exist_ok=True)
        library_task.write_pretraining_text(documents, classes, text / "train.txt", text / "valid.txt")
        # Pieces that the text can give and that five minutes of training see often enough to learn.
        pieces = 2000 if (text / "train.txt").stat().st_size >= 200_000 else 500
        words = ["maelm", "prepare", "corpus", str(text / "train.txt"), "--valid", str(text / "valid.txt")]
        self.run({"prepare": [*words, "--output", str(self.data), "--vocabulary-size", str(pieces)]})
        counts = json.loads((self.data / "manifest.json").read_text(encoding="utf-8"))["counts"]
        tokens = {split: numbers["tokens"] for split, numbers in counts.items()}
        lines = [
            f"{split}: {each['documents']:,} documents, {each['tokens']:,} tokens" for split, each in counts.items()
        ]
        if task is None:
            lines.append("no task to fine-tune on: it takes two files or more, each with enough text to hold some out")
            return {"tokens": tokens, "classes": [], "lines": lines}
        library_task.binarize_task(task, self.data, self.task)
        examples = {split: len(drawn) for split, drawn in task.examples.items()}
        lines.append(f"task: which of {len(classes)} sources is a text from? ({', '.join(classes)})")
        lines.append("labeled texts: " + ", ".join(f"{split} {number:,}" for split, number in examples.items()))
        return {"tokens": tokens, "classes": list(classes), "examples": examples, "lines": lines}

    def scored(self, name: str, words: list[str]) -> dict[str, Any]:
        """Run a program that ends with a validation."""
        self.run({name: words})
        scores = [numbers for _, numbers in log_records(self.log(name), ["valid"])][-1]
        accuracy, perplexity = scores["valid_accuracy"], scores["valid_ppl"]
        masked = f"with {scores['valid_masked']:.0f} % of the tokens masked"
        line = f"held-out text {masked}: accuracy {accuracy:.1f} %, perplexity {perplexity:,.1f}"
        return {"accuracy": accuracy, "perplexity": perplexity, "lines": [line]}

    def fine_tune(self) -> dict[str, Any]:
        """Fine-tune from both starts with each seed; the runs differ in nothing else."""
        classes = len(self.results["data"]["classes"])
        if not classes:
            return {"accuracy": {}, "lines": ["skipped: there is no task (see above)"]}
        names = {start: [f"fine_tuning_{start}_{seed}" for seed in range(1, self.seeds + 1)] for start in STARTS}
        programs = {
            name: fine_tuning(
                self.task, classes, self.last if start == "pretrained" else None, self.fine_tuning_updates, seed
            )
            for start, own in names.items()
            for seed, name in enumerate(own, 1)
        }
        self.run(programs, side_by_side=2)
        accuracy = {start: [test_curve(self.log(name))[-1][1] for name in own] for start, own in names.items()}
        lines = [
            f"test accuracy from {STARTS[start]}: " + ", ".join(f"{value:.1f} %" for value in values)
            for start, values in accuracy.items()
        ]
        return {"accuracy": accuracy, "chance": 100 / classes, "lines": lines}

    def fill_masks(self) -> dict[str, Any]:
        """Fill the masks of a few sentences through the hub interface."""
        interface = fairseq_maelm.MaelmModel.from_pretrained(str(self.last.parent), self.last.name, str(self.data))
        held_out = texts.held_out_sentences(self.folder / "text" / "valid.txt")
        filled = [
            {
                "text": text,
                "candidates": [[best.token, best.probability] for best in interface.fill_mask(text, topk=4)[0]],
            }
            for text in (held_out if self.files else SENTENCES)
        ]
        return {"filled": filled, "lines": [line for each in filled for line in mask_lines(each)]}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="run.sh", description="Pretrains a small MAE-LM, fine-tunes it and shows what it learned."
    )
    parser.add_argument(
        "texts", nargs="*", type=Path, metavar="TEXT",
        help="files with a paragraph a line and a blank line between documents (.txt, .jsonl, also .gz, .xz); two or "
        "more give a task, which file a text is from; without any, the docstrings of this Python installation",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="(runs/quickstart)")
    parser.add_argument("--updates", type=number(int, 1), default=2000, metavar="N", help="of pretraining (2000)")
    parser.add_argument("--fine-tuning-updates", type=number(int, 1), default=300, metavar="N", help="of each (300)")
    parser.add_argument("--seeds", type=number(int, 1), default=2, metavar="N", help="fine-tunings from each start (2)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not finished yet and write the summary.

    Raises:
        SystemExit: 1 with a message for anything that the user can put right, 130 when interrupted.
    """
    args = parse(arguments)
    files = [path.resolve() for path in args.texts]
    own = {"updates": args.updates, "fine_tuning_updates": args.fine_tuning_updates}
    with sitting("quickstart"):
        settings = {**own, "fine_tunings": args.seeds, "texts": [[str(path), path.stat().st_size] for path in files]}
        with study_folder(args.output.resolve(), settings):
            quickstart = Quickstart(args.output.resolve(), files, **own, seeds=args.seeds)
            quickstart.do()
            print(f"\n{write_summary(quickstart.folder, quickstart.results)}")


if __name__ == "__main__":
    # fairseq logs to the screen when it is used from Python; what matters is printed here.
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
