"""Words by the tokens alone are those of the tokenizer, which knows the text."""

from pathlib import Path

import numpy as np
import pytest
from text import vocabularies

from fairseq_maelm.data.masking import MaskingScheme, _word_starts
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary, word_rule
from fairseq_maelm.text.vocabulary import open_encoder

tokenizers = pytest.importorskip("tokenizers")

PAGES = sorted(Path(__file__).resolve().parents[2].glob("docs/guides/*.md"))
# Real text, with code, tables, links and other scripts.
LINES = [clean for page in PAGES for line in page.read_text("utf-8").splitlines() if (clean := clean_text(line))]
LINES = [line for line in LINES if "\u2581" not in line]  # several tokens, which count as letters
LINES += ["It's the cat's (old) don't-care 'word', \u0395\u03bb\u03bb\u03b7\u03bd 3rd x2."] * 99


@pytest.fixture(params=["sentencepiece", "byte pairs", "word pieces"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vocabulary of real text; tokenizers have a token that was added."""
    monkeypatch.setattr(vocabularies, "TEXT", LINES)
    monkeypatch.setattr(vocabularies, "ADDED", ["[E1]"])
    return vocabularies.KINDS[request.param](tmp_path, size=1500)


def test_words_of_real_text(folder: Path) -> None:
    dictionary, encoder = load_dictionary(str(folder)), open_encoder(folder)
    rule = word_rule(dictionary, folder)
    scheme = MaskingScheme(0.5, np.arange(4), word_starts=rule.starts, word_kinds=rule.kinds)
    texts = [*LINES, "[E1]cat [E1] the[E1].", "the [E1] s"] if rule.kinds is not None else LINES
    assert len(texts) > 900
    for text, (tokens, words) in zip(texts, encoder.encode_words(texts), strict=True):
        if dictionary.unk() in tokens:  # a special symbol, which is a word
            continue
        whole = np.array([[dictionary.bos(), *tokens, dictionary.eos()]])
        expected = [True, True, *(np.diff(words) != 0), True]
        found = _word_starts(scheme, whole, np.ones_like(whole, dtype=bool))[0].tolist()
        shown = [f"{'|' if start else ''}{dictionary[token]}" for start, token in zip(found, whole[0])]
        assert found == expected, (text, shown)


def test_vocabularies_without_words_are_refused(tmp_path: Path) -> None:
    """Without marked tokens, nearly every sequence would be a single word; the character itself is no mark."""
    (tmp_path / "dict.txt").write_text("the 1\ns 1\n\u2581 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="omit this option"):
        word_rule(load_dictionary(str(tmp_path)), tmp_path)
