"""`maelm extend`: old text keeps its ids, new tokens stand for their parts, and all tokenizers agree."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
import torch
from end_to_end.toy import run, write_corpus
from fairseq.data import Dictionary

from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE, shipped_encoders
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.export.tokenizer import build_tokenizer
from fairseq_maelm.interop.extension import Extended, extend
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.new_pieces import Run, WordCounts, count_words, find_pieces
from fairseq_maelm.text.vocabulary import (
    MODEL_FILE,
    UNKNOWN,
    TextEncoder,
    dictionary_text,
    load_sentencepiece,
    open_encoder,
)

from .importing import sources
from .importing.sources import transformers

# Words that the vocabularies of the tests cut into many tokens, and words that begin or end like them.
DOMAIN = ("phosphorylation", "Kinases", "apoptose", "naïveté")
LIKE = ("phosphorylations", "unphosphorylation", "phosphorylation_1", "kinas", "apoptosexy", "dephosphory")


def unigram(folder: Path) -> Path:
    """Make a CamemBERT with a unigram tokenizer and rows without tokens."""
    folder.mkdir()
    lines = sources.corpus(folder.parent)
    path = folder.parent / MODEL_FILE
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path.with_suffix("")), vocab_size=200, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    (folder.parent / "dict.txt").write_text(dictionary_text(load_sentencepiece(path)), encoding="utf-8")
    dictionary = Dictionary.load(str(folder.parent / "dict.txt"))
    dictionary.add_symbol("<mask>")
    tokenizer = build_tokenizer(path, dictionary)
    return sources.save(folder, "Camembert", tokenizer, tokenizer.get_vocab_size() + 3, type_vocab_size=1)


SOURCES: dict[str, Callable[[Path], Path]] = {
    "bert": sources.bert,
    "rows without tokens": sources.bert_vocabulary,
    "mpnet": sources.mpnet,
    "modernbert": sources.modernbert_folder,
    "sentencepiece": sources.xlm_roberta,
    "unigram": unigram,
}


def domain_text(path: Path) -> Path:
    """Write 40 documents with the words of a domain."""
    draw = random.Random(5)
    text = [f"The {' and '.join(draw.sample(DOMAIN, 3))}, of ({draw.choice(DOMAIN)}) ships." for _ in range(40)]
    path.write_text("\n\n".join(text), encoding="utf-8")
    return path


@dataclass
class Case:
    base: LoadedCheckpoint
    ours: LoadedCheckpoint
    done: Extended
    words: bool  # the tokenizer is a WordPiece

    @cached_property
    def encoders(self) -> tuple[TextEncoder, TextEncoder]:
        return self.base.tokenizer.encoder, self.ours.tokenizer.encoder

    @property
    def first(self) -> int:
        """The first new id, which was that of <mask>."""
        return len(self.base.dictionary) - 1

    def ids(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of the base, and those of the result."""
        old, new = (each.encode([clean_text(text)])[0].tolist() for each in self.encoders)
        return old, new

    def parts(self, text: str) -> dict[int, list[int]]:
        """Check that each new token of a text stands for old tokens with its name; return these by new token."""
        old, new = self.ids(text)
        name = self.encoders[1].tokenizer.id_to_token  # type: ignore[attr-defined]
        found: dict[int, list[int]] = {}

        def stands_for(token: int, group: list[int]) -> bool:
            # A letter without a token was unknown, or a word.
            unknown = ".+" if self.words else "."
            spelled = (unknown if each == UNKNOWN else re.escape(name(each).replace("##", "")) for each in group)
            return re.fullmatch("".join(spelled), name(token)) is not None

        group: list[int] = []
        for token in new:
            # Several unknown letters together were one token.
            fused = group[-1:] == [UNKNOWN] and not self.words
            if fused and (token == UNKNOWN != (old or [0])[0] or (token >= self.first and len(name(token)) == 1)):
                continue
            group = [old.pop(0)]
            while token >= self.first and not stands_for(token, group):
                if fused and stands_for(token, [UNKNOWN, *group]):
                    group = [UNKNOWN, *group]
                    break
                group.append(old.pop(0))
            assert token >= self.first or group == [token], text
            if token >= self.first:
                assert found.setdefault(token, group) == group and token < len(self.ours.dictionary) - 1
        assert not old
        return found


@pytest.fixture(scope="module", params=SOURCES)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Case:
    place = tmp_path_factory.mktemp("extension")
    base = import_model(SOURCES[request.param](place / "source"), place / "base").folder / CHECKPOINT_FILE
    done = extend(base, [domain_text(place / "text.txt")], 25, place / "more")
    loaded = load_with_model(base), load_with_model(place / "more" / CHECKPOINT_FILE)
    return Case(*loaded, done, request.param in ("bert", "rows without tokens", "mpnet"))


