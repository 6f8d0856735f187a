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
from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.modules.autocast import multiplies_bfloat16
from fairseq_maelm.options import CommandParser, number
from fairseq_maelm.studies.engine import Job, read_json
from fairseq_maelm.studies.folder import study_folder
from fairseq_maelm.studies.log import log_records
from fairseq_maelm.studies.options import Runner, sitting
from fairseq_maelm.studies.tables import markdown_table
from fairseq_maelm.training.options import USER_DIR, Machine, words_of

# One process and no GPU on every machine, so that the numbers can be compared; bfloat16 where the processor multiplies
# matrices in it.
PRECISION = "bf16" if multiplies_bfloat16("cpu") else "fp32"
FINE_TUNING = {
    "task": "maelm_prompt", "criterion": "maelm_prompt", "arch": "maelm", "dropout": 0.1, "attention-dropout": 0.1,
    "optimizer": "fused_adamw", "adam-betas": "(0.9,0.98)", "adam-eps": "1e-6", "weight-decay": 0.01, "lr": 1e-3,
    "lr-scheduler": "polynomial_decay", "clip-norm": 1.0, "batch-size": 32, "log-interval": 10, "log-format": "json",
}  # fmt: skip
HERE = Path(__file__).resolve().parent
_FINE_TUNING_VALIDATIONS = 6
# Records and metric of a fine-tuning's log.
TEST = ("valid", "accuracy")
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


