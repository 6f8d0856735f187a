"""Running both sides: what fairseq computes and what transformers computes from an exported folder."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.interop.export.configuration import Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.export.tokenizer import (
    HARD_STRINGS,
    MASK,
    check_strings,
    differences,
    has_ties,
    known_differences,
)
from fairseq_maelm.libraries import import_transformers
from fairseq_maelm.models.masked_tokens import masked_token_logits
from fairseq_maelm.text.dictionary import real_tokens

logger = logging.getLogger(__name__)

# Tokens of the sequences that are compared, cut to the model's positions: alone, and padded in one batch.
LENGTHS = (2, 7, 512)
# The largest difference that rounding explains, where outputs are of size 1 or less; larger ones may differ more.
TOLERANCE = 1e-5

_Outputs = Callable[[list[np.ndarray]], list[Tensor]]


class Agreement(NamedTuple):
    """How far two computations of one thing differ.

    Attributes:
        what: was compared.
        difference: largest absolute one.
        size: largest absolute value that fairseq computed.
    """

    what: str
    difference: float
    size: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains the difference."""
        return self.difference <= TOLERANCE * max(1.0, self.size)


def verify_model(source: Source, content: Content, folder: Path) -> list[Agreement]:
    """Compare what a folder computes, and its encoder by itself, with the checkpoint.

    Raises:
        ValueError: if transformers opens the folder as something else, misses weights, or computes other numbers.
    """
    compared = [content] if content.architecture == "encoder" else [content, Content(content.form, "encoder")]
    agreements = []
    for each in compared:
        model = open_model(folder, each, strict=each is content)
        expected, found = _reference(source, each), _exported(model, source, each)
        what = "hidden states" if each.architecture == "encoder" else f"{each.architecture} scores"
        agreements.append(compare(what, expected, found, verification_batches(source, each)))
    wrong = [each for each in agreements if not each.holds]
    if wrong:
        raise ValueError(
            "the exported model computes something else than the checkpoint: "
            + "; ".join(f"{each.what} differ by {each.difference:.2g} (of {each.size:.2g})" for each in wrong)
        )
    return agreements


def compare(what: str, expected: _Outputs, found: _Outputs, batches: Sequence[list[np.ndarray]]) -> Agreement:
    """Run both on every batch and find the largest difference."""
    difference = size = 0.0
    with torch.no_grad():
        for batch in batches:
            for one, other in zip(expected(batch), found(batch), strict=True):
                if one.shape != other.shape or not torch.isfinite(other).all():
                    return Agreement(what, float("inf"), size)
                difference = max(difference, float((one - other).abs().max()))
                size = max(size, float(one.abs().max()))
    return Agreement(what, difference, size)


