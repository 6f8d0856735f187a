"""The sub-command ``maelm predict``: what a fine-tuned checkpoint says of a file, whatever it was fine-tuned on.

Each kind of fine-tuning has a module with ``predict_input(args)``, and ``add_input_arguments(parser)`` if it needs
options.
"""

import argparse
import json
import sys
from collections.abc import Callable

from fairseq_maelm.arguments import UsageError, add_batch_size, add_checkpoint, add_device, add_output, existing_path
from fairseq_maelm.files import refuse_existing, write_bytes
from fairseq_maelm.finetuning.predicted import Predicted
from fairseq_maelm.finetuning.prompting import predict_input as prompting
from fairseq_maelm.finetuning.sentences import predict_input as sentences
from fairseq_maelm.finetuning.squad import predict_input as squad
from fairseq_maelm.finetuning.tagging import predict_input as tagging
from fairseq_maelm.models.checkpoint_reader import read_checkpoint

_PREDICT: dict[str, Callable[[argparse.Namespace], Predicted]] = {
    "maelm_sentences": sentences.predict_input,
    "sentence_prediction": sentences.predict_input,
    "maelm_squad": squad.predict_input,
    "maelm_tagging": tagging.predict_input,
    "maelm_prompt": prompting.predict_input,
    "maelm": prompting.predict_input,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm predict``."""
    parser.description = (
        "Writes what a fine-tuned checkpoint predicts, or with --prompt a pretrained one. Tables of texts (.tsv, .csv, "
        ".jsonl): a label and its probability, or a value, for each row. CoNLL files: the file with its labels "
        "replaced; .txt: word/LABEL. "
        "SQuAD's JSON: id -> answer. Where the input has labels, metrics follow in one line of JSON."
    )
    parser.add_argument(
        "input", type=existing_path, metavar="INPUT", help="a file, or a prepared folder, whose --split is predicted"
    )
    add_checkpoint(parser, "fine-tuned checkpoint, or with --prompt a pretrained one")
    add_output(parser, "new file for the predictions", metavar="FILE", required=False)
    parser.add_argument(
        "--vocabulary", type=existing_path, metavar="FOLDER",
        help="folder with vocabulary and labels (default: INPUT if it is a folder, else the checkpoint's)",
    )  # fmt: skip
    parser.add_argument("--split", default="valid", help="split of a prepared folder")
    add_batch_size(parser)
    add_device(parser)
    sentences.add_input_arguments(parser)
    squad.add_input_arguments(parser)
    tagging.add_input_arguments(parser)
    prompting.add_input_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Predict; predictions go to the output, metrics to standard output.

    Raises:
        OSError: a file is missing, or the output is there already.
        ValueError: the input or the checkpoint is not as it must be.
    """
    if args.output is not None:
        refuse_existing(args.output)
    task = read_checkpoint(args.checkpoint).task_name
    if task not in _PREDICT:
        raise ValueError(
            f"{args.checkpoint} is of the task {task}: predictions need a checkpoint of {', '.join(_PREDICT)}"
        )
    predict = _PREDICT[task]
    if args.prompt is None and task == "maelm":
        raise UsageError(f"{args.checkpoint} is a pretrained checkpoint: give --prompt, or fine-tune it first")
    if args.prompt is not None and predict is not prompting.predict_input:
        raise UsageError(f"--prompt needs a checkpoint of pretraining or of maelm_prompt, and this one is of {task}")
    args.checkpoint = args.checkpoint.absolute()
    own = args.input if args.input.is_dir() else args.checkpoint.parent
    args.vocabulary = (args.vocabulary or own).absolute()
    text, metrics = predict(args)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_bytes(args.output, text.encode("utf-8"))
    if metrics is not None:
        sys.stdout.write(json.dumps(metrics) + "\n")
