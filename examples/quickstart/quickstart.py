"""From text to a fine-tuned model and a summary; run.sh sets the environment up and calls this."""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import texts

import fairseq_maelm
from fairseq_maelm.arguments import CommandParser, number
from fairseq_maelm.files import read_json, write_json
from fairseq_maelm.libraries import import_pyplot
from fairseq_maelm.modules.precision import multiplies_bfloat16
from fairseq_maelm.sweep.jobs import Job, Process
from fairseq_maelm.sweep.log import log_records
from fairseq_maelm.sweep.runner import Runner, sitting
from fairseq_maelm.sweep.store import study_folder
from fairseq_maelm.sweep.tables import markdown_table
from fairseq_maelm.train_command import USER_DIR, Machine, words_of

# One process and no GPU on every machine, so that the numbers can be compared; bfloat16 where the processor multiplies
# matrices in it.
PRECISION = "bf16" if multiplies_bfloat16("cpu") else "fp32"
_MACHINE = {**Machine(0, PRECISION).options(), "log-format": "json", "seed": 1}
# The usual scale of random weights, 0.02, is meant for a width of 768 and more; this model's is 128.
MODEL = {
    "arch": "maelm_modern_tiny", "encoder-attention-heads": 4, "init-std": 0.05, "embedding-init-std": 0.08,
    "max-positions": 64,
}  # fmt: skip
PRETRAINING = {
    "task": "maelm", "criterion": "maelm", "initial-output-bias": "frequencies", "protect-special-tokens": True,
    "sample-break-mode": "none", "tokens-per-sample": 64, "mask-prob": 0.4, "valid-mask-prob": 0.15,
    "max-tokens": 2048, "max-tokens-valid": 8192, "no-epoch-checkpoints": True,
}  # fmt: skip
# Muon's rate is three times AdamW's; both are held until 60 % of the updates and then fall to a hundredth.
PACE = {
    "optimizer": "muon", "adam-betas": "(0.9,0.95)", "weight-decay": 0.01, "lr": 3e-3, "muon-lr-ratio": 3,
    "lr-scheduler": "tri_stage", "phase-ratio": "[0.02, 0.58, 0.4]", "init-lr-scale": 0.01, "final-lr-scale": 0.01,
    "keep-interval-updates": 1,
}  # fmt: skip
_PRETRAINING_VALIDATIONS = 8
STARTS = {"pretrained": "the pretrained encoder", "random": "random weights"}
# What documentation says, with a gap; candidates can be judged by eye.
SENTENCES = (
    "Return a copy of the array with all elements <mask> in ascending order.",
    "If <mask>, print progress messages while the model is fitted.",
    "The default value is <mask>.",
    "Raise a <mask> if the file does not exist.",
)
# Two colors that color-blind readers can tell apart.
_BLUE, _GRAY = "#0072b2", "#666666"

Curve = list[tuple[int, float]]


def fine_tuning(task: Path, checkpoint: Path, output: Path, epochs: int, seed: int) -> list[str]:
    """Return the command that fine-tunes by the package's recipe for sentences, with a rate for a small model."""
    own = {"checkpoint": checkpoint, "output": output, "lr": 1e-3, "epochs": epochs, "seed": seed}
    return ["maelm", "finetune", str(task), *words_of({**own, "gpus": 0, "precision": PRECISION})]