def verification_batches(source: Source, content: Content) -> list[list[np.ndarray]]:
    """Sequences <int64>[n] of ``LENGTHS``, each as a batch and all as one; the same for every call.

    Where masks are to be filled, each holds another number of them.
    """
    generator = np.random.default_rng(1)
    lengths = sorted({min(length, source.model.max_positions()) for length in LENGTHS})
    symbols, dictionary = real_tokens(source.dictionary), source.dictionary
    sequences = []
    for length in lengths:
        sequence = generator.choice(symbols, length)
        sequence[0], sequence[-1] = dictionary.bos(), dictionary.eos()
        if content.architecture == "masked-lm":
            # In the shortest one, <s> alone is not masked.
            masked = 1 + generator.permutation(length - 1)[: max(1, length // 6)]
            sequence[masked] = source.model.mask_index
        sequences.append(sequence)
    return [*([sequence] for sequence in sequences), sequences]


def _reference(source: Source, content: Content) -> _Outputs:
    model = source.model

    def compute(sequences: list[np.ndarray]) -> list[Tensor]:
        if content.architecture == "masked-lm":
            return [masked_token_logits(model, source.view, sequences)]
        tokens = torch.from_numpy(_pad(sequences, source.dictionary.pad()))
        if content.head is None:
            return _cut(model.extract_features(tokens)[0], sequences)
        scores, _ = model(tokens, classification_head_name=content.head)
        return [scores] if scores.dim() == 2 else _cut(scores, sequences)

    return compute


def _exported(model: Any, source: Source, content: Content) -> _Outputs:
    pad, mask = source.dictionary.pad(), source.model.mask_index

    def compute(sequences: list[np.ndarray]) -> list[Tensor]:
        tokens = torch.from_numpy(_pad(sequences, pad))
        output = model(input_ids=tokens, attention_mask=tokens.ne(pad).long())
        if content.architecture == "encoder":
            return _cut(output.last_hidden_state, sequences)
        if content.architecture == "question-answering":
            return _cut(torch.stack([output.start_logits, output.end_logits], dim=-1), sequences)
        if content.architecture == "masked-lm":
            return [output.logits[tokens == mask]]
        return [output.logits] if output.logits.dim() == 2 else _cut(output.logits, sequences)

    return compute


def _pad(sequences: list[np.ndarray], pad: int) -> np.ndarray:
    return pad_rows(sequences, np.array([len(sequence) for sequence in sequences]), pad)


def _cut(states: Tensor, sequences: list[np.ndarray]) -> list[Tensor]:
    """What belongs to tokens: padding means nothing."""
    return [row[: len(sequence)] for row, sequence in zip(states, sequences)]


def open_model(folder: Path, content: Content, strict: bool = True) -> Any:
    """Open a folder as a user does, with the classes of this installation instead of the folder's copies.

    Args:
        folder: exported.
        content: as what to open it.
        strict: whether every weight must be there, and no other.

    Raises:
        ValueError: if it opens as another class, or weights are missing or superfluous.
    """
    from fairseq_maelm.hf import open_pretrained  # brings transformers along

    with _quiet(import_transformers()):
        model, report = open_pretrained(content.auto_class, folder, output_loading_info=True)
    if type(model).__name__ != content.class_name:
        raise ValueError(f"transformers opens {folder} as {type(model).__name__} and not as {content.class_name}")
    wrong = {kind: sorted(map(str, names)) for kind, names in report.items() if kind.endswith("keys") and names}
    if strict and wrong:
        raise ValueError(f"transformers finds other weights in {folder} than {content.class_name} has: {wrong}")
    return model.eval().float()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' own account of the weights: an encoder in a model with a head leaves some aside."""
    logging_of = transformers.utils.logging
    verbosity, progress = logging_of.get_verbosity(), logging_of.is_progress_bar_enabled()
    logging_of.set_verbosity_error()
    logging_of.disable_progress_bar()
    try:
        yield
    finally:
        logging_of.set_verbosity(verbosity)
        if progress:
            logging_of.enable_progress_bar()


def verify_tokenizer(source: Source, folder: Path) -> dict[str, str]:
    """Compare the folder's tokenizer, as transformers opens it, with fairseq's.

    Returns:
        the listed texts that are known to come out differently and do, with the reason.

    Raises:
        ValueError: if any other text does, or sequences are put together in another way.
    """
    from fairseq_maelm.hf import open_pretrained

    tokenizer = open_pretrained("AutoTokenizer", folder)
    expected = source.tokenizer.encode

    def found(text: str) -> list[int]:
        # An imported tokenizer may spell the mask in another way. A word may be longer than the model's positions.
        text = text.replace(MASK, tokenizer.mask_token)
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    texts = check_strings(source.dictionary, tokenizer.all_special_tokens)
    wrong = differences(expected, found, texts, has_ties(source.tokenizer_file))
    if wrong:
        raise ValueError(
            f"the exported tokenizer reads {len(wrong)} texts differently from {source.tokenizer_file.name} and "
            f"dict.txt, for example {ascii(wrong[0].text)}: {wrong[0].found} and not {wrong[0].expected}"
        )
    bos, eos = source.dictionary.bos(), source.dictionary.eos()
    one, two = HARD_STRINGS[7], HARD_STRINGS[9]
    single, pair = [bos, *expected(one), eos], [bos, *expected(one), eos, eos, *expected(two), eos]
    if tokenizer(one)["input_ids"] != single or tokenizer(one, two)["input_ids"] != pair:
        raise ValueError("the exported tokenizer puts other special tokens around texts than fairseq does")
    return known_differences(expected, found)