def test_old_text_keeps_its_ids(case: Case) -> None:
    """On hard strings, words like the new ones, and random texts; new tokens stand where their parts would."""
    draw, found = random.Random(6), {}
    texts = [*HARD_STRINGS, *LIKE, *DOMAIN]
    for _ in range(400):
        texts.append(
            draw.choice(("", " ", ", ", "-")).join(draw.choices([*DOMAIN, *LIKE, "x", "ships", "é", "3"], k=4))
        )
    for text in texts:
        found |= case.parts(text)
    assert len(found) >= 5
    for word in LIKE if case.words else ():
        assert case.ids(f"a {word} b")[0] == case.ids(f"a {word} b")[1], "an added word is no part of a longer one"
    assert case.done.held_out and case.done.after < 0.75 * case.done.before


def test_new_rows_are_means_of_their_parts(case: Case) -> None:
    first, parts = case.first, case.parts(" ".join(DOMAIN))
    for name in ("encoder.embed_tokens.weight", "lm_head.bias"):
        old, new = (each.checkpoint.weights[name] for each in (case.base, case.ours))
        assert torch.equal(new[:first], old[:first]) and torch.equal(new[-1], old[-1])
        assert len(new) == first + len(case.done.new) + 1 and len(parts) >= 3
        for number, group in parts.items():
            assert torch.allclose(new[number], old[group].mean(dim=0), atol=1e-6)
    tokens = torch.tensor([[0, 5, 9, 7, 2]])
    assert torch.equal(*(each.model.extract_features(tokens)[0] for each in (case.base, case.ours)))


def test_transformers_reads_text_alike(case: Case, tmp_path: Path) -> None:
    """The folder itself, its export with the source's ids, and both after saving again."""
    folder, origin = case.ours.data, case.ours.origin
    assert origin is not None and case.base.origin is not None
    export(folder / CHECKPOINT_FILE, None, tmp_path / "stock", ExportSettings())
    rows = len(case.ours.dictionary)
    settings = json.loads((tmp_path / "stock" / "config.json").read_text())
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "stock")
    assert settings["vocab_size"] == rows == len(model.get_input_embeddings().weight)
    source = transformers.AutoTokenizer.from_pretrained(folder.parent / "source")
    for place, order in ((folder, list(range(rows))), (tmp_path / "stock", origin.order.tolist())):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        assert len(tokenizer) == rows, "resize_token_embeddings(len(tokenizer)) keeps all rows"
        tokenizer.save_pretrained(tmp_path / "again")
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
        for word in (*DOMAIN, *LIKE, "ships"):
            text = f"The {word}, of {word} ships"
            expected = [order[token] for token in case.ids(text)[1][:-1]]
            assert [each(text, add_special_tokens=False)["input_ids"] for each in (tokenizer, again)] == [expected] * 2
        assert tokenizer.decode(expected) == source.decode(source(text, add_special_tokens=False)["input_ids"])
        assert tokenizer.mask_token == source.mask_token
    old = "Quick box, 3.5!"
    assert source(old)["input_ids"] == tokenizer(old)["input_ids"], "old ids of the source"


def test_encoder_with_a_sentencepiece_model(tmp_path: Path) -> None:
    """The encoder of the package: no source's files; its own tokenizer becomes a tokenizer.json."""
    base = next(iter(shipped_encoders().values()))
    done = extend(base, [domain_text(tmp_path / "text.txt")], 5, tmp_path / "more")
    assert len(done.new) == 5 and not (tmp_path / "more" / MODEL_FILE).exists()
    old, new = map(open_encoder, (base.parent, tmp_path / "more"))
    texts = [clean_text(text) for text in HARD_STRINGS]
    for one, other in zip(old.encode(texts), new.encode(texts), strict=True):
        assert one.tolist() == other.tolist() or max(other) >= old.dictionary_size
    assert sum(map(len, new.encode(DOMAIN))) < sum(map(len, old.encode(DOMAIN)))


def find(counts: dict[Run, int], most: int, whole: bool = False, letters: str = "", **more: Any) -> list[Run]:
    """Return the parts of the pieces that a text of five documents with these runs gives."""
    cutter: Any = SimpleNamespace(whole=whole, letters=dict.fromkeys(letters, ("<unk>",)))
    found = WordCounts(5, Counter(counts), dict.fromkeys(counts, set(range(5))))
    return [parts for _, parts, _ in find_pieces(found, cutter, most, **more)]


