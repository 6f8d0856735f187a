"""From text to a fine-tuned model and a summary; run.sh sets the environment up and calls this."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import texts
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fairseq_maelm
from fairseq_maelm.arguments import CommandParser, number
from fairseq_maelm.files import write_json
from fairseq_maelm.libraries import import_pyplot
from fairseq_maelm.modules.precision import multiplies_bfloat16
from fairseq_maelm.sweep.jobs import Job, Process, read_json
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
    "keep-interval-updates": 1, "log-interval": 20,
}  # fmt: skip
FINE_TUNING = {
    "task": "sentence_prediction", "criterion": "sentence_prediction", "init-token": 0,
    "dropout": 0.1, "attention-dropout": 0.1, "pooler-dropout": 0.1, "batch-size": 32,
    "optimizer": "fused_adamw", "adam-betas": "(0.9,0.98)", "adam-eps": "1e-6", "weight-decay": 0.01, "lr": 1e-3,
    "lr-scheduler": "polynomial_decay", "clip-norm": 1.0, "valid-subset": "valid,test", "batch-size-valid": 64,
    "log-interval": 10, "validate-interval": 1_000_000,
}  # fmt: skip
_PRETRAINING_VALIDATIONS = 8
_FINE_TUNING_VALIDATIONS = 6
STARTS = {"pretrained": "the pretrained encoder", "random": "random weights"}
# What documentation says, with a gap; candidates can be judged by eye.
SENTENCES = (
    "Return a copy of the array with all elements <mask> in ascending order.",
    "If <mask>, print progress messages while the model is fitted.",
    "The default value is <mask>.",
    "Raise a <mask> if the file does not exist.",
)
# Two colors that color-blind readers can tell apart, the same meaning in all panels.
_BLUE, _ORANGE, _GRAY = "#0072b2", "#d55e00", "#666666"

Curve = list[tuple[int, float]]


def _train(data: Path, options: dict[str, Any]) -> list[str]:
    return ["fairseq-train", str(data), "--user-dir", str(USER_DIR), *words_of(options)]


def fine_tuning(task: Path, classes: int, checkpoint: Path | None, updates: int, seed: int) -> list[str]:
    """Return the command of fairseq's own ``sentence_prediction``, from a checkpoint or from random weights."""
    # Nothing is saved; fairseq would still make its default folder, and start from a checkpoint that is there.
    own: dict[str, Any] = {"num-classes": classes, "no-save": True, "save-dir": task}
    own |= {"max-update": updates, "total-num-update": updates, "warmup-updates": max(1, updates // 10)}
    own["validate-interval-updates"] = max(1, updates // _FINE_TUNING_VALIDATIONS)
    if checkpoint is not None:
        own["restore-file"] = checkpoint
        own |= dict.fromkeys(("reset-optimizer", "reset-dataloader", "reset-meters", "reset-lr-scheduler"), True)
    return _train(task, {**MODEL, **FINE_TUNING, **_MACHINE, **own, "seed": seed})


class Quickstart:
    """The steps of one run, on the user's files or on docstrings, with everything that is written in one folder."""

    def __init__(self, folder: Path, files: Sequence[Path], updates: int, fine_tuning_updates: int, seeds: int) -> None:
        self.folder, self.files, self.fine_tuning_updates, self.seeds = folder, files, fine_tuning_updates, seeds
        self.updates = updates
        self.data, self.task, self.last = folder / "data", folder / "task", folder / "pretraining/checkpoint_last.pt"
        self.results: dict[str, Any] = {}
        self.begin = time.monotonic()

    def step(self, name: str, title: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do a step unless it is finished, and show its ``lines``; its results get the ``seconds`` that it took."""
        path = self.folder / "steps" / f"{name}.json"
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        number = f"[{len(self.results) + 1}/6]"
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
        self.step("text", "Collect the text", self.collect)
        self.step("data", "Divide it, train a vocabulary, encode", self.prepare)
        # One update at learning rate 0 leaves the weights as the seed draws them; fairseq then validates them.
        still = {"optimizer": "fused_adamw", "lr": 0, "lr-scheduler": "fixed", "max-update": 1, "no-save": True}
        self.step("start", "Score the random weights", lambda: self.scored("start", self._pretraining(still)))
        title = f"Pretrain for {self.updates:,} updates of {PRETRAINING['max-tokens']:,} tokens in {PRECISION}"
        self.step("pretraining", title, lambda: self.scored("pretraining", self._pretraining(self._pace())))
        self.step("fine_tuning", "Fine-tune from the pretrained encoder and from random weights", self.fine_tune)
        self.step("masks", "Fill masks", self.fill_masks)

    def _pretraining(self, own: dict[str, Any]) -> list[str]:
        return _train(self.data, {**MODEL, **PRETRAINING, **_MACHINE, "save-dir": self.last.parent, **own})

    def _pace(self) -> dict[str, Any]:
        interval = max(1, self.updates // _PRETRAINING_VALIDATIONS)
        own = dict.fromkeys(("validate-interval-updates", "save-interval-updates"), interval)
        return {**PACE, **own, "max-update": self.updates}

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
        """Divide the documents, prepare the text for pretraining and the task."""
        documents = texts.read_stored_documents(self.folder / "documents.jsonl")
        task, text = texts.make_task(documents, hide_names=not self.files), self.folder / "text"
        classes = list(task.classes) if task else []
        text.mkdir(exist_ok=True)
        texts.write_pretraining_text(documents, classes, text / "train.txt", text / "valid.txt")
        # Pieces that the text can give and that five minutes of training see often enough to learn.
        pieces = 2000 if (text / "train.txt").stat().st_size >= 200_000 else 500
        words = ["maelm", "prepare", "corpus", str(text / "train.txt"), "--valid", str(text / "valid.txt")]
        self.run({"prepare": [*words, "--output", str(self.data), "--vocabulary-size", str(pieces)]})
        counts = json.loads((self.data / "manifest.json").read_text(encoding="utf-8"))["counts"]
        tokens = {split: each["tokens"] for split, each in counts.items()}
        lines = [
            f"{split}: {each['documents']:,} documents, {each['tokens']:,} tokens" for split, each in counts.items()
        ]
        if task is None:
            lines.append("no task to fine-tune on: it takes two files or more, each with enough text to hold some out")
            return {"tokens": tokens, "classes": [], "lines": lines}
        tables = {**texts.write_tables(task, text), "vocabulary": self.data, "output": self.task}
        self.run({"prepare_task": ["maelm", "prepare", "sentences", *words_of({**tables, "max-length": 64})]})
        examples = {split: len(drawn) for split, drawn in task.examples.items()}
        lines.append(f"task: which of {len(classes)} sources is a text from? ({', '.join(classes)})")
        lines.append("labeled texts: " + ", ".join(f"{split} {number:,}" for split, number in examples.items()))
        return {"tokens": tokens, "classes": classes, "examples": examples, "lines": lines}

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
        checkpoints = {"pretrained": self.last, "random": None}
        programs = {
            name: fine_tuning(self.task, classes, checkpoints[start], self.fine_tuning_updates, seed)
            for start, own in names.items()
            for seed, name in enumerate(own, 1)
        }
        self.run(programs, side_by_side=2)
        accuracy = {start: [test_curve(self.log(name))[-1][1] for name in own] for start, own in names.items()}
        counting = accuracy_of_counting(
            *(texts.read_examples(self.folder / "text", name) for name in ("train", "test"))
        )
        lines = [
            f"test accuracy from {STARTS[start]}: " + ", ".join(f"{value:.1f} %" for value in values)
            for start, values in accuracy.items()
        ]
        lines.append(f"test accuracy by counting words: {counting:.1f} %")
        return {"accuracy": accuracy, "counting": counting, "chance": 100 / classes, "lines": lines}

    def fill_masks(self) -> dict[str, Any]:
        """Fill the masks of a few sentences through the hub interface."""
        hub = fairseq_maelm.MaelmModel.from_pretrained(str(self.last.parent), self.last.name, str(self.data))
        held_out = texts.held_out_sentences(self.folder / "text" / "valid.txt") if self.files else SENTENCES
        filled = [
            {"text": text, "candidates": [[best.token, best.probability] for best in hub.fill_mask(text, topk=4)[0]]}
            for text in held_out
        ]
        return {"filled": filled, "lines": [line for each in filled for line in mask_lines(each)]}


def accuracy_of_counting(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> float:
    """Return the test accuracy in percent of logistic regression on weighted word counts, which knows no context."""
    classifier = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=1000))
    classifier.fit([text for text, _ in train], [label for _, label in train])
    return 100 * float(classifier.score([text for text, _ in test], [label for _, label in test]))


# The summary


def curve(log: Path, kind: str, metric: str) -> Curve:
    """Return update and value of the records of a kind, "train_inner", "valid" or "test"; of repeated ones the last."""
    prefix = "" if kind == "train_inner" else f"{kind}_"
    records = [each for _, each in log_records(log, [kind]) if prefix + metric in each]
    return sorted({int(each[f"{prefix}num_updates"]): each[prefix + metric] for each in records}.items())


def test_curve(log: Path) -> Curve:
    """Return the test accuracy in percent over the updates of a fine-tuning."""
    return curve(log, "test", "accuracy")


def smooth(points: Curve, span: int) -> Curve:
    """Average every value with its neighbors, up to ``span`` points in all, fewer at the ends."""
    half = span // 2
    return [
        (update, mean(value for _, value in points[max(0, place - half) : place + half + 1]))
        for place, (update, _) in enumerate(points)
    ]


def mask_lines(filled: dict[str, Any]) -> list[str]:
    """Show a sentence and the candidates for its mask with their probabilities."""
    candidates = ", ".join(f"{token} {100 * probability:.0f} %" for token, probability in filled["candidates"])
    return [filled["text"], f"    {candidates}"]


def summary_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the results of all steps as rows of a name and a value."""
    text, data, start, trained, tuning = (
        results[name] for name in ("text", "data", "start", "pretraining", "fine_tuning")
    )
    held_out = "masked-token accuracy on held-out text (15 % masked)"
    rows = [
        ("text", f"{text['characters'] / 1e6:.1f} million characters, {text['documents']:,} documents"),
        ("tokens to train on / held out", f"{data['tokens']['train']:,} / {data['tokens']['valid']:,}"),
        (f"{held_out}, before", f"{start['accuracy']:.1f} %"),
        (f"{held_out}, after", f"{trained['accuracy']:.1f} %"),
        ("perplexity on held-out text, before", f"{start['perplexity']:,.0f}"),
        ("perplexity on held-out text, after", f"{trained['perplexity']:,.1f}"),
    ]
    for name, accuracy in tuning["accuracy"].items():
        spread = f" ({min(accuracy):.1f} to {max(accuracy):.1f}, {len(accuracy)} seeds)" if accuracy[1:] else ""
        rows.append((f"test accuracy from {STARTS[name]}", f"{mean(accuracy):.1f} %{spread}"))
    if tuning["accuracy"]:
        rows.append(("test accuracy of logistic regression on word counts", f"{tuning['counting']:.1f} %"))
        rows.append(("test accuracy by guessing", f"{tuning['chance']:.1f} %"))
    else:
        rows.append(("fine-tuning task", "none: the text has no two sources that are large enough"))
    minutes = {name: step["seconds"] / 60 for name, step in results.items()}
    return [*rows, ("time", f"{sum(minutes.values()):.1f} minutes, {minutes['pretraining']:.1f} of pretraining")]


def write_summary(folder: Path, results: dict[str, Any]) -> str:
    """Write summary.md, summary.json and curves.png from the results of all steps and their logs; return the table."""
    draw_curves(folder / "logs", results, folder / "curves.png")
    write_json(folder / "summary.json", results)
    overview = markdown_table(["", ""], summary_rows(results))
    masks = "\n\n".join("\n".join(f"    {line}" for line in mask_lines(each)) for each in results["masks"]["filled"])
    (folder / "summary.md").write_text(f"{overview}\n\n{masks}\n", encoding="utf-8")
    return f"{overview}\n\nthis table: {folder / 'summary.md'}\nthe curves: {folder / 'curves.png'}"


def draw_curves(logs: Path, results: dict[str, Any], path: Path) -> None:
    """Draw loss and accuracy of pretraining, and the test accuracy of fine-tuning if there was any."""
    pyplot, tuning = import_pyplot(), results["fine_tuning"]
    panels = 3 if tuning["accuracy"] else 2
    figure, axes = pyplot.subplots(1, panels, figsize=(4.7 * panels, 4.2), layout="constrained")
    labels = {"loss": "loss (bits per masked token)", "accuracy": "masked-token accuracy (%)"}
    for axis, (name, label) in zip(axes, labels.items()):
        train, held_out = (curve(logs / "pretraining.log", kind, name) for kind in ("train_inner", "valid"))
        axis.plot(*zip(*smooth(train, 9)), color=_GRAY, linewidth=1.2, label="training text, 40 % masked (smoothed)")
        axis.plot(*zip(*held_out), color=_BLUE, marker="o", markersize=4, label="held-out text, 15 % masked")
        axis.set(title="Pretraining", xlabel="updates", ylabel=label)
    for (start, accuracy), color in zip(tuning["accuracy"].items(), (_BLUE, _ORANGE)):
        curves = [test_curve(logs / f"fine_tuning_{start}_{seed}.log") for seed in range(1, len(accuracy) + 1)]
        for each in curves:
            axes[2].plot(*zip(*each), color=color, alpha=0.3, linewidth=1)
        averages = [(points[0][0], mean(value for _, value in points)) for points in zip(*curves)]
        axes[2].plot(*zip(*averages), color=color, marker="o", markersize=4, label=f"from {STARTS[start]}")
    if tuning["accuracy"]:
        axes[2].axhline(tuning["counting"], color=_GRAY, linewidth=1, label="word counts, logistic regression")
        axes[2].axhline(tuning["chance"], color=_GRAY, linestyle="--", linewidth=1, label="guessing")
        axes[2].set(title=f"Fine-tuning, {len(results['data']['classes'])} classes", xlabel="updates")
        axes[2].set(ylabel="test accuracy (%)", ylim=(0, 100))
    for axis in axes:
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
        "two or more give a task, which file a text is from; without any, the docstrings of this Python installation",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="folder for everything"
    )
    updates = 4900 if PRECISION == "bf16" else 3500
    parser.add_argument("--updates", type=number(int, 1), default=updates, metavar="N", help="updates of pretraining")
    parser.add_argument("--fine-tuning-updates", type=number(int, 1), default=200, metavar="N", help="updates of each")
    parser.add_argument("--seeds", type=number(int, 1), default=2, metavar="N", help="fine-tunings from each start")
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
        settings = {
            **own,
            "precision": PRECISION,
            "fine_tunings": args.seeds,
            "texts": [[str(path), path.stat().st_size] for path in files],
        }
        with study_folder(args.output.resolve(), settings):
            quickstart = Quickstart(args.output.resolve(), files, **own, seeds=args.seeds)
            quickstart.do()
            print(f"\n{write_summary(quickstart.folder, quickstart.results)}")


if __name__ == "__main__":
    # fairseq logs to the screen when it is used from Python; what matters is printed here.
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
