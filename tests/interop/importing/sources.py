"""Sources with random weights, written by transformers and fairseq themselves."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.toy import write_corpus
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel, base_architecture

from fairseq_maelm.files.optional_imports import import_transformers
from fairseq_maelm.interop.export.tokenizer import build_tokenizer
from fairseq_maelm.text.vocabulary import MODEL_FILE, dictionary_text, load_sentencepiece, train_sentencepiece

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
transformers = import_transformers()

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 130,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}
NAMES = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
NAMES |= {"unk_token": "<unk>", "mask_token": "<mask>"}
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_NAMES = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}


def corpus(folder: Path) -> list[str]:
    """Return a few hundred short lines of text, some with accents or in other scripts."""
    write_corpus(folder / "corpus.txt", documents=60)
    others = ["Übung macht den Meister; déjà vu, naïve, señor.", "Съешь же ещё этих мягких булок.", "日本語の文章。"]
    return [line for line in (folder / "corpus.txt").read_text().splitlines() if line] + others


def byte_pairs(folder: Path, special: list[str], last: list[str]) -> Any:
    """Train a byte-level BPE like RoBERTa's, with ``special`` first in its vocabulary and ``last`` at its end."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(corpus(folder), vocab_size=400, special_tokens=special, show_progress=False)
    inner = tokenizer._tokenizer
    inner.add_special_tokens([tokenizers.AddedToken(each, lstrip=each == "<mask>") for each in [*special, *last]])
    ends = [(name, inner.token_to_id(name)) for name in ("</s>", "<s>")]
    inner.post_processor = tokenizers.processors.RobertaProcessing(*ends, add_prefix_space=False)
    return inner


def word_pieces(folder: Path, special: list[str], last: list[str]) -> Any:
    """Train a WordPiece like MPNet's and BERT's, with ``special`` first in its vocabulary and ``last`` at its end."""
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(corpus(folder), vocab_size=300, special_tokens=special, show_progress=False)
    inner = tokenizer._tokenizer
    inner.add_special_tokens([tokenizers.AddedToken(each, lstrip=True) for each in last])
    return between(inner, *(("<s>", "</s>") if "<s>" in special else ("[CLS]", "[SEP]")))


def between(inner: Any, first: str, last: str) -> Any:
    """Give a tokenizer RoBERTa's template."""
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(each, inner.token_to_id(each)) for each in (first, last)],
    )
    return inner


def sentencepieces(folder: Path) -> Dictionary:
    """Write a sentencepiece model and its dict.txt, and return the dictionary with <mask>."""
    model = train_sentencepiece(iter(corpus(folder)), 200, "nmt_nfkc", 1.0)
    (folder / MODEL_FILE).write_bytes(model)
    (folder / "dict.txt").write_text(dictionary_text(load_sentencepiece(model)), encoding="utf-8")
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    return dictionary


def pieces(folder: Path) -> tuple[Any, bytes]:
    """Make a sentencepiece model and its tokenizer.json, numbered like XLM-R's."""
    dictionary = sentencepieces(folder)
    return build_tokenizer(folder / MODEL_FILE, dictionary), (folder / MODEL_FILE).read_bytes()


def save(folder: Path, family: str, tokenizer: Any, rows: int, names: dict[str, str] = NAMES, **changes: Any) -> Path:
    """Write a masked language model with random weights (matrices of deviation ``scale``), by transformers."""
    scale = changes.pop("scale", 0.3)
    folder.mkdir(parents=True, exist_ok=True)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, model_max_length=512)
    fast.save_pretrained(folder)
    config = getattr(transformers, f"{family}Config")(vocab_size=rows, **{**SIZES, **changes})
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForMaskedLM")(config)
    for parameter in model.parameters():
        # This scale makes all parts of the model larger than rounding errors.
        parameter.data = torch.randn_like(parameter) * (scale if parameter.dim() > 1 else 0.3)
    model.save_pretrained(folder)
    return folder


def roberta_folder(folder: Path, **changes: Any) -> Path:
    """Make a folder like roberta-base: byte pairs, the usual numbers, <mask> last."""
    tokenizer = byte_pairs(folder_of(folder), SPECIAL, ["<mask>"])
    return save(folder, "Roberta", tokenizer, tokenizer.get_vocab_size(), **changes)


def rope(**bases: float) -> dict[str, Any]:
    """Return rotary bases in the form of transformers 5."""
    return {name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()}


# Local attention sees half of its window on either side.
MODERN_SIZES = {
    "num_hidden_layers": 5,
    "intermediate_size": 72,
    "max_position_embeddings": 40,
    "local_attention": 16,
    "rope_parameters": rope(full_attention=160_000.0, sliding_attention=10_000.0),
}


