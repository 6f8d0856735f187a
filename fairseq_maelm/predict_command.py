"""The sub-command ``maelm predict``: predictions of fine-tuned checkpoints of all kinds.

Each kind of fine-tuning has a module with ``add_input_arguments(parser)`` and ``predict_input(args)``.
"""

import argparse
import json
import sys
from types import ModuleType

from fairseq_maelm.arguments import (
    UsageError,
    add_batch_size,
    add_checkpoint,
    add_device,
    add_output,
    existing_path,
    vocabulary_folder,
)
from fairseq_maelm.files import refuse_existing, write_bytes
from fairseq_maelm.finetuning.prompting import predict_input as prompting
from fairseq_maelm.finetuning.sentences import predict_input as sentences
from fairseq_maelm.finetuning.squad import predict_input as squad
from fairseq_maelm.finetuning.tagging import predict_input as tagging
from fairseq_maelm.models.checkpoint_reader import read_checkpoint

# Task -> the modules whose options it accepts; the first one predicts.
_KINDS: dict[str, tuple[ModuleType, ...]] = {
    "maelm_sentences": (sentences,),
    "sentence_prediction": (sentences,),
    "maelm_squad": (squad,),
    "maelm_tagging": (tagging,),
    "maelm_prompt": (prompting, sentences),
    "maelm": (prompting, sentences),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm predict``."""
    parser.description = (
        "Writes the predictions of a fine-tuned checkpoint, or with --prompt of a pretrained one. For tables of texts "
        "(.tsv, .csv, .jsonl) it writes a label and its probability, or a value, for each row; for CoNLL files, the "
        "file with new labels; for plain text, word/LABEL; for questions in SQuAD's format, the answer of each id. If "
        "the input has labels, a line of JSON with the metrics follows."
    )
    parser.add_argument(
        "input", type=existing_path, metavar="INPUT", help="file, or prepared folder with the --split to predict"
    )
    add_checkpoint(parser, "fine-tuned checkpoint, or with --prompt a pretrained one")
    add_output(parser, "new file for the predictions", metavar="FILE", required=False)
    parser.add_argument(
        "--vocabulary", type=vocabulary_folder, metavar="FOLDER",
        help="folder with vocabulary and labels (default: INPUT if it is a folder, else the checkpoint's folder)",
    )  # fmt: skip
    parser.add_argument("--split", default="valid", help="split of a prepared folder")
    add_batch_size(parser)
    add_device(parser)
    options = {}
    for kind in (sentences, squad, tagging, prompting):
        declared = len(parser._actions)
        kind.add_input_arguments(parser)
        options[kind] = parser._actions[declared:]
    parser.set_defaults(options_of_kinds=options)


def run(args: argparse.Namespace) -> None:
    """Write predictions to the output, and metrics to standard output."""
    refuse_existing(*(path for path in (args.output, args.null_odds) if path is not None))
    task = read_checkpoint(args.checkpoint).task_name
    if task not in _KINDS:
        raise ValueError(f"{args.checkpoint} is a checkpoint of the task {task}: give one of {', '.join(_KINDS)}")
    if args.prompt is None and task == "maelm":
        raise UsageError(f"{args.checkpoint} is a pretrained checkpoint: give --prompt, or fine-tune it first")
    _refuse_options_of_other_kinds(args, task)
    args.checkpoint = args.checkpoint.absolute()
    own = args.input if args.input.is_dir() else args.checkpoint.parent
    args.vocabulary = (args.vocabulary or own).absolute()
    text, metrics = _KINDS[task][0].predict_input(args)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_bytes(args.output, text.encode("utf-8"))
    if metrics is not None:
        sys.stdout.write(json.dumps(metrics) + "\n")


def _refuse_options_of_other_kinds(args: argparse.Namespace, task: str) -> None:
    for kind, actions in args.options_of_kinds.items():
        for action in actions:
            if kind not in _KINDS[task] and getattr(args, action.dest) != action.default:
                tasks = ", ".join(name for name, kinds in _KINDS.items() if kind in kinds)
                raise UsageError(
                    f"{action.option_strings[0]} is for checkpoints of {tasks}, and {args.checkpoint} is one of {task}"
                )
