"""Entities as labels: worked cases of the three schemes, and properties for random entities and labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.finetuning.tagging.schemes import (
    Entity,
    SchemeError,
    all_labels,
    check,
    convert,
    detect,
    entities,
    score,
    written,
)

# Two people side by side, a place of one word, and an organization of three.
ENTITIES = [Entity("PER", 0, 2), Entity("PER", 2, 3), Entity("LOC", 4, 5), Entity("ORG", 5, 8)]
LABELS = {
    "iob1": "I-PER I-PER B-PER O I-LOC I-ORG I-ORG I-ORG O",
    "iob2": "B-PER I-PER B-PER O B-LOC B-ORG I-ORG I-ORG O",
    "iobes": "B-PER E-PER S-PER O S-LOC B-ORG I-ORG E-ORG O",
    "bilou": "B-PER L-PER U-PER O U-LOC B-ORG I-ORG L-ORG O",
}


@pytest.mark.parametrize("scheme", LABELS)
def test_a_worked_sentence(scheme: str) -> None:
    labels = LABELS[scheme].split()
    assert written(ENTITIES, 9, scheme) == labels
    assert entities(labels) == ENTITIES
    check(labels, scheme)
    assert {other: " ".join(convert(labels, other)) for other in LABELS} == LABELS
    assert detect([labels]) == scheme


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities that do not overlap, some of them adjacent, and the length of their sentence."""
    place, found = 0, []
    for kind, gap, length in draw(st.lists(st.tuples(st.sampled_from("XY"), st.integers(0, 2), st.integers(1, 3)))):
        found.append(Entity(kind, place + gap, place + gap + length))
        place += gap + length
    return found, place + draw(st.integers(0, 2))


@given(sentences(), st.sampled_from(sorted(LABELS)), st.sampled_from(sorted(LABELS)))
def test_entities_survive_every_way_of_writing_them(sentence: tuple[list[Entity], int], one: str, other: str) -> None:
    spans, length = sentence
    labels = written(spans, length, one)
    check(labels, one)
    assert entities(labels) == spans
    assert entities(convert(labels, other)) == spans
    assert set(labels) <= set(all_labels("XY", one))


@given(st.lists(st.lists(st.tuples(*[st.sampled_from(["O", *all_labels("XY", "iobes")])] * 2), min_size=1), min_size=1))
def test_any_labels_are_read_and_scored_as_by_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    found = score(gold, predicted, True)
    for name, metric in found.items():
        options = {} if name == "accuracy" else {"zero_division": 0}
        assert metric == pytest.approx(100 * getattr(seqeval, f"{name}_score")(gold, predicted, **options))


@pytest.mark.parametrize(
    ("labels", "scheme", "word", "message"),
    [
        ("O I-PER", "iob2", 1, "'I-PER' must be 'B-PER' in IOB2"),
        ("B-PER I-LOC", "iob2", 1, "'I-LOC' must be 'B-LOC' in IOB2"),
        ("O B-PER", "iob1", 1, "'B-PER' must be 'I-PER' in IOB1"),
        ("I-LOC B-PER", "iob1", 1, "'B-PER' must be 'I-PER' in IOB1"),
        ("B-PER O", "iobes", 0, "'B-PER' must be 'S-PER' in IOBES"),
        ("O S-PER", "iob2", 1, "the prefix of the label 'S-PER' does not exist in IOB2"),
        ("O PER", "iob2", 1, "'PER' is neither O nor of the form B-TYPE"),
        ("B- O", "iob2", 0, "'B-' is neither O nor"),
    ],
)
def test_labels_against_the_rules_are_found(labels: str, scheme: str, word: int, message: str) -> None:
    with pytest.raises(SchemeError, match=message) as caught:
        check(labels.split(), scheme)
    assert caught.value.word == word


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["NOUN VERB", "O"], "plain"),
        (["X-RAY O"], "plain"),
        (["S-A O", "B-A L-A"], "plain"),
    ],
)
def test_schemes_are_told_apart(labels: list[str], expected: str) -> None:
    assert detect([sentence.split() for sentence in labels]) == expected