def test_what_saves_most_tokens_comes_first() -> None:
    words = {("a", "##b", "##c"): 9, ("d", "##e"): 10, ("a", "##b"): 5, ("x", "##y"): 2, ("日", "本"): 6}
    assert find(words, 3, whole=True) == [("a", "##b", "##c"), ("d", "##e"), ("日", "本")]
    pairs = {("a", "b", "c"): 9, ("d", "e"): 10, ("a", "b"): 5, ("x", "y"): 2}
    assert find(pairs, 3) == [("a", "b"), ("d", "e"), ("ab", "c")]
    assert find(pairs, 9, taken=["ab"]) == [("d", "e"), ("b", "c"), ("a", "bc")], "a taken name, a rare pair"
    assert find({("a", "ß"): 7, ("ß", "b"): 2}, 9, letters="ß") == [("<unk>",), ("a", "ß")]
    compounds = {("a", "b", str(number)): 1 for number in range(6)}
    assert find(compounds, 9) == [("a", "b")], "a piece of words that are rare themselves"


def test_pieces_of_few_documents_are_left_out() -> None:
    documents = [["aa bb bb"]] * 5 + [["bb cc cc cc cc cc cc"]] + [["dd"] * 3] * 4
    counts = count_words(documents, lambda word: [tuple(word)])
    assert counts.documents == 9 and counts.held_out == {"dd": 3}
    cutter: Any = SimpleNamespace(whole=False, letters={})
    assert [piece.name for piece in find_pieces(counts, cutter, 9)] == ["bb", "aa"]


GERMAN = [
    f"{first}{middle}{last}"
    for first in ("Donau", "Straßen", "Hafen")
    for middle in ("dampf", "bahn", "kohlen")
    for last in ("schiffe", "wagen", "händler")
]


@pytest.mark.parametrize(
    ("make", "text", "limit"),
    [
        ("sentencepiece", [f"{word} im Hafen." for word in GERMAN], 2.5),
        ("modernbert", [f"{word} im Hafen." for word in GERMAN], 2.5),
        ("bert", ["我们在北京大学学习 他们在上海。", "北京大学很大。", "上海的学习 我们的大学。"] * 3, 9.0),
        ("sentencepiece", ["我们在北京大学学习 他们在上海。", "北京大学很大。", "上海的学习 我们的大学。"] * 3, 5.0),
    ],
)
def test_compounds_and_scripts_without_spaces(tmp_path: Path, make: str, text: list[str], limit: float) -> None:
    """Pieces count wherever they stand, and unknown letters become tokens."""
    base = import_model(SOURCES[make](tmp_path / "source"), tmp_path / "base").folder
    (tmp_path / "text.txt").write_text("\n\n".join(text * 3), encoding="utf-8")
    done = extend(base / CHECKPOINT_FILE, [tmp_path / "text.txt"], 150, tmp_path / "more")
    tokenizer = open_encoder(tmp_path / "more").tokenizer  # type: ignore[attr-defined]
    assert done.after < limit
    assert not {"<unk>", "[UNK]"} & {token for line in text for token in tokenizer.encode(f" {line[:-1]}").tokens}


def _new_names(base: Path, extended: Path) -> list[str]:
    old, new = (load_dictionary(str(folder)).symbols for folder in (base, extended))
    return [name for name in new if name not in old]


@pytest.mark.parametrize("make", ["bert", "modernbert", "sentencepiece", "unigram"])
def test_listed_words_are_tokens(tmp_path: Path, make: str, caplog: pytest.LogCaptureFixture) -> None:
    """Words that are rare or not in the text at all; what cannot be one token is said."""
    base = import_model(SOURCES[make](tmp_path / "source"), tmp_path / "base").folder / CHECKPOINT_FILE
    listed = ["apoptosis", "βcell", "Nephrologie", "北京"]
    (tmp_path / "words.txt").write_text("\n".join([*listed, ""]), encoding="utf-8")
    done = extend(base, [domain_text(tmp_path / "text.txt")], 3, tmp_path / "more", words=tmp_path / "words.txt")
    encoder = open_encoder(tmp_path / "more")
    assert [len(tokens) - 1 for tokens in encoder.encode([f" {word}" for word in listed])] == [1] * 4
    assert (done.used == len(done.new)) == (make == "bert") and done.words == []
    assert "no single token" not in caplog.text
    # A sign without a token is no part of a new token, which would hide other signs.
    bad = [] if make == "modernbert" else ["foo☃bar", "☃"]
    (tmp_path / "words.txt").write_text("\n".join([*bad, "</s>", "[MASK]", "<mask>", "apoptosis"]), encoding="utf-8")
    extend(base, [tmp_path / "text.txt"], 3, tmp_path / "signs", words=tmp_path / "words.txt")
    signs = open_encoder(tmp_path / "signs")
    assert not any("<unk>" in name or "[UNK]" in name for name in _new_names(base.parent, tmp_path / "signs"))
    assert all(word in caplog.text for word in bad)
    old = open_encoder(base.parent)
    for text in (" foobar", " ☃", " foo♥bar"):
        assert signs.encode([text])[0].tolist()[:-1] == old.encode([text])[0].tolist()[:-1]
    (tmp_path / "words.txt").write_text("two words")
    with pytest.raises(CorpusError, match=r"words.txt:1 has 2 words: write each on its own line"):
        extend(base, [tmp_path / "text.txt"], 3, tmp_path / "other", words=tmp_path / "words.txt")


