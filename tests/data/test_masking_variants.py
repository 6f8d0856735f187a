"""Every view of masked positions follows from the draw and differs from all others."""

import numpy as np
import pytest
import torch
from data.test_dataset import MASK, PAD, dataset_of

from fairseq_maelm.data.masking import draw_masks, keep_fraction
from fairseq_maelm.data.masking_variants import MASKED_INPUTS, EncoderView

SIZES = [40, 33, 25]


def batch(view, **scheme):
    """Return a collated batch with its full sequences and its draw, <int64 or bool>[B, T]."""
    dataset = dataset_of(SIZES, view, mask_prob=0.4, **scheme)
    sample = dataset.collater([dataset[index] for index in range(len(SIZES))])
    tokens = np.full((len(SIZES), max(SIZES)), PAD)
    for row, size in enumerate(SIZES):
        tokens[row, :size] = dataset.blocks[row]
    draw = draw_masks(dataset.scheme, tokens, np.array(SIZES), np.arange(len(SIZES)), dataset.seed, dataset.epoch)
    return sample, tokens, draw


def seen(sample):
    """<int64>[B, T] the encoder's tokens at their slots (0 where it sees none) and <bool>[B, T] entering slots.

    Only for views with original positions: the columns of the encoder's batch are found by them.
    """
    layout = sample["net_input"]["layout"]
    shape = (len(SIZES), layout["padded_length"])
    tokens = np.zeros(shape, dtype=np.int64)
    source, positions = sample["net_input"]["src_tokens"].numpy(), layout["positions"].numpy()
    for row, length in enumerate(sample["net_input"]["src_lengths"].tolist()):
        tokens[row, positions[row, :length]] = source[row, :length]
    entering = np.zeros(shape, dtype=bool)
    entering.reshape(-1)[layout["decoder_slots"].numpy()] = True
    # A slot's state belongs to the token in that slot.
    flat = source.reshape(-1)[layout["decoder_rows"].numpy()]
    assert (tokens.reshape(-1)[layout["decoder_slots"].numpy()] == flat).all()
    return tokens, entering


@pytest.mark.parametrize("masked_input", MASKED_INPUTS)
@pytest.mark.parametrize("scheme", [{}, {"leave_unmasked_prob": 0.3, "random_token_prob": 0.3}])
def test_what_is_seen_and_what_returns(masked_input, scheme):
    sample, full, draw = batch(EncoderView(masked_input), **scheme)
    lengths = sample["net_input"]["src_lengths"]
    assert sample["net_input"]["layout"]["visible_tokens"] == int(lengths.sum())
    assert lengths.tolist() == (SIZES if masked_input != "dropped" else ((full != PAD) & ~draw.masked).sum(1).tolist())
    tokens, entering = seen(sample)
    inside = full != PAD
    assert sample["target"].tolist() == full[draw.predicted].tolist()
    assert (draw.predicted & ~draw.masked).any() == bool(scheme)
    assert (tokens[inside & ~draw.masked] == draw.tokens[inside & ~draw.masked]).all()
    assert not tokens[~inside].any() and not entering[~inside].any()
    at_masks = tokens[draw.masked]
    if masked_input == "dropped":
        assert not at_masks.any()
    elif masked_input in ("kept", "reset"):
        assert (at_masks == MASK).all()
    else:
        assert (at_masks >= 4).all() and (at_masks < MASK).all(), "a special symbol or <mask> was drawn"
        assert (at_masks != full[draw.masked]).mean() > 0.8
    assert (entering[inside & ~draw.masked]).all()
    assert (entering[draw.masked] == (masked_input in ("kept", "random_kept"))).all()


def test_delta_keeps_masks_in_the_encoder():
    for fraction in (0.0, 0.3, 1.0):
        sample, full, draw = batch(EncoderView(mask_fraction=fraction))
        tokens, entering = seen(sample)
        staying = draw.masked & keep_fraction(fraction, np.arange(len(SIZES)), 1, 1, full.shape[1])
        assert (tokens[staying] == MASK).all() and entering[staying].all()
        assert not tokens[draw.masked & ~staying].any() and not entering[draw.masked & ~staying].any()
        assert sample["target"].tolist() == full[draw.predicted].tolist()
        assert staying.any() == (fraction > 0)


def test_fraction_is_met_and_grows_by_inclusion():
    draws = [keep_fraction(fraction, np.arange(500), 3, 2, 200) for fraction in (0.2, 0.5, 0.9)]
    for fraction, draw in zip((0.2, 0.5, 0.9), draws):
        assert abs(draw.mean() - fraction) < 0.01
    assert (draws[0] <= draws[1]).all() and (draws[1] <= draws[2]).all()


def test_consecutive_positions_leave_no_gaps_and_change_nothing_else():
    plain, misaligned = batch(EncoderView())[0], batch(EncoderView(positions="consecutive"))[0]
    for row, length in enumerate(misaligned["net_input"]["src_lengths"].tolist()):
        positions = misaligned["net_input"]["layout"]["positions"][row]
        assert positions[:length].tolist() == list(range(length))
        assert not positions[length:].any()
    assert not torch.equal(
        plain["net_input"]["layout"].pop("positions"), misaligned["net_input"]["layout"].pop("positions")
    )
    for name, value in plain["net_input"]["layout"].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(misaligned["net_input"]["layout"][name])), name
    assert torch.equal(plain["net_input"]["src_tokens"], misaligned["net_input"]["src_tokens"])


def test_predicting_all_tokens():
    dataset = dataset_of(SIZES, predicts_all=True)
    sample = dataset.collater([dataset[index] for index in range(len(SIZES))])
    assert sample["target"].tolist() == [token for index in range(len(SIZES)) for token in dataset.blocks[index]]
    full = sample["net_input"]["layout"]["full_tokens"]
    assert full.reshape(-1)[sample["net_input"]["layout"]["predicted_slots"]].tolist() == sample["target"].tolist()
