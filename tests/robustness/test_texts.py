"""Any text at all: through the cleaning, the tokenizer, offsets and the hub nothing fails, or one line says why."""

import sys
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.offsets import encodable
from robustness.world import World

# Halves of surrogate pairs, NUL, marks of direction, what joins and what no font shows: more often than by chance.
_ODD = "\ud83d\udc00\0\u202e\u200f\u2067\u200d\ufeff\ufffd\u2581\u0301\x85\u2028<mask></s>\t\r\n"
TEXTS = st.text(st.one_of(st.sampled_from(_ODD), st.characters()), max_size=40)
EXAMPLES = settings(max_examples=300, suppress_health_check=list(HealthCheck))


def check(world: World, text: str) -> None:
    """Take a text through everything that takes texts."""
    hub = world.hub("pretrained")
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned and "\n" not in cleaned and cleaned == unicodedata.normalize("NFC", cleaned)
    aligned = hub.tokenizer.encoder.encode_with_offsets(text)
    assert len(aligned.tokens) == len(aligned.begin) == len(aligned.end)
    for places in (aligned.begin, aligned.end):
        assert (np.diff(places) >= 0).all() and ((places >= 0) & (places <= len(text))).all()
    if encodable(text) != text:
        for function in (hub.encode, hub.fill_mask):
            with pytest.raises(ValueError, match="half of a surrogate pair"):
                function(f"<mask> {text}")
        text = encodable(text)
    tokens = hub.encode(text)
    assert tokens.dtype == torch.int64 and int(tokens.min()) >= 0 and int(tokens.max()) < len(hub.dictionary)
    assert isinstance(hub.decode(tokens), (str, list))


@EXAMPLES
@given(text=TEXTS)
def test_any_text(world: World, text: str) -> None:
    check(world, text)


@settings(EXAMPLES, max_examples=60)
@given(text=TEXTS.map(encodable))
def test_any_text_around_a_mask(world: World, text: str) -> None:
    hub = world.hub("pretrained")
    text = f"{text[:9]}<mask>{text[9:18]}"
    assert len(hub.encode(text)) <= 64
    found = hub.fill_mask(text, topk=2)
    assert len(found) == text.count("<mask>") and all(len(candidates) == 2 for candidates in found)


def test_every_code_point(world: World) -> None:
    points = [chr(point) for point in range(sys.maxunicode + 1)]
    for begin in range(0, len(points), 4096):
        check(world, " ".join(points[begin : begin + 4096]))


@pytest.mark.parametrize("unit", ["a", "\u202eab ", "e\u0301"], ids=ascii)
def test_lines_of_10_megabytes(world: World, unit: str) -> None:
    text = unit * (10_000_000 // len(unit.encode("utf-8")))
    assert len(clean_text(text)) <= len(text)
    assert int(world.hub("pretrained").encode(text, max_length=64).numel()) <= 64