def modernbert_folder(folder: Path, **changes: Any) -> Path:
    """Make a folder like ModernBERT-base: special and other tokens after byte pairs, outside of the tokenizer's model.

    It has more rows than tokens, and a setting of a classifier that it lacks.
    """
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(corpus(folder_of(folder)), vocab_size=400, show_progress=False)
    tokenizer = trained._tokenizer
    tokenizer.add_tokens([tokenizers.AddedToken("   ", normalized=True)])
    special = [*BERT_SPECIAL[1:4], BERT_SPECIAL[0], BERT_SPECIAL[4]]
    tokenizer.add_special_tokens([tokenizers.AddedToken(each, lstrip=each == "[MASK]") for each in special])
    tokenizer.add_tokens(["[unused0]"])
    tokenizer.add_special_tokens(["<|endoftext|>"])  # without a role
    between(tokenizer, "[CLS]", "[SEP]")
    numbers = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "cls": "[CLS]", "sep": "[SEP]"}
    settings = {f"{name}_token_id": tokenizer.token_to_id(token) for name, token in numbers.items()}
    settings |= {**MODERN_SIZES, "classifier_pooling": "mean", **changes}
    return save(folder, "ModernBert", tokenizer, tokenizer.get_vocab_size() + 13, BERT_NAMES, **settings)


def mmbert_folder(folder: Path) -> Path:
    """Make a folder like mmBERT: ModernBERT with one rotary base, and byte pairs with odd tokens like Gemma 2's."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    odd = ["[@BOS@]", "<unused0>", *("\n" * n for n in range(1, 5)), *("\u2581" * n for n in range(2, 5)), "<table>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[*special, *odd, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    inner.train_from_iterator(corpus(folder_of(folder)), trainer)
    state = json.loads(inner.to_str())  # bytes are ordinary tokens, and few of the added ones are special
    state["added_tokens"] = [
        {**token, "special": token["content"] in special} for token in state["added_tokens"][: len(special + odd)]
    ]
    inner = tokenizers.Tokenizer.from_str(json.dumps(state))
    parts = [tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    inner.decoder = tokenizers.decoders.Sequence(parts)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B:1 <eos>:1", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    numbers = {"pad": 0, "bos": 2, "eos": 1, "cls": 1, "sep": 1}  # as in the published configuration
    settings = {f"{name}_token_id": number for name, number in numbers.items()}
    settings |= {**MODERN_SIZES, "classifier_pooling": "mean", "position_embedding_type": "sans_pos"}
    # The bases by their names in transformers 5 and 4.
    settings["rope_parameters"] = rope(full_attention=160_000.0, sliding_attention=160_000.0)
    settings["local_rope_theta"] = 160_000.0
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk", "mask")}
    names |= {"cls_token": "<bos>", "sep_token": "<eos>"}
    return save(folder, "ModernBert", inner, inner.get_vocab_size(), names, **settings)


def folder_of(folder: Path) -> Path:
    """Return the path of a source's corpus, next to it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.parent


def bert_vocabulary(folder: Path) -> Path:
    """Make a RoBERTa whose special symbols have BERT's names and numbers, with rows without tokens."""
    tokenizer = word_pieces(folder_of(folder), BERT_SPECIAL, [])
    rows = tokenizer.get_vocab_size() + 3
    return save(folder, "Roberta", tokenizer, rows, BERT_NAMES, pad_token_id=0)


def early_mask(folder: Path) -> Path:
    """Make a RoBERTa with <mask> right after the other special symbols, as when a tokenizer is trained with them."""
    tokenizer = byte_pairs(folder_of(folder), [*SPECIAL, "<mask>"], [])
    return save(folder, "Roberta", tokenizer, tokenizer.get_vocab_size())


def mpnet(folder: Path) -> Path:
    """Make a folder like mpnet-base: unknown text becomes [UNK], an ordinary token, and never <unk>."""
    tokenizer = word_pieces(folder_of(folder), [*SPECIAL, "[UNK]"], ["<mask>"])
    return save(folder, "MPNet", tokenizer, tokenizer.get_vocab_size())


def xlm_roberta(folder: Path, **changes: Any) -> Path:
    tokenizer, model = pieces(folder_of(folder))
    save(folder, "XLMRoberta", tokenizer, tokenizer.get_vocab_size(), type_vocab_size=1, **changes)
    (folder / MODEL_FILE).write_bytes(model)
    return folder


def unigram(folder: Path) -> Path:
    """Make a CamemBERT with a unigram tokenizer.json alone and rows without tokens."""
    tokenizer, _ = pieces(folder_of(folder))
    return save(folder, "Camembert", tokenizer, tokenizer.get_vocab_size() + 3, type_vocab_size=1)


