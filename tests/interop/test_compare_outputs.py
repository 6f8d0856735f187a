"""The comparison of models and tokenizers, and its tolerance."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import model_of

from fairseq_maelm.interop.compare_outputs import (
    PAD,
    Agreement,
    DoublePrecision,
    agreements,
    compare_tokens,
    comparison_batches,
    differences,
    inside,
)
from fairseq_maelm.interop.importing.huggingface_vocabulary import encode_of, texts_of_tokens


@pytest.mark.parametrize(("positions", "lengths"), [(512, [2, 7, 512]), (600, [2, 7, 512]), (5, [2, 5])])
def test_short_and_long_sequences_are_compared_alone_and_padded(positions: int, lengths: list[int]) -> None:
    model = model_of(max_positions=positions)
    *alone, together = comparison_batches(model, masks=True)
    assert together.ne(PAD).sum(dim=1).tolist() == lengths == [tokens.shape[1] for tokens in alone]
    assert all(row[0] == 0 and model.mask_index in row for row in together)
    *plain, padded = comparison_batches(model, masks=False)
    assert all(row[-1] == 2 and not {1, 3, model.mask_index}.intersection(row.tolist()) for (row,) in plain)
    assert all(torch.equal(row[: tokens.shape[1]], tokens[0]) for row, tokens in zip(padded, plain))


def test_padding_is_left_out() -> None:
    tokens = torch.tensor([[0, 5, 2], [0, 2, 1]])
    assert inside(torch.arange(12.0).view(2, 3, 2), tokens)[:, 0].tolist() == [0, 2, 4, 6, 8]
    assert inside(torch.ones(2, 4), tokens).shape == (2, 4)


@pytest.mark.parametrize("change", [0.0, 1e-14, 2e-9, 0.1, float("nan")])
def test_only_rounding_in_double_precision_passes(change: float) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def compare() -> list[Agreement]:
        def changed(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"states": weight * tokens + change * (tokens > 1)}

        batches = [torch.tensor([[1, 1]]), torch.tensor([[2, 2]])]
        return agreements(lambda tokens: {"states": weight * tokens}, changed, batches, "no model")

    if change < 1e-13:
        (agreement,) = compare()
        assert agreement.difference == pytest.approx(change, rel=0.2) and agreement.size == 4.0
        assert agreement.describe().startswith("states: largest difference ")
    else:
        with pytest.raises(ValueError, match=r"^no model: states differ by (0\.1|2e-09|inf) \(values up to 4\)$"):
            compare()


def test_code_that_asks_for_single_precision_computes_in_double() -> None:
    """The steps of transformers that fix single precision; frequencies and buckets are rounded, as in the model."""
    weight, tokens = torch.nn.Parameter(torch.tensor([[1.0, 1 / 3], [2.0, 0.7]])), torch.tensor([0, 1])
    with DoublePrecision(), torch.no_grad():
        states = F.embedding(tokens, weight)
        scores = F.softmax(states @ weight.T.float(), dim=-1, dtype=torch.float32).to(torch.float32)
        frequencies = 1.0 / 10_000 ** (torch.arange(0, 2, dtype=torch.float32) / 3)
        cosines = (tokens.float() * frequencies).cos()
    expected = weight.detach().double()
    assert torch.equal(scores, (expected @ expected.T).softmax(dim=-1))
    assert frequencies.dtype == torch.float32 and torch.equal(cosines, (tokens * frequencies).double().cos())
    assert weight.dtype == torch.float32


def test_texts_that_are_read_differently_are_found() -> None:
    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def backwards(text: str) -> list[int]:
        return letters(text)[::-1]

    assert differences(letters, letters, ["ab", ""]) == []
    assert [each.text for each in differences(letters, backwards, ["ab", "aa"])] == ["ab"]
    assert differences(letters, backwards, ["ab", "aa"], ties=True) == []


def test_tokenizers_are_compared_on_their_own_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """No fixed text has this word, which only one of two tokenizers knows."""
    tokenizers = pytest.importorskip("tokenizers")

    def of(*words: str) -> Any:
        numbers = {word: number for number, word in enumerate(["[UNK]", "the", "old", *words])}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        return tokenizer

    theirs, ours = of("zyzzyva"), of()
    compare_tokens("here", encode_of(theirs), encode_of(ours), range(4), (), texts_of_tokens(theirs))
    assert "the old zyzzyva' gets different tokens" in caplog.text
