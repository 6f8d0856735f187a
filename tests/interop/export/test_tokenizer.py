"""tokenizer.json gives the ids of sentencepiece and dict.txt, except for the listed differences."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_maelm.interop.compare_outputs import differences
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, check_strings, has_ties
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS, MAY_DIFFER
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import Tokenizer
from fairseq_maelm.text.vocabulary import FairseqEncoder, load_sentencepiece
from interop.export.checkpoints import shuffle_dictionary, train_vocabulary
from interop.export.texts import LINES

pytest.importorskip("tokenizers")

# Upper case, which an uncased vocabulary does not change in these, and one that is a part of another.
SYMBOLS = ["[name]", "[NAME]", "[E1]", "<tag>", "E1"]
KINDS = {
    "uncased": {},
    "cased with bytes": {"normalization_rule_name": "nmt_nfkc", "byte_fallback": True, "vocab_size": 900},
    "unigram": {"model_type": "unigram", "vocab_size": 420},
    "unchanged text": {"normalization_rule_name": "identity"},
    "shuffled": {},
    "symbols": {"user_defined_symbols": SYMBOLS},
    "cased symbols": {
        "user_defined_symbols": SYMBOLS,
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc",
        "vocab_size": 420,
    },
}


class Both:
    """Our tokenizer and the exported tokenizer of one vocabulary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dictionary: Dictionary = load_dictionary(str(folder))
        self.model = folder / "sentencepiece.bpe.model"
        self.ours = Tokenizer(str(self.model), self.dictionary).encode
        self.tokenizer = build_tokenizer(self.model, self.dictionary)
        self.ties = has_ties(self.model)

    def exported(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def differences(self, texts: list[str]) -> list:
        return differences(self.ours, self.exported, texts, self.ties)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Both]:
    """Both tokenizers of a kind of vocabulary, made once."""
    made: dict[str, Both] = {}

    def get(kind: str) -> Both:
        if kind not in made:
            folder = train_vocabulary(tmp_path_factory.mktemp("vocabulary"), **KINDS[kind])
            if kind == "shuffled":
                shuffle_dictionary(folder, surplus=7)
            made[kind] = Both(folder)
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_hard_strings_and_all_pieces_have_the_same_ids(readers, kind: str) -> None:
    both = readers(kind)
    texts = check_strings(both.dictionary)
    assert len(texts) > len(HARD_STRINGS) + 300
    assert both.differences(texts) == []
    assert any(both.dictionary.index("<mask>") in both.exported(text) for text in HARD_STRINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_many_languages_has_the_ids_of_the_prepared_corpus(readers, kind: str) -> None:
    """The ids equal those in the .bin file of ``maelm prepare corpus``, not only those of the hub interface."""
    both = readers(kind)
    lines = [*LINES, *(line.upper() for line in LINES), "in\x01side w\x80ords,\x00 \ufeff a\x1clone \x1b"]
    lines += [unicodedata.normalize("NFD", line) for line in lines]
    assert both.differences(lines) == []
    if kind == "shuffled":
        return
    prepared = FairseqEncoder(load_sentencepiece(both.model)).encode([*map(clean_text, lines)])
    for line, ids in zip(lines, prepared):
        found = [*both.exported(line), both.dictionary.eos()]
        assert sorted(found) == sorted(ids.tolist()) if both.ties else found == ids.tolist()


@pytest.mark.parametrize("kind", ["symbols", "cased symbols"])
@settings(max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from([*SYMBOLS, "[Name]", "[e1]", "old", " ", "  ", "\n", "<mask>", " <mask>", "["])))
def test_user_defined_symbols_are_found_everywhere(readers, kind: str, parts: list[str]) -> None:
    assert readers(kind).differences(["".join(parts)]) == []


def test_places_of_user_defined_symbols_stay_true(readers) -> None:
    encoded = readers("symbols").tokenizer.encode("[NAME] and [E1]", add_special_tokens=False)
    places = dict(zip(encoded.tokens, encoded.offsets))
    assert places["[NAME]"] == (0, 6) and places["[E1]"] == (11, 15)


