"""The split of queries, keys and values into two streams equals plain operations, in values and gradients."""

from typing import Any

import pytest
import torch
from attention_problem import context_of
from support import batch_of, random_sequences
from torch import Tensor

from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.models.decoder import hidden_except
from fairseq_maelm.modules.attention import streams
from fairseq_maelm.modules.attention.context import MaskStream
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.output_positions import unseen_outputs, unseen_positions

SEQUENCES, LENGTH, MASKS, HEADS, WIDTH = 2, 5, 3, 2, 4
ROWS = SEQUENCES * LENGTH + MASKS
BASE = 100


def split(packed: Tensor, base: int | None) -> streams.Parts:
    """Split rows of two sequences of five visible tokens; the first has two masks, the second one."""
    positions = torch.tensor([*range(LENGTH), *range(1, LENGTH + 1), 5, 6, 0])[None]
    turns = rotations(positions, [BASE], WIDTH, torch.zeros(()).double())
    context = context_of(positions=positions[0, : SEQUENCES * LENGTH].view(SEQUENCES, LENGTH))
    unused: Any = None
    return streams.split_streams(packed, context, MaskStream(unused, unused, turns, unused, unused), base)


def parts_and_gradient(count: int, base: int | None, used: list[int]) -> tuple[list[Tensor], Tensor]:
    """All parts of random states, and the gradient of a sum in which the ``used`` parts have different weights."""
    generator = torch.Generator().manual_seed(3)
    packed = torch.randn(ROWS, count, HEADS, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    parts = [part for group in split(packed * 1.0, base) for part in group]
    weights = [torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in parts]
    torch.stack([(parts[number] * weights[number]).sum() for number in used]).sum().backward()
    assert packed.grad is not None
    return [part.detach() for part in parts], packed.grad


@pytest.mark.parametrize("base", [None, BASE])
@pytest.mark.parametrize(
    ("count", "used"),
    [(3, range(8)), (2, range(6)), (2, range(2, 6)), (3, [1]), (3, [7])],
    ids=["all", "no queries", "masks alone read", "one is used", "one is read"],
)
def test_split_equals_plain_operations(
    count: int, used: list[int], base: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, gradient = parts_and_gradient(count, base, list(used))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    expected, expected_gradient = parts_and_gradient(count, base, list(used))
    assert [part.shape for part in parts] == [part.shape for part in expected]
    assert len(parts) == 2 * count + 2
    assert parts[0].shape == (SEQUENCES, HEADS, LENGTH, WIDTH) and parts[count].shape == (MASKS, HEADS, WIDTH)
    for part, plain in zip(parts, expected):
        torch.testing.assert_close(part, plain, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-14, atol=1e-14)
    assert gradient.abs().sum() > 0


def test_values_and_their_places() -> None:
    packed = torch.arange(ROWS * 3 * HEADS * WIDTH, dtype=torch.float64).view(ROWS, 3, HEADS, WIDTH)
    visible, masks, read = split(packed * 1.0, None)
    assert torch.equal(visible[1][1, 0, 2], packed[LENGTH + 2, 1, 0])  # key of the second sequence's third token
    assert torch.equal(masks[2][1, 1], packed[SEQUENCES * LENGTH + 1, 2, 1])
    assert torch.equal(read[0], visible[1]) and torch.equal(read[1], visible[2])


def test_masks_that_the_encoder_sees_have_no_second_rows() -> None:
    sequences, masked = random_sequences([6, 8, 5]), [[1, 4], [2, 3, 6], [3]]
    layout = batch_of(sequences, masked, view=EncoderView(mask_fraction=0.5))[0]["layout"]
    # Masks of the first and the third sequence stay; slots are counted in rows of 8, places in rows of 3.
    assert unseen_outputs(layout).tolist() == [2, 3, 4]
    unseen = unseen_positions(layout)
    assert (unseen.indices.tolist(), unseen.padded.tolist(), unseen.length) == ([10, 11, 14], [3, 4, 5], 3)
    hidden = [[True] * 3, [False] * 3, [True] * 3]
    assert hidden_except(unseen.padded, 3, unseen.length).tolist() == hidden
    dropped = batch_of(sequences, masked)[0]["layout"]
    assert unseen_positions(dropped).indices.tolist() == dropped["predicted_slots"].tolist() == [1, 4, 10, 11, 14, 19]
