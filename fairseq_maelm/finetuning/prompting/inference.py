"""Prompt-based classification with a checkpoint opened through the hub interface."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.finetuning.predicted import Predicted, predict_rows
from fairseq_maelm.finetuning.prompting.prompts import Prompt, Prompter, find_prompt
from fairseq_maelm.finetuning.prompting.task import LEFT_TO_RIGHT, label_scores, prompt_input
from fairseq_maelm.finetuning.prompting.template import render, spell
from fairseq_maelm.finetuning.tables import ColumnsWithId, read_table, refuse_header, table_rows
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.options import UsageError, settings_of
from fairseq_maelm.text.cleaning import checked_examples
from fairseq_maelm.text.tokenizer import ImportedTokenizer

logger = logging.getLogger(__name__)


def classify_by_prompt(
    hub: MaelmHubInterface,
    texts: Sequence[str | Sequence[str]],
    prompt: str | Prompt | None = None,
    label_words: Mapping[str, str] | None = None,
    several_pieces: bool = False,
    batch_size: int = 32,
) -> list[dict[str, float]]:
    """Classify texts by the label words that the decoder predicts at a template's mask.

    Args:
        hub: a checkpoint with decoder and prediction head.
        texts: sentences, or tuples of sentences for templates with several sentences.
        prompt: name of a GLUE task, a .yaml or .json file, or, with ``label_words``, a template; by default the
            prompt with which the checkpoint was fine-tuned.
        label_words: label -> word.
        several_pieces: allow label words of several pieces; a word's score is the mean log-probability of its pieces.
        batch_size: number of examples in a batch.

    Returns:
        a dict for each text, label -> probability among the labels. For regression the labels are the two bounds.

    Raises:
        ValueError: the prompt is missing or wrong, or the checkpoint cannot fill masks.
    """
    prompter = find_prompter(hub, prompt, label_words, several_pieces)
    probabilities = score(hub, prompter, checked_examples(texts), batch_size).softmax(dim=-1).tolist()
    return [dict(zip(prompter.prompt.labels, row)) for row in probabilities]


def find_prompter(
    hub: Any,
    prompt: str | Prompt | None = None,
    label_words: Mapping[str, str] | None = None,
    several_pieces: bool = False,
) -> Prompter:
    """Return the prompter for a checkpoint; arguments and errors are those of ``classify_by_prompt``."""
    if prompt is None:
        own: Prompter | None = getattr(hub.task, "prompter", None)
        if own is None:
            raise ValueError("the checkpoint was not fine-tuned with a prompt: give a prompt")
        if several_pieces:
            raise ValueError(
                "several pieces (--several-pieces) are for a prompt that is given, but the checkpoint has its own "
                "with the words of its training: omit the option, or give a prompt"
            )
        return own
    if isinstance(hub.tokenizer, ImportedTokenizer):
        raise ValueError(
            "prompts need a vocabulary of sentencepiece, but the checkpoint has an imported tokenizer.json"
        )
    if isinstance(prompt, str):
        prompt = find_prompt(prompt) if label_words is None else Prompt("prompt", prompt, dict(label_words))
    return Prompter(prompt, hub.tokenizer, several_pieces, min(prompt.max_length, hub.model.max_positions()))


def score(
    hub: Any,
    prompter: Prompter,
    examples: Sequence[Sequence[str]],
    batch_size: int = 32,
    progress: str | None = None,
) -> Tensor:
    """Return ``label_scores`` <float32>[examples, labels] on the CPU; ``progress`` is the title of a progress bar."""
    if hub.model.decoder is not None and hub.model.decoder.autoregressive:
        raise ValueError(LEFT_TO_RIGHT)
    view: EncoderView = getattr(hub.task, "encoder_view", EncoderView())
    symbols = Symbols(hub.dictionary.pad(), hub.model.mask_index)
    sequences = [prompter.encode(example) for example in examples]
    rows = predict(
        hub.model,
        [max(map(len, each)) for each in sequences],
        lambda places: prompt_input([sequences[place] for place in places], symbols, view),
        lambda batch: label_scores(hub.model(**batch)[0], prompter.pieces).cpu(),
        batch_size=batch_size,
        progress=progress,
    )
    return torch.stack(rows) if rows else torch.empty(0, len(prompter.pieces))


def predict_input(hub: MaelmHubInterface, args: argparse.Namespace) -> Predicted:
    """Predict a label and its probability, or a value, for each row in a sentence table."""
    if args.input.is_dir():
        raise UsageError(f"{args.input} is a folder: a prompt needs a table of texts")
    try:
        prompt = None if args.prompt is None else find_prompt(args.prompt)
    except ValueError as error:
        raise UsageError(f"--prompt: {error}") from error
    prompter = find_prompter(hub, prompt, several_pieces=args.several_pieces)
    prompt = prompter.prompt
    columns = settings_of(ColumnsWithId, args)
    rows = list(table_rows(args.input, columns.delimiter))
    if rows and columns.text is None:
        refuse_header(*rows[0])
    examples = list(read_table(args.input, columns, prompt.sentences, complete=bool, rows=rows))
    if prompt.sentences > 1 and all(each.texts[-1] in prompt.label_words for each in examples):
        raise ValueError(
            f"{args.input} has labels in the column where the prompt {prompt.name} needs a second sentence: give a "
            "table of pairs, or name the columns with --text and --text-pair"
        )
    logger.info("the first example: %s", spell(render(prompt.parts, examples[0].texts)))

    def run(texts: list[tuple[str, ...]]) -> Tensor:
        return score(hub, prompter, texts, args.batch_size, progress="prompts")

    return predict_rows(examples, run, prompt.answers)