# Without marks, which MAY_DIFFER after some letters, joiners, controls and characters that become spaces.
LETTERS = st.characters(exclude_categories=("M", "C", "Z"), max_codepoint=0x1FFFF).filter(
    # U+2581 and U+FFFD become spaces in sentencepiece's rules.
    lambda character: character not in "\u2581\ufffd" and " " not in unicodedata.normalize("NFKC", character)
)
KNOWN = st.text("abehou .,'<>/\u2581", max_size=40).filter(lambda text: not any(each in text for each in SPECIAL))
SPECIAL = ("<s>", "<unk>", "<pad>", "</s>")
BETWEEN = st.sampled_from([" ", "  ", "\n", "\u00a0", "<mask>", " <mask> ", "."])
TEXTS = st.one_of(KNOWN, st.lists(st.one_of(st.text(LETTERS, max_size=8), BETWEEN), max_size=12).map("".join))


@pytest.mark.parametrize("kind", ["uncased", "cased with bytes", "shuffled"])
# The same texts in every run, because random texts could find unknown differences in the library.
@settings(max_examples=90, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_any_text_has_the_same_ids(readers, kind: str, text: str) -> None:
    both = readers(kind)
    text = unicodedata.normalize("NFC", text)
    assert both.exported(text) == both.ours(text)


def test_what_is_attached_to_a_changed_letter_stays(readers) -> None:
    """All marks, joiners, skin tones and the like after a capital letter, which an uncased vocabulary changes."""
    both = readers("uncased")
    attached = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)).startswith("M")]
    attached += [
        *"\u200c\u200d\u0e33\u0eb3\uff9e\uff9f",
        *map(chr, range(0x1F3FB, 0x1F400)),
        *map(chr, range(0xE0020, 0xE0080)),
    ]
    assert len(attached) > 2300
    texts = [f"A{each}b {each}" for each in attached if each != "\u0344"]  # see MAY_DIFFER
    assert both.differences(texts) == []


def test_places_in_the_text_stay_true(readers) -> None:
    """Answers are cut out of the text by offsets, which must not be shifted by inserted characters."""
    text = "The old\u200d houSe A\u200c B\u0301 by the R\U0001f3fdiver \u0915\u094d\u200d\u0937 has three windows."
    encoded = readers("uncased").tokenizer.encode(text, add_special_tokens=False)
    assert len(encoded.ids) > 10
    for word in ("house", "three", "windows"):
        tokens = [place for place, token in zip(encoded.offsets, encoded.word_ids) if text[slice(*place)].strip()]
        start = text.lower().index(word)
        covered = [place for place in tokens if start <= place[0] < start + len(word)]
        assert covered and covered[-1][1] == start + len(word), word


def test_what_is_listed_as_different_is_different(readers) -> None:
    """Every listed difference still exists."""
    for kind in ("uncased", "cased with bytes"):
        both = readers(kind)
        assert len(differences(both.ours, both.exported, list(MAY_DIFFER))) == len(MAY_DIFFER)


@pytest.mark.parametrize("kind", ["uncased", "cased with bytes", "unigram"])
def test_text_comes_back(readers, kind: str) -> None:
    both, text = readers(kind), "the old house has three windows."
    assert both.tokenizer.decode(both.exported(text)) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "char"}, "neither a byte-pair nor a unigram"),
        ({"add_dummy_prefix": False}, "options of white space are not"),
        ({"remove_extra_whitespaces": False}, "options of white space are not"),
        ({"user_defined_symbols": ["[a]", "]b"]}, r"symbols '\[a\]' and '\]b' can overlap"),
        ({"user_defined_symbols": ["x\u2581y"]}, "has a mark of white space"),
    ],
)
def test_models_that_tokenizer_json_cannot_express_are_refused(tmp_path: Path, options: dict, message: str) -> None:
    folder = train_vocabulary(tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        build_tokenizer(folder / "sentencepiece.bpe.model", load_dictionary(str(folder)))


def test_a_piece_that_the_dictionary_lacks_is_refused(tmp_path: Path) -> None:
    folder = train_vocabulary(tmp_path)
    dictionary = load_dictionary(str(folder))
    missing = dictionary.symbols[300]
    del dictionary.indices[missing]
    with pytest.raises(ValueError, match="1 of its pieces are not in dict.txt"):
        build_tokenizer(folder / "sentencepiece.bpe.model", dictionary)
