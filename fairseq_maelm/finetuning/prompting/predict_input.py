"""Classification by the words at a template's mask for ``maelm predict``."""

import argparse
import logging

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.arguments import UsageError
from fairseq_maelm.finetuning.predicted import Predicted, hub_of
from fairseq_maelm.finetuning.prompting.hub import find_prompter, score
from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN, Prompt, find_prompt
from fairseq_maelm.finetuning.prompting.scoring import predictions
from fairseq_maelm.finetuning.prompting.tables import Example, read_table
from fairseq_maelm.finetuning.prompting.template import render, spell
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics
from fairseq_maelm.models.classification import most_likely

logger = logging.getLogger(__name__)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of prompts."""
    group = parser.add_argument_group("prompts: pretrained checkpoints, and those fine-tuned with a prompt")
    group.add_argument(
        "--prompt", metavar="PROMPT",
        help=f"{', '.join(BUILT_IN)}, or a .yaml or .json file (default: the checkpoint's own, if it has one)",
    )  # fmt: skip
    group.add_argument(
        "--several-pieces", action="store_true",
        help="score label words of several pieces by their mean log-probability instead of refusing them",
    )  # fmt: skip


def predict_input(args: argparse.Namespace) -> Predicted:
    """Predict a label and its probability, or a value, for each row of a table."""
    if args.input.is_dir():
        raise UsageError(f"{args.input} is a folder: a prompt needs a table of texts")
    try:
        prompt = None if args.prompt is None else find_prompt(args.prompt)
    except ValueError as error:
        raise UsageError(f"--prompt: {error}") from error
    hub = hub_of(args)
    if prompt is None and not hasattr(hub.task, "prompter"):
        raise UsageError("this checkpoint was not fine-tuned with a prompt: give --prompt")
    prompter = find_prompter(hub, prompt, several_pieces=args.several_pieces)
    prompt = prompter.prompt
    examples = read_table(args.input, prompt.sentences, prompt.name)
    targets = _targets(prompt, examples, str(args.input))
    logger.info("the first example: %s", spell(render(prompt.parts, examples[0].sentences)))
    scores = score(hub, prompter, [example.sentences for example in examples], args.batch_size, progress="prompts")
    predicted = predictions(scores, prompt.bounds).numpy()
    metrics = None if targets is None else compute_metrics(prompt.metrics, targets, predicted)
    if prompt.bounds is not None:
        return Predicted("value\n" + "".join(f"{value:.6g}\n" for value in predicted), metrics)
    lines = [f"{label}\t{probability:.4f}\n" for label, probability in most_likely(scores, prompt.labels)]
    return Predicted("label\tprobability\n" + "".join(lines), metrics)


def _targets(prompt: Prompt, examples: list[Example], path: str) -> NDArray[np.float64] | None:
    """Return <float64>[examples], or None if the table has no labels."""
    if examples[0].label is None:
        return None
    return np.array([prompt.target(str(each.label), f"{path}, example {n}") for n, each in enumerate(examples, 1)])
