"""From text to a fine-tuned model and a summary; run.sh sets the environment up and calls this."""

import argparse
import json
import logging
import sys
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
from fairseq_maelm.launch.command_line import words_of
from fairseq_maelm.launch.machine import Machine
from fairseq_maelm.modules.autocast import multiplies_bfloat16
from fairseq_maelm.options import USER_DIR, CommandParser, number
from fairseq_maelm.sweep.folder import sweep_folder
from fairseq_maelm.sweep.log import log_records, training_seconds
from fairseq_maelm.sweep.programs import Program, Runner, read_marker, sitting
from fairseq_maelm.sweep.tables import markdown_table

# One process and no GPU on every machine, so that the numbers can be compared; bfloat16 where the processor multiplies
# matrices in it.
PRECISION = "bf16" if multiplies_bfloat16("cpu") else "fp32"
HERE = Path(__file__).resolve().parent
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


class Quickstart:
    """The programs of one run, with all output in one folder; finished ones are skipped."""

    def __init__(self, folder: Path, files: Sequence[Path], updates: int, fine_tuning_updates: int, seeds: int) -> None:
        self.folder, self.files, self.updates = folder, files, updates
        self.fine_tuning_updates, self.seeds = fine_tuning_updates, seeds

    def run(self) -> None:
        """Run all programs, one after another; fine-tunings two at a time, and only if there is a task."""
        text = ["python", str(HERE / "texts.py"), str(self.folder / "text"), *map(str, self.files)]
        self._do(self._program("text", text, last_json))
        self._do(self._program("data", self._preparation(), self.make_task, resumes=True))
        # At learning rate 0 the weights stay as the seed draws them.
        self._do(self._pretraining("random", 20, 20, "lr=0"))
        self._do(self._pretraining("pretrained", self.updates, max(1, self.updates // 8)))
        fill = ["maelm", "fill", *self._sentences(), "--checkpoint", str(self.checkpoint("pretrained"))]
        self._do(self._program("masks", [*fill, "--top", "4", "--json"], filled))
        if read_results(self.folder)["data"]["words"]:
            seeds = range(1, self.seeds + 1)
            self._do(*(self._fine_tuning(start, seed) for start in STARTS for seed in seeds), side_by_side=2)

    def _do(self, *programs: Program, side_by_side: int = 1) -> None:
        Runner([""] * side_by_side).do(programs)

    def _program(self, name: str, words: list[str], result: Any, resumes: bool = False) -> Program:
        return Program(name.replace("_", " "), self.folder / "logs" / f"{name}.json", words, result, resumes)

    def checkpoint(self, start: str) -> Path:
        """Return the last checkpoint of a pretraining."""
        return self.folder / start / "checkpoint_last.pt"

    def _preparation(self) -> list[str]:
        train, valid = (str(self.folder / "text" / f"{split}.txt") for split in ("train", "valid"))
        # Pieces that the text can give and that five minutes of training see often enough to learn.
        pieces = 2000 if Path(train).stat().st_size >= 200_000 else 500
        words = ["maelm", "prepare", "corpus", train, "--valid", valid, "--output", str(self.folder / "data")]
        return [*words, "--vocabulary-size", str(pieces)]

    def _pretraining(self, name: str, updates: int, interval: int, *more: str) -> Program:
        words = ["maelm", "pretrain", str(self.folder / "data"), "--gpus", "0", "--recipe", str(HERE / "recipe.yaml")]
        words += ["--precision", PRECISION, "--verbose", "--output", str(self.folder / name)]
        words += ["--set", f"max-update={updates}", f"save-interval-updates={interval}", *more]
        return self._program(name, words, scores, resumes=True)

    def _fine_tuning(self, start: str, seed: int) -> Program:
        task, updates = self.folder / "task", self.fine_tuning_updates
        options = {
            "task": "maelm_prompt", "criterion": "maelm_prompt", "arch": "maelm", "dropout": 0.1,
            "attention-dropout": 0.1, "optimizer": "fused_adamw", "adam-betas": "(0.9,0.98)", "adam-eps": "1e-6",
            "weight-decay": 0.01, "lr": 0.001, "lr-scheduler": "polynomial_decay", "clip-norm": 1.0, "batch-size": 32,
            "log-interval": 10, "log-format": "json", **Machine(0, PRECISION).options(),
            "prompt": task / "prompt.json", "examples": task, "max-update": updates, "total-num-update": updates,
            "warmup-updates": max(1, updates // 10), "validate-interval-updates": max(1, updates // 6),
            "validate-interval": 1_000_000, "finetune-from-model": self.checkpoint(start), "seed": seed,
            # fairseq would still make its default folder, and start from a checkpoint that is there.
            "no-save": True, "save-dir": task,
        }  # fmt: skip
        words = ["fairseq-train", str(self.folder / "data"), "--user-dir", str(USER_DIR), *words_of(options)]
        return self._program(f"fine_tuning_{start}_{seed}", words, test_accuracy, resumes=True)

    def _sentences(self) -> list[str]:
        """Return sentences with masks, of the user's text as many words as the model has positions for."""
        if not self.files:
            return list(SENTENCES)
        hub = fairseq_maelm.MaelmModel.from_pretrained(str(self.folder / "pretrained"), "checkpoint_last.pt")
        positions = hub.model.max_positions()
        return texts.held_out_sentences(
            self.folder / "text" / "valid.txt", lambda own: len(hub.encode(own)) <= positions
        )

    def make_task(self, log: Path) -> dict[str, Any]:
        """Make the task from prepared text; return numbers of tokens, the task's words, and what counting reaches."""
        counts = json.loads((self.folder / "data" / "manifest.json").read_text(encoding="utf-8"))["counts"]
        results = {"tokens": {split: own["tokens"] for split, own in counts.items()}, "words": [], "counting": {}}
        symbols = (self.folder / "data" / "dict.txt").read_text(encoding="utf-8").splitlines()
        task = texts.make_task(self.folder / "text", {line.partition(" ")[0] for line in symbols})
        if task:
            results["words"] = texts.write_task(task, self.folder / "task")
            counted = {name: accuracy_of_counting(task["train"], task["valid"], seen) for name, seen in COUNTED.items()}
            results["counting"] = counted
        return results


def last_json(log: Path) -> dict[str, Any]:
    """Return what a program wrote."""
    found: dict[str, Any] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    return found


def scores(log: Path) -> dict[str, Any]:
    """Return the scores on held-out text at the end of a pretraining, and the minutes that it took."""
    found = [numbers for _, numbers in log_records(log, ["valid"])][-1]
    return {
        "accuracy": found["valid_accuracy"],
        "perplexity": found["valid_ppl"],
        "minutes": training_seconds(log) / 60,
    }


def filled(log: Path) -> dict[str, Any]:
    """Return the sentences with the candidates for their masks."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return {"filled": lines}


def test_accuracy(log: Path) -> dict[str, Any]:
    """Return the accuracy after the last update of a fine-tuning."""
    return {"accuracy": curve(log, *TEST)[-1][1]}


def read_results(folder: Path) -> dict[str, Any]:
    """Return the results of all steps by the names of their logs."""
    return {path.stem: read_marker(path) or {} for path in sorted((folder / "logs").glob("*.json"))}


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
    candidates = ", ".join(f"{each['token']} {100 * each['probability']:.0f} %" for each in filled["masks"][0])
    return [filled["text"], f"    {candidates}"]


def test_accuracies(results: dict[str, Any]) -> dict[str, list[float]]:
    """Return the test accuracies from each start, one for each seed; nothing if there is no task."""
    own = {start: [name for name in results if name.startswith(f"fine_tuning_{start}_")] for start in STARTS}
    return {start: [results[name]["accuracy"] for name in names] for start, names in own.items() if names}


def summary_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the results of all steps as rows of a name and a value."""
    text, data, start, trained = (results[name] for name in ("text", "data", "random", "pretrained"))
    held_out = "masked-token accuracy on held-out text (15 % masked)"
    rows = [
        ("text", f"{text['characters'] / 1e6:.1f} million characters, {text['documents']:,} documents"),
        ("tokens to train on / held out", f"{data['tokens']['train']:,} / {data['tokens']['valid']:,}"),
        (f"{held_out}, before", f"{start['accuracy']:.1f} %"),
        (f"{held_out}, after", f"{trained['accuracy']:.1f} %"),
        ("perplexity on held-out text, before", f"{start['perplexity']:,.0f}"),
        ("perplexity on held-out text, after", f"{trained['perplexity']:,.1f}"),
        ("minutes of pretraining", f"{trained['minutes']:.1f}"),
    ]
    for name, accuracy in test_accuracies(results).items():
        spread = f" ({min(accuracy):.1f} to {max(accuracy):.1f}, {len(accuracy)} seeds)" if accuracy[1:] else ""
        rows.append((f"test accuracy from {STARTS[name]}", f"{mean(accuracy):.1f} %{spread}"))
    for name, value in data["counting"].items():
        rows.append((f"test accuracy of logistic regression on {name}", f"{value:.1f} %"))
    words = data["words"]
    guessing = ("test accuracy by guessing", f"{100 / len(words):.1f} %") if words else None
    return [*rows, guessing or ("fine-tuning task", "none: the text is too short, or has no words between spaces")]


def write_summary(folder: Path) -> str:
    """Write summary.md, summary.json and curves.png from the results of all steps and their logs; return the table."""
    results = read_results(folder)
    draw_curves(folder / "logs", results, folder / "curves.png")
    write_json(folder / "summary.json", results)
    overview = markdown_table(["", ""], summary_rows(results))
    masks = "\n\n".join("\n".join(f"    {line}" for line in mask_lines(each)) for each in results["masks"]["filled"])
    (folder / "summary.md").write_text(f"{overview}\n\n{masks}\n", encoding="utf-8")
    return f"{overview}\n\n{masks}\n\nthis summary: {folder / 'summary.md'}\nthe curves: {folder / 'curves.png'}"


def draw_curves(logs: Path, results: dict[str, Any], path: Path) -> None:
    """Draw loss and accuracy of pretraining, and the test accuracy of fine-tuning if there was any."""
    pyplot, words, accuracies = import_pyplot(), results["data"]["words"], test_accuracies(results)
    panels = 3 if accuracies else 2
    figure, axes = pyplot.subplots(1, panels, figsize=(4.7 * panels, 4.2), layout="constrained")
    labels = {"loss": "loss (bits per masked token)", "accuracy": "masked-token accuracy (%)"}
    for axis, (name, label) in zip(axes, labels.items()):
        train, held_out = (curve(logs / "pretrained.log", kind, name) for kind in ("train_inner", "valid"))
        axis.plot(*zip(*train), color=_GRAY, linewidth=0.8, label="training text, 40 % masked")
        axis.plot(*zip(*held_out), color=_BLUE, marker="o", markersize=4, label="held-out text, 15 % masked")
        axis.set(title="Pretraining", xlabel="updates", ylabel=label)
    for (start, accuracy), color in zip(accuracies.items(), (_BLUE, _ORANGE)):
        curves = [curve(logs / f"fine_tuning_{start}_{seed}.log", *TEST) for seed in range(1, len(accuracy) + 1)]
        for each in curves:
            axes[2].plot(*zip(*each), color=color, alpha=0.3, linewidth=1)
        averages = [(points[0][0], mean(value for _, value in points)) for points in zip(*curves)]
        axes[2].plot(*zip(*averages), color=color, marker="o", markersize=4, label=f"from {STARTS[start]}")
    if accuracies:
        for (name, value), style in zip(results["data"]["counting"].items(), ("-", "-.")):
            label = f"logistic regression on {name}"
            axes[2].axhline(value, color=_GRAY, linewidth=1, linestyle=style, label=label)
        axes[2].axhline(100 / len(words), color=_GRAY, linestyle="--", linewidth=1, label="guessing")
        axes[2].set(title=f"Fine-tuning: which of {len(words)} words?", xlabel="updates")
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
        "default: the docstrings of this Python installation",
    )  # fmt: skip
    default = 4900 if PRECISION == "bf16" else 3500
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="output folder")
    parser.add_argument("--updates", type=number(int, 1), default=default, metavar="N", help="pretraining updates")
    parser.add_argument("--fine-tuning-updates", type=number(int, 1), default=200, metavar="N", help="updates per run")
    parser.add_argument("--seeds", type=number(int, 1), default=2, metavar="N", help="fine-tunings per start")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not finished yet and write the summary.

    Exit with 1 and a message for anything that the user can put right, with 130 when interrupted.
    """
    args = parse(arguments)
    files, output = [path.resolve() for path in args.texts], args.output.resolve()
    own = {"updates": args.updates, "fine_tuning_updates": args.fine_tuning_updates}
    with sitting("quickstart"):
        read = [[str(path), path.stat().st_size] for path in files]
        # Not "seeds", which a later sweep may change.
        settings = {**own, "fine_tunings": args.seeds, "precision": PRECISION, "texts": read}
        with sweep_folder(output, settings):
            Quickstart(output, files, **own, seeds=args.seeds).run()
            print(f"\n{write_summary(output)}")


if __name__ == "__main__":
    # fairseq logs to the screen when it is used from Python; what matters is printed here.
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
