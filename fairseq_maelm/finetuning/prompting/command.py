"""The sub-command ``maelm prompt``."""

import argparse
import json
import logging
import sys
from pathlib import Path

import numpy as np
from torch import Tensor

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import refuse_existing, write_bytes
from fairseq_maelm.finetuning.prompting.features import Prompter
from fairseq_maelm.finetuning.prompting.hub import find_prompter, score
from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN
from fairseq_maelm.finetuning.prompting.scoring import predictions
from fairseq_maelm.finetuning.prompting.tables import Example, read_glue, read_table
from fairseq_maelm.finetuning.prompting.template import render, spell
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics
from fairseq_maelm.models.hub import load

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prompt``."""
    parser.description = (
        "Classifies texts by the words that a checkpoint puts at a template's mask, without training it (zero-shot), "
        "or with a checkpoint that was fine-tuned by the task maelm_prompt. Writes metrics as one line of JSON."
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of pretraining or of maelm_prompt")
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        metavar="DATA",
        help="folder with its dict.txt and sentencepiece model (its own folder)",
    )
    parser.add_argument(
        "--examples",
        type=Path,
        required=True,
        metavar="TABLE",
        help="sentence(s) and label, tabs between, no header; without labels it only predicts",
    )
    parser.add_argument(
        "--prompt",
        metavar="PROMPT",
        help=f"{', '.join(BUILT_IN)}, or a .yaml or .json file (default: the checkpoint's own, if it has one)",
    )
    parser.add_argument(
        "--glue", action="store_true", help="TABLE is an original GLUE file with labels, of the prompt's task"
    )
    parser.add_argument(
        "--several-pieces",
        action="store_true",
        help="score label words of several pieces by their mean log-probability instead of refusing them",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="table of predictions and probabilities")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="examples of a batch (32)")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Classifies the examples."""
    check_device(args.device)
    if args.output is not None:
        refuse_existing(args.output)
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be positive and is {args.batch_size}")
    folder = args.checkpoint.parent.resolve()
    hub = load(str(folder), args.checkpoint.name, str((args.data or folder).resolve()))
    hub = hub.to(args.device)
    prompter = find_prompter(hub, args.prompt, several_pieces=args.several_pieces)
    prompt = prompter.prompt
    examples = read_glue(prompt.name, args.examples) if args.glue else read_table(args.examples, prompt.sentences)
    targets = _targets(prompter, examples, args.examples)
    logger.info("the first example: %s", spell(render(prompt.parts, examples[0].sentences)))
    sequences = [prompter.encode(example.sentences) for example in examples]
    scores = score(hub, prompter, sequences, args.batch_size, progress=True)
    if args.output is not None:
        write_bytes(args.output, _predictions_table(prompter, scores).encode("utf-8"))
    metrics: dict[str, float] = {"examples": len(examples)}
    if targets is not None:
        predicted = predictions(scores, prompt.bounds).numpy()
        values = compute_metrics(prompt.metrics, targets, predicted)
        metrics.update({name: round(value, 2) for name, value in values.items()})
    sys.stdout.write(json.dumps(metrics) + "\n")


def _targets(prompter: Prompter, examples: list[Example], path: Path) -> np.ndarray | None:
    """<float64>[examples], or None if the table has no labels."""
    targets = []
    for number, example in enumerate(examples, 1):
        if example.label is None:
            return None
        try:
            targets.append(prompter.prompt.target(example.label))
        except ValueError as error:
            raise ValueError(f"{path}, example {number}: {error}") from error
    return np.array(targets)


def _predictions_table(prompter: Prompter, scores: Tensor) -> str:
    """A header, then for each example its label, or number, and the labels' probabilities."""
    prompt = prompter.prompt
    lines = ["\t".join(["prediction", *(f"p({label})" for label in prompt.labels)])]
    for value, probabilities in zip(predictions(scores, prompt.bounds).tolist(), scores.softmax(dim=-1).tolist()):
        shown = prompt.labels[int(value)] if prompt.bounds is None else f"{value:.4f}"
        lines.append("\t".join([shown, *(f"{probability:.6f}" for probability in probabilities)]))
    return "\n".join(lines) + "\n"
