"""The one command of this package, ``maelm``.

A sub-command is a module with ``add_arguments(parser)`` and ``run(args)`` and one row of the table below. Only the
module of the sub-command that is called gets imported. One with ``PASSES_OPTIONS_ON`` finds the words after ``--`` in
``args.fairseq_options``.
"""

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_maelm.fairseq_fixes.memory import keep_freed_memory

SUB_COMMANDS = {
    "analyze": ("fairseq_maelm.analysis.command", "measure representations: effective rank, subspace of [MASK]"),
    "answer": ("fairseq_maelm.finetuning.squad.answer_command", "answer questions about a text file"),
    "ema": ("fairseq_maelm.models.averaged_weights", "turn the averaged weights of --store-ema into a checkpoint"),
    "embed": ("fairseq_maelm.finetuning.retrieval.embed_command", "embed texts with the encoder of a checkpoint"),
    "evaluate-retrieval": (
        "fairseq_maelm.finetuning.retrieval.evaluate_command",
        "measure run files against judgments",
    ),
    "export": ("fairseq_maelm.interop.export.command", "turn a checkpoint into a folder of Hugging Face transformers"),
    "finetune": ("fairseq_maelm.finetuning.command", "fine-tune a checkpoint on a prepared task"),
    "import": (
        "fairseq_maelm.interop.importing.command",
        "turn a Hugging Face or RoBERTa model into a fairseq checkpoint",
    ),
    "predict": ("fairseq_maelm.predict_command", "predict with a fine-tuned checkpoint: labels, values, tags, answers"),
    "predict-glue": (
        "fairseq_maelm.finetuning.glue.predict_command",
        "write GLUE submission files and dev metrics of a checkpoint",
    ),
    "predict-squad": (
        "fairseq_maelm.finetuning.squad.predict_command",
        "answer the questions of a prepared SQuAD split",
    ),
    "prepare": ("fairseq_maelm.corpus.command", "turn raw text into a data folder for fairseq-train"),
    "prepare-glue": (
        "fairseq_maelm.finetuning.glue.prepare_command",
        "turn the files of GLUE into folders for fine-tuning",
    ),
    "prepare-retrieval": (
        "fairseq_maelm.finetuning.retrieval.prepare_command",
        "binarize a retrieval task in BEIR layout",
    ),
    "prepare-sentences": (
        "fairseq_maelm.finetuning.sentences.prepare_command",
        "turn tables of texts and labels into a task's folder",
    ),
    "prepare-squad": (
        "fairseq_maelm.finetuning.squad.prepare_command",
        "turn SQuAD's files into a folder for fairseq-train",
    ),
    "prepare-tagging": (
        "fairseq_maelm.finetuning.tagging.prepare_command",
        "turn labeled words into a folder for maelm_tagging",
    ),
    "pretrain": ("fairseq_maelm.pretrain_command", "pretrain on prepared text with the numbers of a recipe"),
    "prompt": ("fairseq_maelm.finetuning.prompting.command", "classify by the words at a template's mask"),
    "report": (
        "fairseq_maelm.sweep.report_command",
        "the table of a sweep: best settings, medians, the paper's beside",
    ),
    "score-squad": (
        "fairseq_maelm.finetuning.squad.score_command",
        "score SQuAD predictions as the official script does",
    ),
    "search": ("fairseq_maelm.finetuning.retrieval.search_command", "exact search over embeddings"),
    "sweep": ("fairseq_maelm.sweep.command", "fine-tune checkpoints on a grid of settings and seeds"),
    "tag": ("fairseq_maelm.finetuning.tagging.tag_command", "label the words of a file"),
    "user-dir": ("fairseq_maelm.cli", "print the folder to give to fairseq as --user-dir"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares that ``maelm user-dir`` takes no arguments."""
    parser.description = "Writes the folder to give to fairseq's commands as --user-dir."


def run(args: argparse.Namespace) -> None:
    """Writes the folder of the installed package to standard output: ``maelm user-dir``."""
    sys.stdout.write(f"{Path(__file__).resolve().parent}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``maelm`` with the given arguments, by default the process's own.

    Raises:
        SystemExit: 1 with a message for anything that the user can put right, 2 for wrong usage, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="maelm", description="MAE-LM with fairseq: all that stands around the training."
    )
    sub_parsers = parser.add_subparsers(dest="sub_command", required=True, metavar="COMMAND")
    for name, (_, summary) in SUB_COMMANDS.items():
        sub_parsers.add_parser(name, help=summary)
    called = next((argument for argument in given if not argument.startswith("-")), None)
    if called not in SUB_COMMANDS:
        parser.parse_args(given)
        return
    module = importlib.import_module(SUB_COMMANDS[called][0])
    module.add_arguments(sub_parsers.choices[called])
    own, more = given, []
    if getattr(module, "PASSES_OPTIONS_ON", False) and "--" in given:
        own, more = given[: given.index("--")], given[given.index("--") + 1 :]
    args = parser.parse_args(own)
    args.fairseq_options = more
    logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S", force=True)
    keep_freed_memory()
    try:
        module.run(args)
    except (ValueError, OSError) as error:
        raise SystemExit(f"maelm {called}: error: {error}") from error
    except KeyboardInterrupt:
        sys.stderr.write(f"\nmaelm {called}: interrupted; the same command resumes\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
