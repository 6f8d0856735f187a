"""Compare a checkpoint with a transformers folder, to verify exports and imports."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from fairseq_maelm.architecture.families import FAMILIES
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.files.optional_imports import import_transformers
from fairseq_maelm.interop.export.sentence_modules import open_modules
from fairseq_maelm.interop.export.target import Target
from fairseq_maelm.interop.export.tokenizer import check_strings, has_ties
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.tokenizer_test_strings import (
    HARD_STRINGS,
    MAY_DIFFER,
    ORDINARY_STRINGS,
    SPECIAL_STRING,
    WHY_SPECIAL,
    added_token_strings,
)
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.mask_filling import masked_token_logits
from fairseq_maelm.text.sentencepiece_model import read_model, user_defined_symbols
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS, MASK_SYMBOL

logger = logging.getLogger(__name__)

_MOST_SHOWN = 20  # of the texts that tokenizers read differently

LENGTHS = (2, 7, 512)  # of the compared sequences, cut to the model's positions
# The largest difference due to rounding in double precision, relative to the largest output if that is above 1. It is
# some 1e-13 even where a trained head amplifies it; in single precision it may exceed 1e-5.
TOLERANCE = 1e-10

PAD = FAIRSEQ_SYMBOLS.index("<pad>")
STATES = "hidden states"

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

# A function from tokens <int64>[B, S] to a dict, name -> output: <float>[B, S, ...] for all tokens, or <float>[n, D]
# for sequences or masks.
Computation = Callable[[Tensor], dict[str, Tensor]]


class Agreement(NamedTuple):
    """The largest absolute differences between an output and the expected one, and the largest expected value."""

    what: str
    difference: float  # in double precision
    size: float
    single: float = 0.0  # the difference in single precision, as users see it

    @property
    def holds(self) -> bool:
        """True if the difference is within rounding."""
        return self.difference <= TOLERANCE * max(1.0, self.size)

    def describe(self) -> str:
        """Return the output's name, its largest differences and its largest value."""
        return (
            f"{self.what}: largest difference {self.difference:.2e} ({self.single:.2e} in single precision), largest "
            f"value {self.size:.2e}"
        )