def bert(folder: Path, family: str = "Bert", **changes: Any) -> Path:
    """Make a folder like bert-base, with WordPiece, its numbers and two token types."""
    tokenizer = word_pieces(folder_of(folder), BERT_SPECIAL, [])
    template = [(each, tokenizer.token_to_id(each)) for each in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = tokenizers.processors.BertProcessing(*template)
    sizes = {"pad_token_id": 0, "max_position_embeddings": 128, "layer_norm_eps": 1e-12, **changes}
    return save(folder, family, tokenizer, tokenizer.get_vocab_size(), BERT_NAMES, **sizes)


def bert_of_tokens(folder: Path, tokens: list[str], **settings: Any) -> Path:
    """Make a BERT whose vocab.txt has whole tokens alone, by default without any settings of its tokenizer.

    With ``settings``, they and a tokenizer.json are written by transformers' BertTokenizer.
    """
    words = word_pieces(folder_of(folder), BERT_SPECIAL, [])
    save(folder, "Bert", words, len(tokens) + 5, pad_token_id=0, max_position_embeddings=128, layer_norm_eps=1e-12)
    for path in (*folder.glob("*token*"), *folder.glob("vocab*")):
        path.unlink()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*BERT_SPECIAL, *tokens]))
    if settings:
        transformers.AutoTokenizer.from_pretrained(folder, **settings).save_pretrained(folder)
    return folder


def distilbert(folder: Path) -> Path:
    return bert(folder, "DistilBert", dim=48, n_layers=2, n_heads=4, hidden_dim=96)


def electra(folder: Path) -> Path:
    return bert(folder, "Electra", embedding_size=48)


# A folder of each kind; distilroberta is a roberta with fewer layers.
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "bert": bert,
    "distilbert": distilbert,
    "electra": electra,
    "roberta": roberta_folder,
    "roberta, mask in front": early_mask,
    "roberta, vocabulary of bert": bert_vocabulary,
    "xlm-roberta": xlm_roberta,
    "camembert": unigram,
    "mpnet": mpnet,
    "modernbert": modernbert_folder,
    "mmbert": mmbert_folder,
}


def edit_config(folder: Path, **changes: Any) -> Path:
    """Change config.json in place; None removes an entry."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config = {name: value for name, value in {**config, **changes}.items() if value is not None}
    path.write_text(json.dumps(config))
    return folder


def fairseq_checkpoint(folder: Path, **changes: Any) -> Path:
    """Write a checkpoint of fairseq's roberta, with dict.txt and sentencepiece model in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = sentencepieces(folder)
    args = Namespace(task="masked_lm", arch="roberta_base", criterion="masked_lm", data="/nowhere", seed=1, **changes)
    sizes = {"layers": 2, "embed_dim": 48, "ffn_embed_dim": 96, "attention_heads": 4}
    vars(args).update({f"encoder_{name}": size for name, size in sizes.items()}, max_positions=40, tokens_per_sample=40)
    base_architecture(args)
    roberta = RobertaModel.build_model(args, SimpleNamespace(source_dictionary=dictionary))
    torch.manual_seed(4)
    for parameter in roberta.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state = {"args": args, "model": roberta.state_dict(), "optimizer_history": [{**history, "num_updates": 7}]}
    state["extra_state"] = {"train_iterator": {"epoch": 1}}
    torch.save(state, folder / "model.pt")
    return folder / "model.pt"


def gpt2_checkpoint(folder: Path) -> Path:
    """Write one with GPT-2's byte pairs, with encoder.json and vocab.bpe in the folder, as fairseq's hub does."""
    checkpoint = fairseq_checkpoint(folder)
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator(corpus(folder), vocab_size=400, show_progress=False)
    model = json.loads(inner._tokenizer.to_str())["model"]
    (folder / "encoder.json").write_text(json.dumps(model["vocab"]))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *(" ".join(each) for each in model["merges"]), ""]))
    symbols = [str(number) for number in np.random.default_rng(0).permutation(len(model["vocab"]))]
    (folder / "dict.txt").write_text("".join(f"{symbol} 9\n" for symbol in [*symbols, "madeupword0000"]))
    (folder / MODEL_FILE).unlink()
    rows = len(symbols) + 1 + 5
    state = torch.load(checkpoint, weights_only=True)
    for name in [name for name in state["model"] if len(state["model"][name]) == 197 + 5]:
        old = state["model"][name]
        state["model"][name] = torch.randn(rows, *old.shape[1:])
    torch.save(state, checkpoint)
    return checkpoint


MARKERS = ["[E1]", "[/E1]", "[PATIENT]"]


def with_markers(folder: Path) -> Path:
    """Add special tokens without a role to a folder, as users mark entities for a relation classifier, and a word."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["covfefe"])
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS})
    tokenizer.save_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    return folder
