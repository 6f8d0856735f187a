"""The source's model and tokenizer against what was written, read back from the disk as users read it."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.interop.agreement import Agreement, agreements, comparison_batches, differences, inside, padded
from fairseq_maelm.interop.hard_strings import HARD_STRINGS, ORDINARY_STRINGS
from fairseq_maelm.interop.importing.source import Source, refuse
from fairseq_maelm.models.hub import load_model
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.masked_tokens import masked_token_logits
from fairseq_maelm.text.tokenizer import open_tokenizer

logger = logging.getLogger(__name__)

# Scores of a large vocabulary at every token of a long sequence would take gigabytes.
_SCORED_TOKENS = 64
_STATES, _LOGITS, _SCORES = "hidden states", "masked-lm scores", "scores of the head"


def verify(path: Path, source: Source, checkpoint: Path, dictionary: Any) -> list[Agreement]:
    """Compare a source with the checkpoint and the tokenizer that were made of it.

    Raises:
        ValueError: if more than rounding differs, or ordinary text has other tokens.
    """
    _, _, model = load_model(str(checkpoint), str(checkpoint.parent.resolve()))
    model.eval()
    problem = str(refuse(path, "the checkpoint computes something else"))
    found = agreements(
        lambda sequences: _theirs(source, model, sequences),
        lambda sequences: _ours(source, model, sequences),
        comparison_batches(model, masks=model.lm_head is not None),
        problem,
    )
    if source.vocabulary.tokenize is not None and source.vocabulary.files:
        _compare_tokens(path, source, checkpoint.parent / next(iter(source.vocabulary.files)), dictionary)
    return found


def _theirs(source: Source, model: MaelmModel, sequences: list[np.ndarray]) -> dict[str, Tensor]:
    """What the source's model computes, in our order of the vocabulary."""
    reference, order = source.reference, torch.tensor(source.vocabulary.order)
    tokens = padded(sequences)
    states = inside(reference.encode(order[tokens]), tokens)
    outputs = {_STATES: states}
    if reference.predict is not None and model.lm_head is not None:
        outputs[_LOGITS] = reference.predict(_some(states))[:, order]
    if reference.fill is not None:
        outputs[_LOGITS] = reference.fill(order[tokens])[:, order]
    if reference.score is not None:
        outputs[_SCORES] = inside(reference.score(order[tokens]), tokens)
    return outputs


def _ours(source: Source, model: MaelmModel, sequences: list[np.ndarray]) -> dict[str, Tensor]:
    reference, tokens = source.reference, padded(sequences)
    states = inside(model.extract_features(tokens)[0], tokens)
    outputs = {_STATES: states}
    if reference.predict is not None and model.lm_head is not None:
        # Each head on its own encoder's states: the whole path is compared.
        outputs[_LOGITS] = model.lm_head(_some(states), model.encoder.embed_tokens.weight)
    if reference.fill is not None:
        options = source.task_options
        view = EncoderView(masked_input=options["masked_input"], positions=options["encoder_positions"])
        outputs[_LOGITS] = masked_token_logits(model, view, sequences)
    if reference.score is not None:
        (head,) = model.classification_heads
        outputs[_SCORES] = inside(model(tokens, classification_head_name=head)[0], tokens)
    return outputs


def _some(states: Tensor) -> Tensor:
    return states[torch.linspace(0, len(states) - 1, min(_SCORED_TOKENS, len(states))).long()]


def _compare_tokens(path: Path, source: Source, file: Path, dictionary: Any) -> None:
    """Refuse other tokens of ordinary text, and say how many hard texts have others.

    The library tokenizers reads some of these otherwise than sentencepiece, whose model it stands for.
    """
    encode, order = open_tokenizer(str(file), dictionary).encode, source.vocabulary.order
    tokenize = source.vocabulary.tokenize
    assert tokenize is not None

    def ours(text: str) -> list[int]:
        return [order[token] for token in encode(text)]

    wrong = differences(tokenize, ours, ORDINARY_STRINGS)
    if wrong:
        text, expected, found = wrong[0]
        raise refuse(path, f"its tokenizer makes {expected} of {text!r} and the imported one {found}")
    hard = [text for text in HARD_STRINGS if "<mask>" not in text]
    other = differences(tokenize, ours, hard)
    logger.info("%d of %d hard texts have the tokens of the source", len(hard) - len(other), len(hard))
    for each in other:
        logger.warning("%s is read in another way than by the source's tokenizer", ascii(each.text))
