"""Import checkpoints of fairseq's `--arch roberta`: RoBERTa, XLM-R, CamemBERT and others."""

import logging
import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel, base_architecture
from torch import Tensor

from fairseq_maelm.architecture.families import FAIRSEQ_ROBERTA, take_weights
from fairseq_maelm.checkpoints.plain_data import check_weights, declared_options, plain_sections, read_state, shown
from fairseq_maelm.checkpoints.reader import check_depth, check_sizes
from fairseq_maelm.fairseq_fixes.loading import OF_FAIRSEQ
from fairseq_maelm.files.atomic import read_json, sha256_of
from fairseq_maelm.interop.compare_outputs import STATES, scores_of
from fairseq_maelm.interop.importing.source import Source, SourceVocabulary, refuse, without_prefix
from fairseq_maelm.interop.importing.symbols import (
    CUTS,
    adjacent_tokenizer,
    kind_of_symbols,
    symbol_tokenizer,
    with_special_tokens,
)
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, FAIRSEQ_SYMBOLS, MASK_SYMBOL, MODEL_FILE, TOKENIZER_FILE

logger = logging.getLogger(__name__)

# GPT-2's byte pairs, which fairseq's hub adds to its RoBERTa; their numbers are the symbols of dict.txt.
GPT2_FILES = ("encoder.json", "vocab.bpe")

_ENCODER = "encoder.sentence_encoder"
_SIZES = {
    "encoder_embed_dim": (f"{_ENCODER}.embed_tokens.weight", 1),
    "encoder_ffn_embed_dim": (f"{_ENCODER}.layers.0.fc1.weight", 0),
}
_NOT_IN_WEIGHTS = ("encoder_attention_heads", "activation_fn")


@dataclass
class RobertaOptions:
    """The options of fairseq's RoBERTa that affect the outputs of a trained checkpoint."""

    encoder_layers: int
    encoder_embed_dim: int
    encoder_ffn_embed_dim: int
    encoder_attention_heads: int
    activation_fn: str
    encoder_normalize_before: bool
    layernorm_embedding: bool
    encoder_learned_pos: bool
    no_token_positional_embeddings: bool
    no_scale_embedding: bool
    untie_weights_roberta: bool
    adaptive_input: bool
    encoder_layers_to_keep: str | None


def open_checkpoint(path: Path, vocabulary: Path | None, symbols: str | None = None) -> Source:
    """Read a checkpoint of fairseq's model roberta, by default with the dictionary and tokenizer in its folder.

    ``symbols`` says how texts are split into the symbols of the dictionary: ``LETTERS`` or ``WORDS``; by default, by a
    tokenizer in its folder, or else as the symbols look.
    """
    folder = vocabulary or path.parent
    state = read_state(path)
    sections = plain_sections(state, path)
    if "model" not in sections:
        raise refuse(path, "its configuration has no options of a model")
    check_weights(state["model"], path)
    if not (folder / DICTIONARY_FILE).is_file():
        raise FileNotFoundError(
            f"there is no {DICTIONARY_FILE} in {folder}: with --vocabulary, give the folder of the dictionary with "
            "which the checkpoint was trained"
        )
    dictionary = load_dictionary(str(folder))
    model = _build(path, sections["model"], without_prefix(state["model"]), dictionary)
    options = _model_options(model)
    first_position = model.encoder.sentence_encoder.padding_idx + 1
    mask = dictionary.index(MASK_SYMBOL)
    state = model.state_dict()
    try:
        weights = take_weights(state, FAIRSEQ_ROBERTA, options, "masked-lm", first_position=first_position)
    except KeyError as error:  # a table of sines, or no LayerNorm of the embeddings
        raise refuse(path, f"its weights lack {error.args[0]}") from error

    @torch.no_grad()
    def compute(tokens: Tensor) -> dict[str, Tensor]:
        states = model(tokens, features_only=True)[0]
        return {STATES: states, scores_of("masked-lm"): model.encoder.lm_head(states[tokens == mask])}

    return Source(
        options=options,
        architecture="masked-lm",
        weights=weights,
        vocabulary=_read_vocabulary(folder, dictionary, symbols),
        compute=compute,
        facts={"kind": "fairseq roberta", f"SHA-256 of {path.name}": sha256_of(path)},
    )


