"""Further merges of a byte-pair encoding, worked by hand and against their rules."""

from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.adaptation.merges import Merge, learn_merges, merged


def test_a_worked_text() -> None:
    # "_a b" stands 7 times, "b c" 5 times; after the first merge "b c" is left once and "_ab c" stands 4 times.
    words = {("_a", "b", "c"): 4, ("_a", "b"): 3, ("_x", "b", "c"): 1}
    known = frozenset({"_a", "b", "c", "_x"})
    assert learn_merges(words, 2, 1, known) == [Merge("_ab", ("_a", "b"), 7), Merge("_abc", ("_a", "b", "c"), 4)]
    assert learn_merges(words, 9, 4, known) == learn_merges(words, 2, 1, known)
    # What is left: "_x b" and "b c", once each; the alphabet decides.
    assert learn_merges(words, 9, 1, known)[2:] == [Merge("_xb", ("_x", "b"), 1), Merge("_xbc", ("_x", "b", "c"), 1)]
    assert learn_merges(words, 9, 8, known) == []


def test_pieces_that_there_are_are_not_learned_again() -> None:
    words = {("_a", "b", "c"): 4}
    assert [merge.piece for merge in learn_merges(words, 9, 1, frozenset({"_a", "b", "c", "_ab"}))] == ["bc", "_abc"]


def test_joining_goes_from_left_to_right() -> None:
    assert merged(["a", "a", "a"], ("a", "a")) == ["aa", "a"]
    assert merged(["b", "a", "b", "a", "b"], ("a", "b")) == ["b", "ab", "ab"]


@given(
    st.dictionaries(st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(tuple), st.integers(1, 9), max_size=8),
    st.integers(1, 12),
)
def test_every_piece_is_made_of_pieces_there_were_and_was_the_most_frequent_pair(
    words: dict[tuple[str, ...], int], number: int
) -> None:
    merges = learn_merges(words, number, 1, frozenset("abc"))
    current = {word: list(word) for word in words}
    seen = set("abc")
    for merge in merges:
        assert "".join(merge.parts) == merge.piece and set(merge.parts) <= set("abc")
        counts: dict[tuple[str, str], int] = {}
        for word, pieces in current.items():
            for pair in zip(pieces, pieces[1:]):
                if "".join(pair) not in seen:
                    counts[pair] = counts.get(pair, 0) + words[word]
        assert merge.frequency == max(counts.values())
        pairs = sorted(pair for pair in counts if "".join(pair) == merge.piece)
        assert counts[min(pairs, key=lambda pair: (-counts[pair], pair))] == merge.frequency
        for pieces in current.values():
            for pair in sorted({pair for pair in zip(pieces, pieces[1:]) if "".join(pair) == merge.piece}):
                pieces[:] = merged(pieces, pair)
        seen.add(merge.piece)
