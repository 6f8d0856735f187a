"""Comparison of an exported folder, as transformers opens it, with its checkpoint."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.files.optional_imports import import_transformers
from fairseq_maelm.interop.agreement import (
    PAD,
    STATES,
    Agreement,
    agreements,
    checkpoint_outputs,
    comparison_batches,
    differences,
    scores_of,
)
from fairseq_maelm.interop.export.target import Content
from fairseq_maelm.interop.export.tokenizer import check_strings, has_ties
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS, MAY_DIFFER
from fairseq_maelm.text.vocabulary import MASK_SYMBOL

# Classes whose LM head can be computed for some tokens alone: scores at all tokens of a long sequence would take
# gigabytes with a large vocabulary.
_LM_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    **dict.fromkeys(
        ("RobertaForMaskedLM", "XLMRobertaForMaskedLM", "CamembertForMaskedLM", "MPNetForMaskedLM"),
        lambda model, states: model.lm_head(states),
    ),
    "BertForMaskedLM": lambda model, states: model.cls(states),
    "ModernBertForMaskedLM": lambda model, states: model.decoder(model.head(states)),
}


def verify_model(source: LoadedCheckpoint, content: Content, folder: Path) -> list[Agreement]:
    """Compare the outputs of a folder, opened as its class and as an encoder, with those of the checkpoint."""
    model, view, architecture = source.model, source.checkpoint.view, content.architecture
    whole = open_model(folder, content)
    encoder = whole
    if architecture != "encoder":
        encoder = open_model(folder, Content(content.format, "encoder"), strict=False)
    return agreements(
        lambda tokens: checkpoint_outputs(model, view, architecture, content.head, tokens),
        lambda tokens: transformers_outputs(encoder, whole, architecture, tokens, tokens.ne(PAD), model.mask_index),
        comparison_batches(model, masks=architecture == "masked-lm"),
        "the exported model computes something else than the checkpoint",
    )


@torch.no_grad()
def transformers_outputs(
    encoder: Any, whole: Any, architecture: str, tokens: Tensor, attended: Tensor, mask: int
) -> dict[str, Tensor]:
    """Compute the outputs of ``checkpoint_outputs`` with models of transformers, without and with the head.

    ``tokens`` <int64>[B, S] and ``mask`` are in the model's numbers; ``attended`` <bool>[B, S] is False at padding.
    """
    inputs = {"input_ids": tokens, "attention_mask": attended.long()}
    states = encoder(**inputs).last_hidden_state
    if architecture == "encoder":
        return {STATES: states}
    if architecture == "masked-lm" and type(whole).__name__ in _LM_HEADS:
        scores = _LM_HEADS[type(whole).__name__](whole, states[tokens == mask])
        return {STATES: states, scores_of(architecture): scores}
    output = whole(**inputs)
    if architecture == "question-answering":
        scores = torch.stack([output.start_logits, output.end_logits], dim=-1)
    else:
        scores = output.logits[tokens == mask] if architecture == "masked-lm" else output.logits
    return {STATES: states, scores_of(architecture): scores}


def open_model(folder: Path, content: Content, strict: bool = True) -> Any:
    """Open a folder with the classes of this package instead of the folder's copies, and check its class.

    ``strict`` also refuses missing and superfluous weights.
    """
    from fairseq_maelm.hf import open_pretrained  # imports transformers

    with _quiet(import_transformers()):
        model, report = open_pretrained(content.auto_class, folder, output_loading_info=True)
    if type(model).__name__ != content.class_name:
        raise ValueError(f"transformers opens {folder} as {type(model).__name__} and not as {content.class_name}")
    wrong = {kind: sorted(map(str, names)) for kind, names in report.items() if kind.endswith("keys") and names}
    if strict and wrong:
        raise ValueError(f"the weights in {folder} do not match transformers' {content.class_name}: {wrong}")
    return model.eval().float()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence transformers, which warns of unused weights when it opens a model with a head as an encoder."""
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


def verify_tokenizer(source: LoadedCheckpoint, folder: Path) -> dict[str, str]:
    """Compare the folder's tokenizer, as transformers opens it, with fairseq's, and raise ValueError if they differ.

    Returns:
        the texts of ``MAY_DIFFER`` that do differ, with the reason.
    """
    from fairseq_maelm.hf import open_pretrained

    tokenizer = open_pretrained("AutoTokenizer", folder)
    expected = source.tokenizer.encode

    def found(text: str) -> list[int]:
        # verbose=False: a warning about texts that are longer than the model's positions is not needed.
        text = text.replace(MASK_SYMBOL, tokenizer.mask_token)
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    texts = check_strings(source.dictionary, tokenizer.all_special_tokens)
    wrong = differences(expected, found, texts, has_ties(source.tokenizer_file))
    if wrong:
        raise ValueError(
            f"the exported tokenizer reads {len(wrong)} texts differently from {source.tokenizer_file.name} and "
            f"dict.txt, for example {ascii(wrong[0].text)}: {wrong[0].found} instead of {wrong[0].expected}"
        )
    bos, eos = source.dictionary.bos(), source.dictionary.eos()
    one, two = HARD_STRINGS[7], HARD_STRINGS[9]
    single, pair = [bos, *expected(one), eos], [bos, *expected(one), eos, eos, *expected(two), eos]
    if tokenizer(one)["input_ids"] != single or tokenizer(one, two)["input_ids"] != pair:
        raise ValueError("the exported tokenizer puts other special tokens around texts than fairseq does")
    return {text: reason for text, reason in MAY_DIFFER.items() if differences(expected, found, [text])}
