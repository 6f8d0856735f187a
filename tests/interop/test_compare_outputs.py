"""The comparison of models and tokenizers, and its tolerance."""

import pytest
import torch
from support import model_of

from fairseq_maelm.interop.compare_outputs import PAD, Agreement, agreements, comparison_batches, differences, inside


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


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (torch.tensor([[1.0, 2.0]]), 0.0),
        (torch.tensor([[1.0, 2.0 + 1e-5]]), 1e-5),
        (torch.tensor([[1.0, 2.1]]), 0.1),
        (torch.tensor([[1.0, float("nan")]]), float("inf")),
        (torch.tensor([[1.0]]), float("inf")),
    ],
)
def test_only_rounding_passes(found: torch.Tensor, difference: float) -> None:
    expected = torch.tensor([[1.0, 2.0]])

    def compare() -> list[Agreement]:
        batches = [torch.tensor([[0, 2]])] * 2
        changed = iter([expected, found])
        return agreements(lambda _: {"states": expected}, lambda _: {"states": next(changed)}, batches, "no model")

    if difference > 2e-5:
        with pytest.raises(ValueError, match=r"^no model: states differ by (0\.1|inf) \(values up to 2\)$"):
            compare()
    else:
        (agreement,) = compare()
        assert agreement.difference == pytest.approx(difference, rel=0.1) and agreement.size == 2.0
        assert agreement.describe().startswith("states: largest difference ")


def test_texts_that_are_read_differently_are_found() -> None:
    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def backwards(text: str) -> list[int]:
        return letters(text)[::-1]

    assert differences(letters, letters, ["ab", ""]) == []
    assert [each.text for each in differences(letters, backwards, ["ab", "aa"])] == ["ab"]
    assert differences(letters, backwards, ["ab", "aa"], ties=True) == []
