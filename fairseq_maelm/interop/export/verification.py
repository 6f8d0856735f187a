"""An exported folder against its checkpoint, as transformers opens it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.interop.agreement import PAD, Agreement, agreements, comparison_batches, differences, inside, padded
from fairseq_maelm.interop.export.configuration import Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.export.tokenizer import check_strings, has_ties
from fairseq_maelm.interop.hard_strings import HARD_STRINGS, MAY_DIFFER
from fairseq_maelm.libraries import import_transformers
from fairseq_maelm.models.masked_tokens import masked_token_logits
from fairseq_maelm.text.vocabulary import MASK_SYMBOL


def verify_model(source: Source, content: Content, folder: Path) -> list[Agreement]:
    """Compare what a folder computes, and its encoder by itself, with the checkpoint.

    Raises:
        ValueError: if transformers opens the folder as something else, misses weights, or computes other numbers.
    """
    compared = [content] if content.architecture == "encoder" else [content, Content(content.form, "encoder")]
    return [
        agreement
        for each in compared
        for agreement in _compare(source, each, open_model(folder, each, strict=each is content))
    ]


def _compare(source: Source, content: Content, model: Any) -> list[Agreement]:
    return agreements(
        lambda sequences: {content.what: checkpoint_output(source, content, sequences)},
        lambda sequences: {content.what: _exported(model, source, content, sequences)},
        comparison_batches(source.model, masks=content.architecture == "masked-lm"),
        "the exported model computes something else than the checkpoint",
    )


def checkpoint_output(source: Source, content: Content, sequences: list[np.ndarray]) -> Tensor:
    """What the checkpoint computes: logits of masks <float>[M, V], states <float>[n, D], or the scores of a head."""
    if content.architecture == "masked-lm":
        return masked_token_logits(source.model, source.view, sequences)
    tokens = padded(sequences)
    if content.head is None:
        return inside(source.model.extract_features(tokens)[0], tokens)
    return inside(source.model(tokens, classification_head_name=content.head)[0], tokens)


def _exported(model: Any, source: Source, content: Content, sequences: list[np.ndarray]) -> Tensor:
    tokens = padded(sequences)
    output = model(input_ids=tokens, attention_mask=tokens.ne(PAD).long())
    if content.architecture == "encoder":
        return inside(output.last_hidden_state, tokens)
    if content.architecture == "question-answering":
        return inside(torch.stack([output.start_logits, output.end_logits], dim=-1), tokens)
    if content.architecture == "masked-lm":
        return output.logits[tokens == source.model.mask_index]
    return inside(output.logits, tokens)


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
        text = text.replace(MASK_SYMBOL, tokenizer.mask_token)
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
    return {text: reason for text, reason in MAY_DIFFER.items() if differences(expected, found, [text])}