@pytest.mark.parametrize("make", [sources.bert, sources.distilbert, sources.roberta_folder])
def test_inputs_of_the_source(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """The export makes the inputs that the source's class makes, so that pairs without new words keep their states."""
    source = make(tmp_path / "source")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings.pop("model_input_names", None)
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    base = import_model(source, tmp_path / "base").folder / CHECKPOINT_FILE
    extend(base, [domain_text(tmp_path / "text.txt")], 3, tmp_path / "more")
    export(tmp_path / "more" / CHECKPOINT_FILE, None, tmp_path / "stock", ExportSettings())
    config = json.loads((source / "config.json").read_text())
    kind = {"bert": "BertTokenizerFast", "distilbert": "DistilBertTokenizerFast", "roberta": "RobertaTokenizerFast"}
    names = getattr(transformers, kind[config["model_type"]]).model_input_names
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "stock")
    assert tokenizer.model_input_names == names
    batch = tokenizer("The ship", "sails near", return_tensors="pt")
    assert set(batch) == set(names)
    states = [transformers.AutoModel.from_pretrained(place)(**batch)[0] for place in (source, tmp_path / "stock")]
    assert torch.allclose(*states, atol=1e-5)


def test_refusals(tmp_path: Path) -> None:
    """One line each, and nothing is written."""
    sources.fairseq_checkpoint(tmp_path / "source")
    base, text = tmp_path / "base", domain_text(tmp_path / "text.txt")
    import_model(tmp_path / "source" / "model.pt", base)
    (tmp_path / "known.txt").write_text("a b c\n" * 50)
    (tmp_path / "empty.txt").write_text("\n")

    def refused(*words: Any) -> str:
        said = run(["maelm", "extend", *words, "--output", tmp_path / "more"], check=False)
        assert not (tmp_path / "more").exists() and "Traceback" not in said
        return said

    assert "each word of the text is one token already" in refused(base, "--text", tmp_path / "known.txt")
    (tmp_path / "once.txt").write_text("apoptose Kinases")
    assert "is 5 times in the text and in 1 of its documents (1)" in refused(base, "--text", tmp_path / "once.txt")
    assert "the text has no words" in refused(base, "--text", tmp_path / "empty.txt")
    assert "must be at least 1" in refused(base, "--text", text, "--pieces", 0)
    (tmp_path / "source" / MODEL_FILE).unlink()
    import_model(tmp_path / "source" / "model.pt", tmp_path / "mute")
    assert "there is no sentencepiece.bpe.model in" in refused(tmp_path / "mute", "--text", text)


@pytest.mark.slow
@pytest.mark.parametrize("make", [sources.bert, sources.modernbert_folder])
def test_from_import_to_export(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """The extended encoder is pretrained on the domain's text, and stock transformers opens the result."""
    run(["maelm", "import", make(tmp_path / "source"), "--output", tmp_path / "base"])
    write_corpus(tmp_path / "text.txt", documents=30)
    text = domain_text(tmp_path / "domain.txt")
    said = run(["maelm", "extend", tmp_path / "base", "--text", text, "--pieces", 20, "--output", tmp_path / "more"])
    assert "tokens per word: " in said and "new tokens: " in said and "cannot be compared" in said
    run(["maelm", "prepare", "corpus", tmp_path / "text.txt", text, "--vocabulary", tmp_path / "more", "--output"]
        + [tmp_path / "data", "--valid-fraction", 0.2, "--workers", 1])  # fmt: skip
    pretrain = ["maelm", "pretrain", tmp_path / "data", "--checkpoint", tmp_path / "more", "--gpus", 0]
    run([*pretrain, "--set", "max-update=2", "batch-sequences=8", "sequences-per-gpu=8", "--output", tmp_path / "run"])
    assert "verified" in run(["maelm", "export", "--checkpoint", tmp_path / "run", "--output", tmp_path / "stock"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "stock")
    model = transformers.AutoModel.from_pretrained(tmp_path / "stock")
    encoded = tokenizer("The phosphorylation of ships", return_tensors="pt")
    assert len(encoded["input_ids"][0]) < len(
        transformers.AutoTokenizer.from_pretrained(tmp_path / "source")("The phosphorylation of ships")["input_ids"]
    )
    assert model(**encoded).last_hidden_state.isfinite().all()
    start = transformers.AutoModel.from_pretrained(tmp_path / "more").get_input_embeddings().weight
    assert len(start) == len(model.get_input_embeddings().weight) == len(tokenizer)
