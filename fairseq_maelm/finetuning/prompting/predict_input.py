"""Classification by prompts for ``maelm predict``."""

import argparse
import logging

from torch import Tensor

from fairseq_maelm.corpus.tables import ColumnsWithId, read_table
from fairseq_maelm.finetuning.predicted import Measure, Predicted, hub_of, predict_rows
from fairseq_maelm.finetuning.prompting.inference import find_prompter, score
from fairseq_maelm.finetuning.prompting.prompts import find_prompt
from fairseq_maelm.finetuning.prompting.scoring import predictions
from fairseq_maelm.finetuning.prompting.template import render, spell
from fairseq_maelm.options import UsageError, settings_of

logger = logging.getLogger(__name__)


def predict_input(args: argparse.Namespace) -> Predicted:
    """Predict a label and its probability, or a value, for each row of a table of sentences."""
    if args.input.is_dir():
        raise UsageError(f"{args.input} is a folder: a prompt needs a table of texts")
    try:
        prompt = None if args.prompt is None else find_prompt(args.prompt)
    except ValueError as error:
        raise UsageError(f"--prompt: {error}") from error
    hub = hub_of(args)
    prompter = find_prompter(hub, prompt, several_pieces=args.several_pieces)
    prompt = prompter.prompt
    examples = list(read_table(args.input, settings_of(ColumnsWithId, args), prompt.sentences, complete=bool))
    if prompt.sentences > 1 and all(each.texts[-1] in prompt.label_words for each in examples):
        raise ValueError(
            f"{args.input} has labels where the prompt {prompt.name} needs a second sentence: give a table of pairs, "
            "or name its columns"
        )
    logger.info("the first example: %s", spell(render(prompt.parts, examples[0].texts)))

    def run(texts: list[tuple[str, ...]]) -> Tensor:
        scores = score(hub, prompter, texts, args.batch_size, progress="prompts")
        return scores if prompt.bounds is None else predictions(scores, prompt.bounds)

    measure = Measure(prompt.metrics, 1, prompt.target)
    return predict_rows(examples, run, prompt.labels if prompt.bounds is None else None, measure)
