"""Batches, computed by hand and by properties: no token of a sequence is lost or doubled."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import scheme_of

from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols, halves
from fairseq_maelm.data.masking_variants import MASKED_INPUTS, EncoderView, VisibleTokens, encoder_input
from fairseq_maelm.data.schedule import Schedule, ScheduledEpoch

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

    def read(self, indices, filler, width):
        lengths = self.sizes[indices]
        tokens = np.full((len(indices), width), filler)
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
    result = encoder_input(VisibleTokens(tokens, visible), predicted, np.array([4, 3]), PAD)
    layout = result["layout"]
    assert result["src_tokens"].tolist() == [[10, 12, 13], [21, 22, PAD]]
    assert result["src_lengths"].tolist() == [3, 2]
    assert layout["positions"].tolist() == [[0, 2, 3], [1, 2, 0]]
    assert layout["lengths"].tolist() == [4, 3]
    assert layout["padded_length"] == 4
    assert layout["visible_tokens"] == 5
    assert layout["decoder_rows"].tolist() == [0, 1, 2, 3, 4]
    assert layout["decoder_slots"].tolist() == [0, 2, 3, 5, 6]
    assert layout["predicted_slots"].tolist() == [1, 4]
    assert layout["encoder_padded"] and layout["decoder_padded"]


def reassembled(sample) -> np.ndarray:
    """Return the full batch with visible tokens and targets in their slots, and 0 elsewhere."""
    layout = sample["net_input"]["layout"]
    size = len(sample["id"]) * layout["padded_length"]
    full = torch.zeros(size, dtype=torch.int64)
    count = torch.zeros(size, dtype=torch.int64)
    visible = sample["net_input"]["src_tokens"].view(-1)[layout["decoder_rows"]]
    for slots, values in ((layout["decoder_slots"], visible), (layout["predicted_slots"], sample["target"])):
        full[slots] = values
        count.index_add_(0, slots, torch.ones_like(slots))
    assert count.max() <= 1, "a slot is filled twice"
    return full.view(len(sample["id"]), -1).numpy()


@settings(max_examples=60)
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
    assert sample["ntokens"] == sum(sizes) == len(layout["decoder_rows"]) + len(sample["target"])
    rows, width = sample["net_input"]["src_tokens"].shape
    visible_positions = layout["positions"].view(-1)[layout["decoder_rows"]]
    assert (
        layout["decoder_slots"] == layout["decoder_rows"] // width * layout["padded_length"] + visible_positions
    ).all()
    padding = sample["net_input"]["src_tokens"].eq(PAD)
    assert layout["encoder_padded"] == bool(padding.any())
    assert rows * width - int(padding.sum()) == len(layout["decoder_rows"])


def test_epochs_differ_and_validation_does_not():
    training, validation = dataset_of([40] * 4), dataset_of([40] * 4, fixed_epoch=1)
    for dataset, differs in ((training, True), (validation, False)):
        samples = []
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            samples.append(dataset.collater([dataset[i] for i in range(4)]))
        first, second = (sample["net_input"]["layout"]["predicted_slots"].tolist() for sample in samples)
        assert (first != second) == differs


@settings(max_examples=60)
@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=60),
    st.integers(40, 300),
    st.one_of(st.none(), st.integers(1, 20)),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(MASKED_INPUTS),
)
def test_batches_hold_every_sequence_once_and_keep_the_bounds(sizes, max_tokens, max_sentences, multiple, masked_input):
    """--max-tokens bounds the slots of encoder and decoder, with padding."""
    dataset = dataset_of(sizes, EncoderView(masked_input), mask_prob=0.3)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens, max_sentences, multiple)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    for batch in batches:
        sample = dataset.collater(dataset.__getitems__(batch))
        rows, width = sample["net_input"]["src_tokens"].shape
        assert rows <= (max_sentences or len(sizes))
        assert rows * width <= rows * sample["net_input"]["layout"]["padded_length"] <= max_tokens


def test_batches_fill_the_bound():
    """Six sequences of 10 tokens fit into 64; the default multiple of 8 changes nothing."""
    dataset = dataset_of([10] * 20)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=64)
    assert [len(batch) for batch in batches] == [6, 6, 6, 2]


def contents(sample):
    """Return for each sequence of a batch the visible tokens and the targets, with their positions."""
    layout, net_input = sample["net_input"]["layout"], sample["net_input"]
    masked_rows = layout["predicted_slots"] // layout["padded_length"]
    found = {}
    for row, index in enumerate(sample["id"].tolist()):
        length = int(net_input["src_lengths"][row])
        targets = sample["target"][masked_rows == row], layout["predicted_slots"][masked_rows == row]
        found[index] = (
            net_input["src_tokens"][row, :length].tolist(),
            layout["positions"][row, :length].tolist(),
            targets[0].tolist(),
            (targets[1] % layout["padded_length"]).tolist(),
        )
    return found


@settings(max_examples=40)
@given(
    st.lists(st.integers(10, 40), min_size=1, max_size=12),
    st.permutations(range(12)),
    st.integers(1, 5),
    st.sampled_from([EncoderView(each) for each in MASKED_INPUTS] + [EncoderView(mask_fraction=0.5)]),
)
def test_a_sequence_is_the_same_whatever_its_batch(sizes, order, batch_size, view):
    dataset = dataset_of(sizes, view, mask_prob=0.3, leave_unmasked_prob=0.1, random_token_prob=0.1)
    alone = {}
    for index in range(len(sizes)):
        alone.update(contents(dataset.collater([dataset[index]])))
    order = [index for index in order if index < len(sizes)]
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        together = contents(dataset.collater(dataset.__getitems__(np.array(batch))))
        assert together == {index: alone[index] for index in batch}


def shapes_of(dataset, batches):
    """Return (B, S, T, M) of batches, and the fractions of predicted tokens and of padding."""
    shapes, predicted, tokens, slots = [], 0, 0, 0
    for sample in map(dataset.collater, batches):
        layout, seen = sample["net_input"]["layout"], sample["net_input"]["src_tokens"]
        shapes.append((*seen.shape, layout["padded_length"], len(layout["predicted_slots"])))
        predicted, tokens = predicted + len(sample["target"]), tokens + sample["ntokens"]
        slots += len(seen) * layout["padded_length"]
    return shapes, predicted / tokens, 1 - tokens / slots


@pytest.mark.parametrize("few_shapes", [False, True])
@pytest.mark.parametrize("end", [0.3, 0.15])
def test_full_blocks_have_one_shape_for_each_rate(few_shapes, end):
    dataset = dataset_of([64] * 800, protected=np.arange(VOCABULARY) < 10, mask_prob=0.9)
    dataset.few_shapes = few_shapes
    shapes, rates = [], []
    for epoch in (1, 2):
        dataset.set_epoch(epoch)
        batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=8)
        made = np.zeros(800, dtype=np.int32)
        for update, batch in enumerate(batches, len(shapes)):
            made[batch] = update
        dataset.scheduled = ScheduledEpoch(Schedule(0.3, end), 200, made)
        found, rate, padding = shapes_of(dataset, batches)
        shapes, rates = shapes + found, [*rates, rate]
        assert padding == 0
    assert len(shapes) == 200
    masks = [19, 18, 16, 15, 14, 12, 11, 10] if end == 0.15 else [19] * 8
    assert shapes == [(8, 64 - number, 64, 8 * number) for number in masks for _ in range(25)]
    assert abs(np.mean(rates) - (0.3 + end) / 2) < 0.005


def test_halves_by_hand():
    tokens = np.array([[0, 11, 12, 13, 14], [0, 21, 22, 23, PAD], [0, 31, PAD, PAD, PAD]])
    cut, lengths, indices = halves(tokens, np.array([5, 4, 2]), np.array([7, 3, 0]), first_symbol=0)
    assert [row[:length].tolist() for row, length in zip(cut, lengths)] == [[0, 11, 12], [0, 14], [0, 21, 22], [0, 31]]
    assert cut.shape == (4, 3) and indices.tolist() == [14, 15, 6, 0]
    cut, lengths, _ = halves(np.array([[0, 11]]), np.array([2]), np.array([1]), first_symbol=0)
    assert cut.tolist() == [[0, 11]] and lengths.tolist() == [2]


def test_short_sequences_until_a_share_of_the_updates(monkeypatch):
    dataset = dataset_of([64] * 800)
    monkeypatch.setattr(Blocks, "first_symbol", 0, raising=False)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=8)
    made = np.zeros(800, dtype=np.int32)
    for update, batch in enumerate(batches):
        made[batch] = update
    whole, _, _ = shapes_of(dataset, batches)
    dataset.scheduled = ScheduledEpoch(Schedule(0.15, 0.15, half_length_until=0.6), 100, made)
    shapes, _, padding = shapes_of(dataset, batches)
    assert shapes == [(16, 27, 32, 80)] * 60 + whole[60:] and padding == 0
    assert {len(batch) for batch in batches} == {8}, "the batches are those of a run without the option"


def test_documents_have_few_shapes_where_that_is_wanted():
    lengths = np.exp(np.random.default_rng(0).normal(5.3, 1.1, 20000)).astype(int) + 4
    dataset = dataset_of(np.minimum(lengths, 512))
    found = []
    for dataset.few_shapes in (False, True):
        batches = dataset.batch_by_size(dataset.ordered_indices(), 16384, None, 8)
        some = np.random.default_rng(1).permutation(len(batches))[:100]
        shapes, _, padding = shapes_of(dataset, [batches[place] for place in some])
        assert max(rows * length for rows, _, length, _ in shapes) <= 16384
        found.append((len(set(shapes)), padding))
    (many, little), (few, more) = found
    assert many > 60 and few <= 32 and more - little < 0.03


@settings(max_examples=60)
@given(
    st.lists(st.integers(3, 40), min_size=1, max_size=6),
    st.floats(0.01, 0.99),
    st.sampled_from([EncoderView(each) for each in MASKED_INPUTS] + [EncoderView(mask_fraction=0.5)]),
)
def test_few_shapes_change_no_content(sizes, probability, view):
    dataset = dataset_of(sizes, view, mask_prob=probability, leave_unmasked_prob=0.1, random_token_prob=0.1)
    exact = dataset.collater(range(len(sizes)))
    dataset.few_shapes = True
    padded = dataset.collater(range(len(sizes)))
    wanted = padded["net_input"]["layout"]["predicted_tokens"]
    slots = padded["net_input"]["layout"]["predicted_slots"]
    assert len(set(slots.tolist())) == len(slots) == len(sizes) * padded["net_input"]["layout"]["output_length"]
    padded["net_input"]["layout"]["predicted_slots"] = slots[:wanted]
    assert contents(padded) == contents(exact)


@pytest.mark.parametrize(
    ("sizes", "fixed_epoch", "warned"),
    [([50, 5] * 8, None, True), ([50, 5] * 8, 1, False), ([50] * 16, None, False), ([50, 49] * 8, None, False)],
)
def test_much_padding_is_told_before_the_epoch_begins(sizes, fixed_epoch, warned, caplog):
    dataset = dataset_of(sizes, fixed_epoch=fixed_epoch)
    with caplog.at_level("INFO"):
        dataset.batch_by_size(np.arange(16), max_sentences=4)
    assert "4 batches" in caplog.text
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert bool(warnings) == warned
    if warned:
        # Of 16 x 50 slots 8 x 45 are empty.
        assert "45.0 %" in warnings[0] and "--max-tokens" in warnings[0]


def test_much_padding_is_told_once(caplog):
    dataset = dataset_of([4, 40])
    for epoch in (1, 2):
        dataset.set_epoch(epoch)
        dataset.batch_by_size(dataset.ordered_indices(), max_sentences=2)
    assert caplog.text.count("45.0 % of the computation will be on padding") == 1
