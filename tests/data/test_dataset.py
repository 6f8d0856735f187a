"""Batches: worked out by hand, and nothing lost or doubled between the full sequence and what the model gets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import scheme_of

from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.encoder_view import MASKED_INPUTS, EncoderView, Shown, encoder_input

VOCABULARY, PAD, MASK = 40, 1, 39


class Blocks:
    """Sequences in memory with the interface of ``TokenBlocks``."""

    def __init__(self, sequences):
        self.sequences = [np.array(sequence) for sequence in sequences]
        self.sizes = np.array([len(sequence) for sequence in sequences])

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return self.sequences[index]

    def read(self, indices, filler):
        lengths = self.sizes[indices]
        tokens = np.full((len(indices), lengths.max()), filler)
        for row, index in zip(tokens, indices):
            row[: self.sizes[index]] = self.sequences[index]
        return tokens, lengths


MAELM = EncoderView()


def dataset_of(sizes, view=MAELM, fixed_epoch=None, seed=1, predicts_all=False, **scheme):
    generator = np.random.default_rng(0)
    sequences = [np.concatenate([[0], generator.integers(4, MASK, size - 1)]) for size in sizes]
    blocks, symbols = Blocks(sequences), Symbols(PAD, MASK)
    return MaskedBlockDataset(blocks, scheme_of(**scheme), symbols, view, seed, fixed_epoch, predicts_all)


def test_encoder_input_by_hand():
    """Two sequences of 4 and 3 tokens; position 1 of the first and 0 of the second are masked."""
    tokens = np.array([[10, 11, 12, 13], [20, 21, 22, PAD]])
    predicted = np.array([[False, True, False, False], [True, False, False, False]])
    inside = tokens != PAD
    visible = inside & ~predicted
    result = encoder_input(Shown(tokens, visible, visible), predicted, np.array([4, 3]), PAD)
    layout = result["layout"]
    assert result["src_tokens"].tolist() == [[10, 12, 13], [21, 22, PAD]]
    assert result["src_lengths"].tolist() == [3, 2]
    assert layout["positions"].tolist() == [[0, 2, 3], [1, 2, 0]]
    assert layout["full_lengths"].tolist() == [4, 3]
    assert layout["full_length"] == 4
    assert layout["visible_tokens"] == 5
    assert layout["visible_rows"].tolist() == [0, 1, 2, 3, 4]
    assert layout["visible_slots"].tolist() == [0, 2, 3, 5, 6]
    assert layout["masked_slots"].tolist() == [1, 4]
    assert layout["encoder_padded"] and layout["decoder_padded"]


def reassembled(sample) -> np.ndarray:
    """Put visible tokens and targets back into their slots: the full batch, 0 where nothing came."""
    layout = sample["net_input"]["layout"]
    size = len(sample["id"]) * layout["full_length"]
    full = torch.zeros(size, dtype=torch.int64)
    count = torch.zeros(size, dtype=torch.int64)
    visible = sample["net_input"]["src_tokens"].view(-1)[layout["visible_rows"]]
    for slots, values in ((layout["visible_slots"], visible), (layout["masked_slots"], sample["target"])):
        full[slots] = values
        count.index_add_(0, slots, torch.ones_like(slots))
    assert count.max() <= 1, "a slot is filled twice"
    return full.view(len(sample["id"]), -1).numpy()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(1, 9))
def test_split_and_reassembled_is_whole(sizes, probability, epoch):
    dataset = dataset_of(sizes, mask_prob=probability)
    dataset.set_epoch(epoch)
    sample = dataset.collater([dataset[i] for i in range(len(sizes))])
    full = reassembled(sample)
    for row, index in enumerate(sample["id"].tolist()):
        assert full[row, : sizes[index]].tolist() == dataset.blocks[index].tolist()
        assert not full[row, sizes[index] :].any()
    layout = sample["net_input"]["layout"]
    assert sample["ntokens"] == sum(sizes) == len(layout["visible_rows"]) + len(sample["target"])
    rows, width = sample["net_input"]["src_tokens"].shape
    visible_positions = layout["positions"].view(-1)[layout["visible_rows"]]
    assert (
        layout["visible_slots"] == layout["visible_rows"] // width * layout["full_length"] + visible_positions
    ).all()
    padding = sample["net_input"]["src_tokens"].eq(PAD)
    assert layout["encoder_padded"] == bool(padding.any())
    assert rows * width - int(padding.sum()) == len(layout["visible_rows"])


def test_kept_masks_show_the_mask_symbol():
    dataset = dataset_of([30, 20], EncoderView("kept"), mask_prob=0.3)
    sample = dataset.collater([dataset[0], dataset[1]])
    dropped = dataset_of([30, 20], mask_prob=0.3)
    same = dropped.collater([dropped[0], dropped[1]])
    shown = sample["net_input"]["src_tokens"].view(-1)
    assert (sample["target"] == same["target"]).all(), "masks must not depend on what the encoder sees"
    assert (shown[sample["net_input"]["layout"]["masked_slots"]] == MASK).all()
    assert int((shown == MASK).sum()) == len(sample["target"])
    assert sample["net_input"]["src_lengths"].tolist() == [30, 20]


def test_tokens_left_in_place_are_visible_and_predicted():
    dataset = dataset_of([50], mask_prob=0.5, leave_unmasked_prob=1.0)
    sample = dataset.collater([dataset[0]])
    assert sample["net_input"]["src_tokens"][0].tolist() == dataset.blocks[0].tolist()
    assert (dataset.blocks[0][sample["net_input"]["layout"]["masked_slots"]] == sample["target"].numpy()).all()
    assert len(sample["target"]) == 25


def test_epochs_differ_and_validation_does_not():
    training, validation = dataset_of([40] * 4), dataset_of([40] * 4, fixed_epoch=1)
    for dataset, differs in ((training, True), (validation, False)):
        samples = []
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            samples.append(dataset.collater([dataset[i] for i in range(4)]))
        first, second = (sample["net_input"]["layout"]["masked_slots"].tolist() for sample in samples)
        assert (first != second) == differs


def test_order_is_by_length_and_anew_each_epoch():
    dataset = dataset_of([5, 9, 5, 9, 5, 9, 5, 9])
    orders = []
    for epoch in (1, 2, 1):
        dataset.set_epoch(epoch)
        orders.append(dataset.ordered_indices().tolist())
        assert [int(dataset.sizes[i]) for i in orders[-1]] == [5] * 4 + [9] * 4
    assert orders[0] == orders[2] != orders[1]


def test_empty_batch():
    assert dataset_of([5]).collater([]) == {}


@pytest.mark.parametrize("masked_input", MASKED_INPUTS)
def test_batch_moves_between_devices_like_any_sample(masked_input):
    """fairseq walks through the sample; everything must survive that walk."""
    from fairseq import utils

    dataset = dataset_of([12, 8], EncoderView(masked_input))
    sample = dataset.collater([dataset[0], dataset[1]])
    moved = utils.apply_to_sample(lambda tensor: tensor.clone(), sample)
    assert moved["net_input"]["layout"].keys() == sample["net_input"]["layout"].keys()
    assert isinstance(moved["net_input"]["layout"]["full_length"], int)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize(("number", "limits"), [(4, {"max_sentences": 4}), (20, {"max_tokens": 64}), (9, {})])
def test_no_sequence_is_left_out_of_the_batches(number, limits, multiple):
    """fairseq would drop a last batch of another size than a multiple of 8."""
    data = dataset_of([6] * number)
    indices = data.ordered_indices()
    batches = data.batch_by_size(indices, required_batch_size_multiple=multiple, **limits)
    assert np.concatenate(batches).tolist() == indices.tolist()
    assert max(map(len, batches)) * 6 <= limits.get("max_tokens", 1000)
    assert max(map(len, batches)) <= limits.get("max_sentences", 1000)