def comparison_batches(model: MaelmModel, masks: bool) -> list[Tensor]:
    """Return batches of random sequences with the lengths ``LENGTHS``: each alone <int64>[1, n], then all padded."""
    generator = np.random.default_rng(1)
    bos, eos = (FAIRSEQ_SYMBOLS.index(symbol) for symbol in ("<s>", "</s>"))
    symbols = np.arange(len(FAIRSEQ_SYMBOLS), model.encoder.embed_tokens.num_embeddings)
    symbols = symbols[symbols != model.mask_index]
    sequences = []
    for length in sorted({min(length, model.max_positions()) for length in LENGTHS}):
        sequence = generator.choice(symbols, length)
        sequence[0], sequence[-1] = bos, eos
        if masks:
            # The shortest sequence is <s> and a mask.
            sequence[1 + generator.permutation(length - 1)[: max(1, length // 6)]] = model.mask_index
        sequences.append(sequence)
    return [*(padded([sequence]) for sequence in sequences), padded(sequences)]


def padded(sequences: Sequence[np.ndarray]) -> Tensor:
    """Collate sequences <int64>[n] into a right-padded batch <int64>[B, S]."""
    return torch.from_numpy(pad_rows(list(sequences), np.array([len(sequence) for sequence in sequences]), PAD))


def inside(output: Tensor, tokens: Tensor) -> Tensor:
    """Remove padding from an output [B, S, ...], giving [n, ...]; return an output [n, D] unchanged."""
    return output if output.dim() == 2 else output[tokens != PAD]


def checkpoint_outputs(
    model: MaelmModel, view: EncoderView, architecture: str, head: str | None, tokens: Tensor
) -> dict[str, Tensor]:
    """Compute the hidden states of tokens <int64>[B, S], and the scores of the LM head or the fine-tuned ``head``."""
    outputs = {STATES: model.extract_features(tokens)[0]}
    if architecture == "masked-lm":
        outputs[scores_of(architecture)] = masked_token_logits(model, view, [row[row != PAD].numpy() for row in tokens])
    elif architecture != "encoder":
        outputs[scores_of(architecture)] = model(tokens, classification_head_name=head)[0]
    return outputs


def scores_of(architecture: str) -> str:
    """Return the key for the scores of an architecture, such as "masked-lm", in the dict from a ``Computation``."""
    return f"{architecture} scores"


@torch.no_grad()
def agreements(expected: Computation, found: Computation, batches: Sequence[Tensor], problem: str) -> list[Agreement]:
    """Return the largest difference in each output over all batches, ignoring padding.

    Outputs are compared in double precision, where rounding is far below any defect; the difference in single precision
    is only reported.
    """
    worst: dict[str, Agreement] = {}
    for tokens in batches:
        pairs = [(expected(tokens), found(tokens))]
        with DoublePrecision():
            pairs.append((expected(tokens), found(tokens)))
        for what in pairs[0][0]:
            single, double = (_difference(one[what], other[what], tokens) for one, other in pairs)
            last = worst.get(what, Agreement(what, 0.0, 0.0))
            size = max(last.size, float(inside(pairs[1][0][what], tokens).abs().max()))
            worst[what] = Agreement(what, max(last.difference, double), size, max(last.single, single))
    return refuse_differences(list(worst.values()), problem)


def _difference(expected: Tensor, found: Tensor, tokens: Tensor) -> float:
    one, other = inside(expected, tokens), inside(found, tokens)
    comparable = one.shape == other.shape and bool(torch.isfinite(other).all())
    return float((one - other).abs().max()) if comparable else float("inf")


def refuse_differences(compared: list[Agreement], problem: str) -> list[Agreement]:
    """Return the agreements if all hold; otherwise raise a ValueError that names the outputs that differ."""
    wrong = [
        f"{each.what} differ by {each.difference:.2g} (values up to {each.size:.2g})"
        for each in compared
        if not each.holds
    ]
    if wrong:
        raise ValueError(f"{problem}: {'; '.join(wrong)}")
    return compared


class Difference(NamedTuple):
    """A text for which two tokenizers give different tokens."""

    text: str
    expected: list[int]
    found: list[int]


def differences(
    expected: Callable[[str], list[int]], found: Callable[[str], list[int]], texts: Sequence[str], ties: bool = False
) -> list[Difference]:
    """Return the texts that two functions tokenize differently; token ids exclude <s> and </s>.

    ``ties`` allows the same tokens in another order: in unigram models, several segmentations of repeated characters
    ("rr r" and "r rr") may have the same best score.
    """
    read = [Difference(text, expected(text), found(text)) for text in texts]
    if ties:
        return [each for each in read if sorted(each.expected) != sorted(each.found)]
    return [each for each in read if each.expected != each.found]


def verify_model(source: LoadedCheckpoint, target: Target, folder: Path) -> list[Agreement]:
    """Compare a checkpoint with its exported folder, which is opened as the target's class and as a bare encoder."""
    model, view, architecture = source.model, source.checkpoint.view, target.scored
    order = torch.arange(len(source.dictionary)) if target.kept is None else target.kept.order
    encoder = whole = open_model(folder, target)
    if target.modules:
        with quiet(import_transformers()):
            whole = open_modules(folder)
    elif architecture != "encoder":
        encoder = open_model(folder, Target(target.format, "encoder"), strict=False)
    for each in (whole[0].auto_model if target.modules else whole, encoder):
        move_type_0_to_positions(each, model)
    return agreements(
        lambda tokens: checkpoint_outputs(model, view, architecture, target.head, tokens),
        lambda tokens: transformers_outputs(encoder, whole, architecture, tokens, order),
        comparison_batches(model, masks=architecture == "masked-lm"),
        "the exported model and the checkpoint compute different values",
    )


@torch.no_grad()
def transformers_outputs(
    encoder: Any, whole: Any, architecture: str, tokens: Tensor, order: Tensor
) -> dict[str, Tensor]:
    """Compute the outputs of ``checkpoint_outputs`` with transformers: states of ``encoder`` and scores of ``whole``.

    ``order`` <int64>[V] maps our token ids to the folder's; ``tokens`` <int64>[B, S] and scores use our ids.
    """
    inputs, masked = {"input_ids": order[tokens], "attention_mask": tokens.ne(PAD).long()}, tokens == len(order) - 1
    states = encoder(**inputs).last_hidden_state
    if architecture == "encoder":
        return {STATES: states}
    if architecture == "masked-lm" and type(whole).__name__ in _LM_HEADS:
        scores = _LM_HEADS[type(whole).__name__](whole, states[masked])[:, order]
        return {STATES: states, scores_of(architecture): scores}
    if isinstance(whole, nn.Sequential):  # sentence-transformers
        return {STATES: states, scores_of(architecture): whole(inputs)["sentence_embedding"]}
    output = whole(**inputs)
    if architecture == "question-answering":
        scores = torch.stack([output.start_logits, output.end_logits], dim=-1)
    else:
        scores = output.logits[masked][:, order] if architecture == "masked-lm" else output.logits
    return {STATES: states, scores_of(architecture): scores}


def open_model(folder: Path, target: Target, strict: bool = True) -> Any:
    """Open a folder with this package's classes instead of code in the folder, and check the model's class.

    ``strict`` also refuses missing and unexpected weights.
    """
    from fairseq_maelm.hf import open_pretrained  # imports transformers

    with quiet(import_transformers()):
        model, report = open_pretrained(target.auto_class, folder, output_loading_info=True)
    if type(model).__name__ != target.class_name:
        raise ValueError(f"transformers opens {folder} as {type(model).__name__} and not as {target.class_name}")
    unused: set[str] = set()
    if target.kept is not None:
        unused = {*(FAMILIES[target.format].prefix + name for name in target.kept.weights), *target.kept.heads}
    found = {kind: sorted(set(map(str, names)) - unused) for kind, names in report.items() if kind.endswith("keys")}
    wrong = {kind: names for kind, names in found.items() if names}
    if strict and wrong:
        raise ValueError(f"the weights in {folder} do not match transformers' {target.class_name}: {wrong}")
    return model.eval().float()


@torch.no_grad()
def move_type_0_to_positions(theirs: Any, ours: MaelmModel | None = None) -> None:
    """Add the embedding of token type 0 to the position table of a transformers model, and subtract it from the types.

    Our table is such a sum, rounded to single precision. An export rounds a difference, which does not always give the
    same sum again: sums that differ by no more than these two roundings from those of ``ours`` become equal to them.
    """
    embeddings: Any = getattr(theirs.base_model, "embeddings", None)
    if not hasattr(embeddings, "token_type_embeddings"):
        return
    types, positions = embeddings.token_type_embeddings.weight, embeddings.position_embeddings.weight
    type_0 = types[0].clone()
    positions += type_0
    types -= type_0
    if ours is not None:
        table = ours.encoder.embed_positions.weight
        rows = positions[-len(table) :]
        rounding = torch.finfo(torch.float32).eps * (table.abs() + type_0.abs())
        rows.copy_(torch.where((rows - table).abs() <= rounding, table, rows))


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence transformers, which warns about unused weights when a model with a head is opened as an encoder."""
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


def compare_tokens(
    place: object,
    theirs: Callable[[str], list[int]],
    ours: Callable[[str], list[int]],
    order: Sequence[int],
    added: Sequence[str],
    own: Sequence[str],
) -> None:
    """Compare two tokenizers: raise ValueError if ordinary text differs, and log a warning if hard texts differ.

    For some hard texts, a tokenizer.json converted from a sentencepiece model gives other tokens than that model.
    ``order`` maps our ids to the source's. Texts with ``added`` tokens of the source count as ordinary text; those of
    its other tokens, ``own``, as hard ones. ``place`` is the folder, for messages.
    """

    def in_their_ids(text: str) -> list[int]:
        return [order[token] for token in ours(text)]

    if wrong := differences(theirs, in_their_ids, [*ORDINARY_STRINGS, *added_token_strings(added)]):
        text, expected, found = wrong[0]
        raise ValueError(f"the tokenizer in {place} gives {expected} for {text!r}, and the checkpoint's gives {found}")
    hard = [text for text in (*HARD_STRINGS, *own) if MASK_SYMBOL not in text]
    other = differences(theirs, in_their_ids, hard)
    logger.info(
        "%d of %d hard texts get the same tokens as from the source's tokenizer", len(hard) - len(other), len(hard)
    )
    for each in other[:_MOST_SHOWN]:
        logger.warning("%s gets different tokens from the source's tokenizer than from ours", ascii(each.text))


def verify_tokenizer(source: LoadedCheckpoint, folder: Path, words: bool = False) -> dict[str, str]:
    """Compare the folder's tokenizer, opened by transformers, with the checkpoint's; raise ValueError if they differ.

    With ``words``, single words are compared, each as if it followed a space. The texts that may differ and do are
    returned, text -> reason.
    """
    from fairseq_maelm.hf import open_pretrained

    ours, tokenizer = source.tokenizer, open_pretrained("AutoTokenizer", folder)

    def expected(text: str) -> list[int]:
        return ours.encode(ours.encoder.word_prefix + text if words and text[:1] not in ("", " ") else text)

    def found(text: str) -> list[int]:
        # verbose=False: a warning about texts that are longer than the model's positions is not needed.
        text = text.replace(MASK_SYMBOL, tokenizer.mask_token)
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def comparable(text: str) -> bool:
        return not (tokenizer.split_special_tokens and MASK_SYMBOL in text)

    special = tokenizer.all_special_tokens
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.content not in special]
    if source.tokenizer_file.suffix != ".json":
        added += user_defined_symbols(read_model(source.tokenizer_file))
    texts = list(filter(comparable, [*check_strings(source.dictionary, special), *added_token_strings(added)]))
    if words:
        # An added token cannot be told to follow a space.
        texts = [word for text in texts for word in text.split() if not any(token in word for token in added)]
    wrong = differences(expected, found, texts, has_ties(source.tokenizer_file))
    if wrong:
        raise ValueError(
            f"the exported tokenizer reads {len(wrong)} texts differently from {source.tokenizer_file.name} and "
            f"dict.txt, for example {ascii(wrong[0].text)}: {wrong[0].found} instead of {wrong[0].expected}"
        )
    bos, eos = source.dictionary.bos(), source.dictionary.eos()
    one, two = HARD_STRINGS[7], HARD_STRINGS[9]
    single, pair = [bos, *expected(one), eos], [bos, *expected(one), eos, eos, *expected(two), eos]
    if [tokenizer(*texts, verbose=False)["input_ids"] for texts in ((one,), (one, two))] != [single, pair]:
        raise ValueError("the exported tokenizer and fairseq put different special tokens around texts")
    names = tokenizer.convert_ids_to_tokens(range(len(FAIRSEQ_SYMBOLS)))
    texts = list(filter(comparable, [SPECIAL_STRING.format(*names), *MAY_DIFFER]))
    return {each.text: MAY_DIFFER.get(each.text, WHY_SPECIAL) for each in differences(expected, found, texts)}


_LOOKUPS = (F.embedding, torch.embedding)
_OF_ANGLES = (torch.cos, torch.sin, Tensor.cos, Tensor.sin)


class DoublePrecision(TorchFunctionMode):
    """Within this context, every function of a weight computes in double precision, also in code that asks for less.

    Weights <float32> are converted where they are used: no model is copied or changed. Numbers that depend on no
    weight, such as rotary frequencies and distances before they are put into buckets, stay as they are, because they
    are part of the model's definition.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function with converted arguments."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":  # a property
            return func(*args, **kwargs)
        if func in _LOOKUPS:
            # Converting the rows that were looked up is faster than converting the table.
            return func(*args, **kwargs).double()
        if func in _OF_ANGLES or any(map(_is_precise, tree_leaves((args, kwargs)))):
            args, kwargs = tree_map(_converted, (args, kwargs))
            func = Tensor.double if func is Tensor.float else func
        return func(*args, **kwargs)


def _is_precise(value: Any) -> bool:
    return isinstance(value, Tensor) and (
        value.dtype == torch.float64 or (isinstance(value, Parameter) and value.dtype == torch.float32)
    )


def _converted(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