class Quickstart:
    """The steps of one run, on the user's files or on docstrings, with everything that is written in one folder."""

    def __init__(self, folder: Path, files: Sequence[Path], updates: int, epochs: int, seeds: int) -> None:
        self.folder, self.files = folder, files
        self.updates, self.epochs, self.seeds = updates, epochs, seeds
        self.data, self.task = folder / "data", folder / "task"
        self.results: dict[str, Any] = {}
        self.begin = time.monotonic()

    def step(self, name: str, title: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do a step unless it is finished, and show its ``lines``; its results get the ``seconds`` that it took."""
        path = self.folder / "steps" / f"{name}.json"
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        number = f"[{len(self.results) + 1}/5]"
        print(f"\n=== {minutes}:{seconds:02d}  {number} {title}{': done earlier' * path.exists()}", flush=True)
        if not path.exists():
            begin = time.monotonic()
            results = work()
            path.parent.mkdir(exist_ok=True)
            write_json(path, {**results, "seconds": round(time.monotonic() - begin, 1)})
        self.results[name] = read_json(path)
        for line in self.results[name].get("lines", []):
            print(f"    {line}")

    def log(self, name: str) -> Path:
        """Return the log of a program."""
        return self.folder / "logs" / f"{name}.log"

    def run(self, programs: dict[str, list[str]], side_by_side: int = 1) -> None:
        """Run the unfinished programs; raise a ValueError if a program failed."""
        jobs = [
            Job(name, self.log(name).with_suffix(".json"), lambda slot, words=words: Process(words, {}), resumes=True)
            for name, words in programs.items()
        ]
        Runner([""] * side_by_side, 0, None, retry_failed=True, dry_run=False).do(jobs)

    def do(self) -> None:
        """Do all steps that are not finished yet."""
        self.step("text", "Collect the text, train a vocabulary, encode", self.prepare)
        # One update at learning rate 0 leaves the weights as the seed draws them; fairseq then validates them.
        still = {"optimizer": "fused_adamw", "lr": 0, "lr-scheduler": "fixed", "max-update": 1}
        self.step("random", "Score the random weights", lambda: self.pretrain("random", still))
        title = f"Pretrain for {self.updates:,} updates of {PRETRAINING['max-tokens']:,} tokens in {PRECISION}"
        self.step("pretrained", title, lambda: self.pretrain("pretrained", self._pace()))
        self.step("fine_tuning", "Fine-tune from the pretrained encoder and from random weights", self.fine_tune)
        self.step("masks", "Fill masks", self.fill_masks)

    def _pace(self) -> dict[str, Any]:
        interval = max(1, self.updates // _PRETRAINING_VALIDATIONS)
        own = dict.fromkeys(("validate-interval-updates", "save-interval-updates"), interval)
        return {**PACE, **own, "max-update": self.updates}

    def prepare(self) -> dict[str, Any]:
        """Read the docstrings or the user's files; prepare the text for pretraining, and the task."""
        documents = list(texts.documents_of_files(self.files) if self.files else texts.installed_docstrings())
        if not documents:
            raise ValueError("there is no text in " + (", ".join(map(str, self.files)) or "this Python installation"))
        characters = sum(len(text) + 1 for each in documents for text in each.paragraphs)
        text = self.folder / "text"
        text.mkdir(exist_ok=True)
        texts.write_pretraining_text(documents, text / "train.txt", text / "valid.txt")
        # Pieces that the text can give and that five minutes of training see often enough to learn.
        pieces = 2000 if (text / "train.txt").stat().st_size >= 200_000 else 500
        words = ["maelm", "prepare", "corpus", str(text / "train.txt"), "--valid", str(text / "valid.txt")]
        self.run({"prepare": [*words, "--output", str(self.data), "--vocabulary-size", str(pieces)]})
        counts = read_json(self.data / "manifest.json")["counts"]
        tokens = {split: each["tokens"] for split, each in counts.items()}
        results = {"characters": characters, "documents": len(documents), "tokens": tokens}
        task = texts.make_task(documents)
        if task is None:
            return {**results, "lines": ["no task to fine-tune on: the text holds too few sentences"]}
        train, test = texts.write_tables(task, text)
        words = words_of({"train": train, "valid": test, "max-length": 64, "vocabulary": self.data})
        self.run({"prepare_task": ["maelm", "prepare", "sentences", *words, "--output", str(self.task)]})
        numbers = f"{len(task['train']):,} sentences to train on, {len(task['test']):,} to test"
        line = f"task: are two neighboring words of a sentence swapped? {numbers}"
        return {**results, "counting": texts.accuracy_of_counting(task), "lines": [line]}

    def pretrain(self, name: str, own: dict[str, Any]) -> dict[str, Any]:
        """Pretrain into the folder of this name; return the scores of the last validation."""
        options = {**MODEL, **PRETRAINING, **_MACHINE, "save-dir": self.folder / name, **own}
        self.run({name: ["fairseq-train", str(self.data), "--user-dir", str(USER_DIR), *words_of(options)]})
        scores = last_validation(self.log(name))
        accuracy, perplexity = scores["valid_accuracy"], scores["valid_ppl"]
        masked = f"with {scores['valid_masked']:.0f} % of the tokens masked"
        line = f"held-out text {masked}: accuracy {accuracy:.1f} %, perplexity {perplexity:,.1f}"
        return {"accuracy": accuracy, "perplexity": perplexity, "lines": [line]}

    def fine_tune(self) -> dict[str, Any]:
        """Fine-tune from both starts with each seed; the runs differ in nothing else."""
        if "counting" not in self.results["text"]:
            return {"accuracy": {}, "lines": ["skipped: there is no task (see above)"]}
        names = {start: [f"fine_tuned_{start}_{seed}" for seed in range(1, self.seeds + 1)] for start in STARTS}
        programs = {
            name: fine_tuning(self.task, self._last(start), self.folder / name, self.epochs, seed)
            for start, own in names.items()
            for seed, name in enumerate(own, 1)
        }
        self.run(programs, side_by_side=2)
        accuracy = {
            start: [last_validation(self.log(name))["valid_accuracy"] for name in own] for start, own in names.items()
        }
        lines = [
            f"test accuracy from {STARTS[start]}: " + ", ".join(f"{value:.1f} %" for value in values)
            for start, values in accuracy.items()
        ]
        lines.append(f"test accuracy by counting words: {self.results['text']['counting']:.1f} %")
        return {"accuracy": accuracy, "lines": lines}

    def _last(self, name: str) -> Path:
        return self.folder / name / "checkpoint_last.pt"

    def fill_masks(self) -> dict[str, Any]:
        """Fill the masks of a few sentences through the hub interface."""
        hub = fairseq_maelm.MaelmModel.from_pretrained(str(self.folder / "pretrained"), "checkpoint_last.pt")
        held_out = texts.held_out_sentences(self.folder / "text" / "valid.txt") if self.files else SENTENCES
        filled = [
            {"text": text, "candidates": [[best.token, best.probability] for best in hub.fill_mask(text, topk=4)[0]]}
            for text in held_out
        ]
        return {"filled": filled, "lines": [line for each in filled for line in mask_lines(each)]}


# The summary


def curve(log: Path, kind: str, metric: str) -> Curve:
    """Return update and value of the records of a kind, "train_inner" or "valid"; of repeated ones the last."""
    prefix = "" if kind == "train_inner" else f"{kind}_"
    records = [each for _, each in log_records(log, [kind]) if prefix + metric in each]
    return sorted({int(each[f"{prefix}num_updates"]): each[prefix + metric] for each in records}.items())


def last_validation(log: Path) -> dict[str, Any]:
    """Return the metrics of the last validation in a log."""
    return [numbers for _, numbers in log_records(log, ["valid"])][-1]


def mask_lines(filled: dict[str, Any]) -> list[str]:
    """Show a sentence and the candidates for its mask with their probabilities."""
    candidates = ", ".join(f"{token} {100 * probability:.0f} %" for token, probability in filled["candidates"])
    return [filled["text"], f"    {candidates}"]


def summary_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the results of all steps as rows of a name and a value."""
    text, start, trained, tuning = (results[name] for name in ("text", "random", "pretrained", "fine_tuning"))
    held_out = "masked-token accuracy on held-out text (15 % masked)"
    rows = [
        ("text", f"{text['characters'] / 1e6:.1f} million characters, {text['documents']:,} documents"),
        ("tokens to train on / held out", f"{text['tokens']['train']:,} / {text['tokens']['valid']:,}"),
        (f"{held_out}, before", f"{start['accuracy']:.1f} %"),
        (f"{held_out}, after", f"{trained['accuracy']:.1f} %"),
        ("perplexity on held-out text, before", f"{start['perplexity']:,.0f}"),
        ("perplexity on held-out text, after", f"{trained['perplexity']:,.1f}"),
    ]
    for name, accuracy in tuning["accuracy"].items():
        spread = f" ({min(accuracy):.1f} to {max(accuracy):.1f}, {len(accuracy)} seeds)" if accuracy[1:] else ""
        rows.append((f"test accuracy from {STARTS[name]}", f"{mean(accuracy):.1f} %{spread}"))
    if tuning["accuracy"]:
        rows.append(("test accuracy of logistic regression on word counts", f"{text['counting']:.1f} %"))
    else:
        rows.append(("fine-tuning task", "none: the text holds too few sentences"))
    minutes = {name: step["seconds"] / 60 for name, step in results.items()}
    return [*rows, ("time", f"{sum(minutes.values()):.1f} minutes, {minutes['pretrained']:.1f} of pretraining")]


def write_summary(folder: Path, results: dict[str, Any]) -> str:
    """Write summary.md, summary.json and curves.png from the results of all steps and their logs; return the table."""
    draw_curves(folder / "logs" / "pretrained.log", folder / "curves.png")
    write_json(folder / "summary.json", results)
    overview = markdown_table(["", ""], summary_rows(results))
    masks = "\n\n".join("\n".join(f"    {line}" for line in mask_lines(each)) for each in results["masks"]["filled"])
    (folder / "summary.md").write_text(f"{overview}\n\n{masks}\n", encoding="utf-8")
    return f"{overview}\n\nthis table: {folder / 'summary.md'}\nthe curves: {folder / 'curves.png'}"


def draw_curves(log: Path, path: Path) -> None:
    """Draw loss and accuracy of pretraining."""
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(9.4, 4.2), layout="constrained")
    labels = {"loss": "loss (bits per masked token)", "accuracy": "masked-token accuracy (%)"}
    for axis, (name, label) in zip(axes, labels.items()):
        train, held_out = (curve(log, kind, name) for kind in ("train_inner", "valid"))
        axis.plot(*zip(*train), color=_GRAY, linewidth=1.2, label="training text, 40 % masked")
        axis.plot(*zip(*held_out), color=_BLUE, marker="o", markersize=4, label="held-out text, 15 % masked")
        axis.set(title="Pretraining", xlabel="updates", ylabel=label)
        axis.legend(frameon=False)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(
        prog="run.sh", description="Pretrains a small MAE-LM, fine-tunes it and shows what it learned."
    )
    parser.add_argument(
        "texts", nargs="*", type=Path, metavar="TEXT",
        help="files with one paragraph per line and a blank line between documents (.txt, .jsonl, also .gz, .xz); "
        "without any, the docstrings of this Python installation",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="folder for everything"
    )
    updates = 4900 if PRECISION == "bf16" else 3500
    parser.add_argument("--updates", type=number(int, 1), default=updates, metavar="N", help="updates of pretraining")
    parser.add_argument("--epochs", type=number(int, 1), default=3, metavar="N", help="epochs of each fine-tuning")
    parser.add_argument("--seeds", type=number(int, 1), default=2, metavar="N", help="fine-tunings from each start")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not finished yet and write the summary.

    Raises:
        SystemExit: 1 with a message for anything that the user can put right, 130 when interrupted.
    """
    args = parse(arguments)
    files = [path.resolve() for path in args.texts]
    own = {"updates": args.updates, "epochs": args.epochs, "seeds": args.seeds}
    with sitting("quickstart"):
        read = [[str(path), path.stat().st_size] for path in files]
        with study_folder(args.output.resolve(), {**own, "precision": PRECISION, "texts": read}):
            quickstart = Quickstart(args.output.resolve(), files, **own)
            quickstart.do()
            print(f"\n{write_summary(quickstart.folder, quickstart.results)}")


if __name__ == "__main__":
    # fairseq logs to the screen when it is used from Python; what matters is printed here.
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
