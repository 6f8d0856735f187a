"""Cleaning: literal cases, properties over all of Unicode, and blocks that fit together however they are cut."""

import io
import unicodedata

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.corpus.encoding import CleanedTextWriter, read_chunk
from fairseq_maelm.text.cleaning import clean_text

from .texts import flat, make_documents, train_model

ALL_CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("  two   words\t\n", "two words"),
        ("e\u0301", "\u00e9"),
        ("a\x00b\x1fc\x7fd\x85e\x9ff", "a b c d e f"),
        ("\ufeffstart", "start"),
        ("non\u00a0breaking\u3000wide\u2028line", "non breaking wide line"),
        ("carriage return\r", "carriage return"),
        ("\u200b \u200e", ""),
        ("zero\u200dwidth\u200cjoiners stay", "zero\u200dwidth\u200cjoiners stay"),
        ("<s> and <mask> are text", "<s> and <mask> are text"),
    ],
)
def test_literal_cases(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@given(st.text())
def test_cleaning_is_normal_and_final(text: str) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert cleaned == " ".join(cleaned.split())
    assert not any(unicodedata.category(character) == "Cc" for character in cleaned)


# Letters, marks of several classes, characters that decompose, and others.
MARKS = "ea\u1ec7\uac00\u11a8\u0301\u0316\u0323\u0344\u0345\u05b0\u0f73\u0f75\u302e\u2014"


@given(st.text(st.sampled_from(MARKS), min_size=80))
def test_long_runs_of_marks_have_their_normal_form(text: str) -> None:
    assert clean_text(text) == unicodedata.normalize("NFC", text)


def test_marks_are_sorted_before_they_are_normalized(monkeypatch: pytest.MonkeyPatch) -> None:
    """unicodedata itself takes quadratic time for marks that are not in order."""
    plain, given = unicodedata.normalize, []
    monkeypatch.setattr(unicodedata, "normalize", lambda form, text: given.append(text) or plain(form, text))
    clean_text("e" + "\u0301\u0316" * 99)
    assert given[-1] == "e" + "\u0316" * 99 + "\u0301" * 99


def test_every_character_that_is_left_gives_a_token() -> None:
    """An empty sequence in the data would be read as a blank line, and so split its document."""
    model = train_model(flat(make_documents(50)), normalization_rule_name="nmt_nfkc_cf")
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cleaned = [text for text in map(clean_text, ALL_CHARACTERS) if text]
    assert len(cleaned) > 1_100_000
    assert all(processor.encode(cleaned))


PARAGRAPHS = st.lists(st.sampled_from(["", "", "one", "two words", "thr\u00e9\u00e9"]), max_size=30)


def reference_documents(lines: list[str]) -> list[list[str]]:
    """Documents of cleaned lines, by the plainest possible loop."""
    documents: list[list[str]] = []
    fresh = True
    for line in lines:
        if line and fresh:
            documents.append([])
        if line:
            documents[-1].append(line)
        fresh = not line
    return documents


@given(PARAGRAPHS, st.lists(st.integers(0, 30), max_size=6))
def test_blocks_join_to_the_same_text_wherever_they_are_cut(lines: list[str], cuts: list[int]) -> None:
    stream = io.BytesIO()
    writer = CleanedTextWriter(stream)
    edges = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    for begin, end in zip(edges, edges[1:], strict=False):
        writer.write(line.encode() for line in lines[begin:end])
    documents = reference_documents(lines)
    assert stream.getvalue().decode() == "\n".join("".join(f"{line}\n" for line in document) for document in documents)
    counted = (writer.documents, writer.paragraphs, writer.bytes)
    assert counted == (len(documents), sum(map(len, documents)), len(stream.getvalue()))
    read = []
    for chunk in writer.chunks:
        text = read_chunk(stream, chunk)
        assert chunk.first_paragraph == len(read)
        read.extend(zip(text.paragraphs, text.documents.tolist(), text.starts.tolist(), strict=True))
    assert read == [
        (line, number, position == 0)
        for number, document in enumerate(documents)
        for position, line in enumerate(document)
    ]