def fine_tuning(data: Path, task: Path, checkpoint: Path, updates: int, seed: int) -> list[str]:
    """Return the command that fine-tunes a checkpoint to fill the gaps of the task."""
    # Nothing is saved; fairseq would still make its default folder, and start from a checkpoint that is there.
    own: dict[str, Any] = {"prompt": task / "prompt.json", "examples": task, "no-save": True, "save-dir": task}
    own |= {"max-update": updates, "total-num-update": updates, "warmup-updates": max(1, updates // 10), "seed": seed}
    own |= {"validate-interval-updates": max(1, updates // _FINE_TUNING_VALIDATIONS), "validate-interval": 1_000_000}
    own |= {"user-dir": USER_DIR, "finetune-from-model": checkpoint}
    return ["fairseq-train", str(data), *words_of({**FINE_TUNING, **Machine(0, PRECISION).options(), **own})]


class Quickstart:
    """The steps of one run, on the user's files or on docstrings, with all output in one folder."""

    def __init__(self, folder: Path, files: Sequence[Path], updates: int, fine_tuning_updates: int, seeds: int) -> None:
        self.folder, self.files, self.fine_tuning_updates, self.seeds = folder, files, fine_tuning_updates, seeds
        self.updates, self.text, self.data, self.task = updates, folder / "text", folder / "data", folder / "task"
        self.checkpoints = {start: folder / start / "checkpoint_last.pt" for start in STARTS}
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
            Job(name, self.log(name).with_suffix(".json"), lambda words=words: words, resumes=True)
            for name, words in programs.items()
        ]
        Runner([""] * side_by_side, 0, None, retry_failed=True, dry_run=False).do(jobs)

    def do(self) -> None:
        """Do all steps that are not finished yet."""
        self.step("text", "Collect the text, hold some out", self.collect)
        self.step("data", "Train a vocabulary, encode, make a task", self.prepare)
        # At learning rate 0 the weights stay as the seed draws them.
        self.step("start", "Score random weights", lambda: self.pretrain("random", 20, 1, "lr=0"))
        title = f"Pretrain for {self.updates:,} updates of 2,048 tokens in {PRECISION}"
        self.step("pretraining", title, lambda: self.pretrain("pretrained", self.updates, 8))
        self.step("fine_tuning", "Fine-tune from the pretrained encoder and from random weights", self.fine_tune)
        self.step("masks", "Fill masks", self.fill_masks)

    def collect(self) -> dict[str, Any]:
        """Read the docstrings, or the user's files, and hold some out."""
        documents = texts.documents_of_files(self.files) if self.files else texts.installed_docstrings()
        number, characters = texts.write_text(documents, self.text)
        line = f"{characters / 1e6:.1f} million characters in {number:,} documents"
        return {"characters": characters, "documents": number, "lines": [line]}

    def prepare(self) -> dict[str, Any]:
        """Prepare the text for pretraining, and make the task."""
        train, valid = self.text / "train.txt", self.text / "valid.txt"
        # Pieces that the text can give and that five minutes of training see often enough to learn.
        pieces = 2000 if train.stat().st_size >= 200_000 else 500
        words = ["maelm", "prepare", "corpus", str(train), "--valid", str(valid), "--output", str(self.data)]
        self.run({"prepare": [*words, "--vocabulary-size", str(pieces)]})
        counts = json.loads((self.data / "manifest.json").read_text(encoding="utf-8"))["counts"]
        lines = [f"{split}: {own['documents']:,} documents, {own['tokens']:,} tokens" for split, own in counts.items()]
        results = {"tokens": {split: own["tokens"] for split, own in counts.items()}, "words": [], "lines": lines}
        symbols = (self.data / "dict.txt").read_text(encoding="utf-8").splitlines()
        task = texts.make_task(self.text, {line.partition(" ")[0] for line in symbols})
        if not task:
            lines.append("no task to fine-tune on: the text is too short, or has no words between spaces")
            return results
        results["words"] = texts.write_task(task, self.task)
        lines.append(f"task: which of {len(results['words'])} words is missing? ({', '.join(results['words'])})")
        lines.append(f"gaps: {len(task['train']):,} to train on, {len(task['valid']):,} of held-out text to test on")
        return results

    def pretrain(self, start: str, updates: int, validations: int, *settings: str) -> dict[str, Any]:
        """Pretrain, and return the scores on held-out text at the end."""
        interval = max(1, updates // validations)
        words = ["maelm", "pretrain", str(self.data), "--output", str(self.checkpoints[start].parent), "--gpus", "0"]
        words += ["--recipe", str(HERE / "recipe.yaml"), "--precision", PRECISION, "--verbose"]
        words += ["--set", f"max-update={updates}", f"save-interval-updates={interval}", *settings]
        self.run({start: words})
        scores = [numbers for _, numbers in log_records(self.log(start), ["valid"])][-1]
        accuracy, perplexity = scores["valid_accuracy"], scores["valid_ppl"]
        masked = f"with {scores['valid_masked']:.0f} % of the tokens masked"
        line = f"held-out text {masked}: accuracy {accuracy:.1f} %, perplexity {perplexity:,.1f}"
        return {"accuracy": accuracy, "perplexity": perplexity, "lines": [line]}

    def fine_tune(self) -> dict[str, Any]:
        """Fine-tune from both starts with each seed; the runs differ in nothing else."""
        words = self.results["data"]["words"]
        if not words:
            return {"accuracy": {}, "lines": ["skipped: there is no task (see above)"]}
        names = {start: [f"fine_tuning_{start}_{seed}" for seed in range(1, self.seeds + 1)] for start in STARTS}
        programs = {
            name: fine_tuning(self.data, self.task, self.checkpoints[start], self.fine_tuning_updates, seed)
            for start, own in names.items()
            for seed, name in enumerate(own, 1)
        }
        self.run(programs, side_by_side=2)
        accuracy = {start: [curve(self.log(name), *TEST)[-1][1] for name in own] for start, own in names.items()}
        train, test = (texts.read_examples(self.task, split) for split in ("train", "valid"))
        counting = {name: accuracy_of_counting(train, test, seen) for name, seen in COUNTED.items()}
        lines = [
            f"test accuracy from {STARTS[start]}: " + ", ".join(f"{value:.1f} %" for value in values)
            for start, values in accuracy.items()
        ]
        lines += [f"test accuracy by counting {name}: {value:.1f} %" for name, value in counting.items()]
        return {"accuracy": accuracy, "counting": counting, "chance": 100 / len(words), "lines": lines}

    def fill_masks(self) -> dict[str, Any]:
        """Fill the masks of a few sentences through the hub interface."""
        hub = fairseq_maelm.MaelmModel.from_pretrained(str(self.folder / "pretrained"), "checkpoint_last.pt")
        positions = hub.model.max_positions()

        def fits(text: str) -> bool:
            return len(hub.encode(text)) <= positions

        held_out = texts.held_out_sentences(self.text / "valid.txt", fits) if self.files else SENTENCES
        filled = [
            {"text": text, "candidates": [[best.token, best.probability] for best in hub.fill_mask(text, topk=4)[0]]}
            for text in held_out
        ]
        return {"filled": filled, "lines": [line for each in filled for line in mask_lines(each)]}


def nearest_words(before: str, after: str) -> str:
    """Return the two words on each side of a gap, each with its place."""
    near = zip((-2, -1, 1, 2), (*before.split()[-2:], *after.split()[:2]))
    return " ".join(f"{place}:{word}" for place, word in near)


def accuracy_of_counting(
    train: list[texts.Example], test: list[texts.Example], seen: Callable[[str, str], str]
) -> float:
    """Return the test accuracy in percent of logistic regression on the words that ``seen`` takes from an example."""
    classifier = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, token_pattern=r"\S+"), LogisticRegression(C=10, max_iter=1000)
    )
    classifier.fit([seen(before, after) for before, after, _ in train], [word for *_, word in train])
    found = classifier.score([seen(before, after) for before, after, _ in test], [word for *_, word in test])
    return 100 * float(found)


# What logistic regression counts: name -> the words that it takes from the text before and after a gap.
COUNTED = {"all words": lambda before, after: f"{before} {after}", "the nearest words": nearest_words}


# The summary


def curve(log: Path, kind: str, metric: str) -> Curve:
    """Return update and value of the records of a kind, "train_inner" or "valid"; of repeated ones the last."""
    prefix = "" if kind == "train_inner" else f"{kind}_"
    records = [each for _, each in log_records(log, [kind]) if prefix + metric in each]
    return sorted({int(each[f"{prefix}num_updates"]): each[prefix + metric] for each in records}.items())


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
        counting = tuning["counting"].items()
        rows += [(f"test accuracy of logistic regression on {name}", f"{value:.1f} %") for name, value in counting]
        rows.append(("test accuracy by guessing", f"{tuning['chance']:.1f} %"))
    else:
        rows.append(("fine-tuning task", "none: the text is too short, or has no words between spaces"))
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
        train, held_out = (curve(logs / "pretrained.log", kind, name) for kind in ("train_inner", "valid"))
        axis.plot(*zip(*train), color=_GRAY, linewidth=0.8, label="training text, 40 % masked")
        axis.plot(*zip(*held_out), color=_BLUE, marker="o", markersize=4, label="held-out text, 15 % masked")
        axis.set(title="Pretraining", xlabel="updates", ylabel=label)
    for (start, accuracy), color in zip(tuning["accuracy"].items(), (_BLUE, _ORANGE)):
        curves = [curve(logs / f"fine_tuning_{start}_{seed}.log", *TEST) for seed in range(1, len(accuracy) + 1)]
        for each in curves:
            axes[2].plot(*zip(*each), color=color, alpha=0.3, linewidth=1)
        averages = [(points[0][0], mean(value for _, value in points)) for points in zip(*curves)]
        axes[2].plot(*zip(*averages), color=color, marker="o", markersize=4, label=f"from {STARTS[start]}")
    if tuning["accuracy"]:
        for (name, value), style in zip(tuning["counting"].items(), ("-", "-.")):
            label = f"logistic regression on {name}"
            axes[2].axhline(value, color=_GRAY, linewidth=1, linestyle=style, label=label)
        axes[2].axhline(tuning["chance"], color=_GRAY, linestyle="--", linewidth=1, label="guessing")
        axes[2].set(title=f"Fine-tuning: which of {len(results['data']['words'])} words?", xlabel="updates")
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
        "without any, the docstrings of this Python installation",
    )  # fmt: skip
    default = 4900 if PRECISION == "bf16" else 3500
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="output folder")
    parser.add_argument("--updates", type=number(int, 1), default=default, metavar="N", help="updates of pretraining")
    parser.add_argument("--fine-tuning-updates", type=number(int, 1), default=200, metavar="N", help="updates of each")
    parser.add_argument("--seeds", type=number(int, 1), default=2, metavar="N", help="fine-tunings from each start")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not finished yet and write the summary.

    Raises:
        SystemExit: 1 with a message for anything that the user can put right, 130 when interrupted.
    """
    args = parse(arguments)
    files, output = [path.resolve() for path in args.texts], args.output.resolve()
    own = {"updates": args.updates, "fine_tuning_updates": args.fine_tuning_updates}
    with sitting("quickstart"):
        read = [[str(path), path.stat().st_size] for path in files]
        # Not "seeds", which a study may change later: here all fine-tunings are one step.
        settings = {**own, "fine_tunings": args.seeds, "precision": PRECISION, "texts": read}
        with study_folder(output, settings):
            quickstart = Quickstart(output, files, **own, seeds=args.seeds)
            quickstart.do()
            print(f"\n{write_summary(output, quickstart.results)}")


if __name__ == "__main__":
    # fairseq logs to the screen when it is used from Python; what matters is printed here.
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