def _build(path: Path, options: dict[str, Any], weights: dict[str, Tensor], dictionary: Dictionary) -> RobertaModel:
    """Build the source's model from its options and load the weights, whose sizes must match."""
    # The first versions of fairseq's RoBERTa named the encoder a decoder.
    renamed = {re.sub(r"^decoder\.", "encoder.", name): weight for name, weight in weights.items()}
    if f"{_ENCODER}.embed_tokens.weight" not in renamed:
        raise refuse(path, f"its weights are not those of a RoBERTa; its model is {shown(options.get('_name'))}")
    args = Namespace(**declared_options(options, RobertaOptions, path, "model"))
    if options.get("_name") not in OF_FAIRSEQ["model"]:
        # The defaults of an architecture of another plugin are unknown, and weights do not show these options.
        for name in _NOT_IN_WEIGHTS:
            if name not in options:
                raise refuse(path, f"it does not record {name}, and its model {shown(options.get('_name'))} is unknown")
    base_architecture(args)
    check_depth(path, "encoder_layers", args.encoder_layers, renamed, f"{_ENCODER}.layers.")
    check_sizes(path, args, renamed, _SIZES)
    if len(renamed[f"{_ENCODER}.embed_tokens.weight"]) != len(dictionary):
        raise refuse(
            path,
            f"it has {len(renamed[f'{_ENCODER}.embed_tokens.weight'])} embeddings, but the dict.txt that was given has "
            f"{len(dictionary)} symbols with the special ones",
        )
    # The rows of the table up to padding are not used.
    rows = len(renamed.get(f"{_ENCODER}.embed_positions.weight", ()))
    args.max_positions = max(rows - dictionary.pad() - 1, 1)
    try:
        model = RobertaModel.build_model(args, SimpleNamespace(source_dictionary=dictionary))
        model.load_state_dict(renamed, strict=True, model_cfg=args)
    except Exception as error:  # fairseq raises errors of all kinds for weights that do not fit
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"fairseq cannot read {path}: {reason}") from error
    return model.eval().float()


def _model_options(model: RobertaModel) -> dict[str, Any]:
    """Return our options for a model of fairseq; the comparison of outputs shows whether ours computes the same."""
    encoder = model.encoder.sentence_encoder
    layer, table = encoder.layers[0], encoder.embed_positions
    return {
        **FAIRSEQ_ROBERTA.fixed,
        "encoder_layers": len(encoder.layers),
        "encoder_embed_dim": layer.embed_dim,
        "encoder_ffn_embed_dim": layer.fc1.out_features,
        "encoder_attention_heads": layer.self_attn.num_heads,
        "decoder_layers": 0,
        # A fork of fairseq may have another epsilon, and fairseq may use apex' LayerNorm instead of torch's.
        **dict.fromkeys(FAIRSEQ_ROBERTA.defaults, layer.final_layer_norm.eps),
        "max_positions": getattr(table, "num_embeddings", 0) - encoder.padding_idx - 1,
    }


def _read_vocabulary(folder: Path, dictionary: Dictionary, kind: str | None) -> SourceVocabulary:
    if dictionary.index(MASK_SYMBOL) != len(dictionary) - 1:
        raise refuse(folder, "<mask> is not the last symbol of its dictionary")
    symbols = dictionary.symbols[dictionary.nspecial : -1]
    if not symbols:
        raise refuse(folder, "its dict.txt has no symbols")
    order = list(range(len(dictionary)))
    if kind is None and (folder / MODEL_FILE).is_file():
        return SourceVocabulary(order, symbols, {MODEL_FILE: (folder / MODEL_FILE).read_bytes()})
    if kind is None and all((folder / name).is_file() for name in GPT2_FILES):
        tokenizer = _gpt2_tokenizer(folder, dictionary)
    elif kind is None and (folder / TOKENIZER_FILE).is_file():
        tokenizer = adjacent_tokenizer(folder, dictionary)
    else:
        cut = kind or kind_of_symbols(symbols)
        if cut is None:
            return SourceVocabulary(order, symbols, {})
        logger.info("texts are split into the symbols of dict.txt, %s; --symbols decides", CUTS[cut])
        tokenizer = symbol_tokenizer(dictionary, cut)
    return SourceVocabulary(order, symbols, {TOKENIZER_FILE: tokenizer.encode("utf-8")})


def _gpt2_tokenizer(folder: Path, dictionary: Dictionary) -> str:
    """Return a tokenizer.json for GPT-2's byte-pair encoding with the dictionary's ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces: dict[str, int] = read_json(folder / GPT2_FILES[0])
    numbers = {piece: dictionary.index(str(number)) for piece, number in pieces.items() if piece != "<|endoftext|>"}
    unknown = [piece for piece, number in numbers.items() if number == dictionary.unk()]
    if unknown:
        raise refuse(folder, f"dict.txt lacks {len(unknown)} of the tokens in {GPT2_FILES[0]}, such as {unknown[0]!r}")
    lines = (folder / GPT2_FILES[1]).read_text(encoding="utf-8").split("\n")
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines[1:]) if right]
    special = {symbol: dictionary.index(symbol) for symbol in (*FAIRSEQ_SYMBOLS, MASK_SYMBOL)}
    tokenizer = Tokenizer(models.BPE(vocab={**special, **numbers}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special_tokens(tokenizer, dictionary)
