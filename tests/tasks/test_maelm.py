"""The pretraining task: workers, options and masking rates."""

import multiprocessing
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import dictionary_of, model_of

from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.launch import progress
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig

# As in fairseq-train: a thread reads the loader to its end. Workers of a loader that is not read to its end may be
# waited for, five seconds each, wherever Python happens to collect garbage.
READ_AHEAD = {"data_buffer_size": 10}


class UnequalBlocks:
    """Thirty sequences of 6 to 15 tokens in memory, with the interface of ``TokenBlocks``."""

    sizes = np.arange(30) % 10 + 6

    def __len__(self):
        return 30

    def read(self, indices, filler, width):
        lengths = self.sizes[indices]
        return np.where(np.arange(width) < lengths[:, None], 4 + np.asarray(indices)[:, None], filler), lengths


def task_of(**changes) -> MaelmTask:
    defaults = {name: field.default for name, field in MaelmTaskConfig.__dataclass_fields__.items()}
    return MaelmTask(SimpleNamespace(**{**defaults, "data": "", "seed": 1, **changes}), dictionary_of(40))


def test_workers_end_with_their_epoch():
    """fairseq keeps an epoch's workers for the next epoch, which has a new iterator here: they would accumulate."""
    task, others = task_of(), set(multiprocessing.active_children())
    dataset = MaskedBlockDataset(UnequalBlocks(), task.scheme, Symbols(1, task.mask_index), EncoderView(), seed=1)
    for epoch in range(1, 4):
        batches = task.get_batch_iterator(
            dataset, max_sentences=8, num_workers=1, epoch=epoch, **READ_AHEAD
        ).next_epoch_itr()
        assert sum(batch["nsentences"] for batch in batches) == 30
        deadline = time.monotonic() + 20
        while set(multiprocessing.active_children()) - others and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not set(multiprocessing.active_children()) - others, "workers outlive their epoch"


@pytest.mark.parametrize("num_shards", [1, 2])
def test_workers_and_ranks_change_no_batch(num_shards):
    """All ranks get equally many batches with each sequence once, whatever the number of workers."""
    task = task_of()
    dataset = MaskedBlockDataset(UnequalBlocks(), task.scheme, Symbols(1, task.mask_index), EncoderView(), seed=1)

    def epoch_of(rank: int, workers: int) -> list[dict]:
        iterator = task.get_batch_iterator(
            dataset, max_tokens=64, num_workers=workers, epoch=2, num_shards=num_shards, shard_id=rank, **READ_AHEAD
        )
        return list(iterator.next_epoch_itr())

    plain = [epoch_of(rank, workers=0) for rank in range(num_shards)]
    assert len({len(batches) for batches in plain}) == 1
    seen = [index for batches in plain for batch in batches if batch for index in batch["id"].tolist()]
    assert sorted(seen) == list(range(30))
    for batch, other in zip(plain[0], epoch_of(0, workers=2), strict=True):
        assert batch["id"].tolist() == other["id"].tolist()
        assert batch["target"].tolist() == other["target"].tolist()
        assert batch["net_input"]["src_tokens"].tolist() == other["net_input"]["src_tokens"].tolist()


def test_no_text_is_left_out_for_too_small_batches():
    task = task_of()
    dataset = MaskedBlockDataset(UnequalBlocks(), task.scheme, Symbols(1, task.mask_index), EncoderView(), seed=1)
    # The trainer's limit on positions is the smaller one of the model's and of --max-tokens.
    with pytest.raises(ValueError, match="--max-tokens 12 is less than the 15 tokens of the longest sequence"):
        task.get_batch_iterator(dataset, max_tokens=12, max_positions=12, ignore_invalid_inputs=True)


def test_options_reach_the_scheme():
    plain = task_of().scheme
    assert plain.word_starts is None and plain.protected is None and plain.mask_prob == 0.15
    scheme = task_of(mask_whole_words=True, protect_special_tokens=True, random_token_prob=0.1).scheme
    assert scheme.word_starts is not None and scheme.protected is not None and scheme.random_token_prob == 0.1


class Run:
    """A run with 15 batches of two sequences in each epoch, with the interface of fairseq's trainer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, update_freq=(1,), max_update=20, **options: Any) -> None:
        limits = SimpleNamespace(max_update=max_update, update_freq=list(update_freq))
        self.cfg, self.updates, self.model = SimpleNamespace(optimization=limits), 0, model_of()
        monkeypatch.setattr(progress._Run, "trainer", lambda: self)
        self.task = task_of(**{"mask_prob": 0.5, "mask_prob_end": 0.1, **options})
        self.dataset = MaskedBlockDataset(
            UnequalBlocks(), self.task.scheme, Symbols(1, self.task.mask_index), self.task.encoder_view, seed=1
        )

    def get_num_updates(self) -> int:
        return self.updates

    def get_model(self) -> Any:
        return self.model

    def batches(self, epoch=1, state=None, **options: Any) -> Any:
        options = {**READ_AHEAD, **options}
        made = self.task.get_batch_iterator(self.dataset, max_sentences=2, epoch=epoch, seed=1, **options)
        if state is not None:
            made.load_state_dict(state)
        return made

    def rates(self, epoch=1, **options: Any) -> list[float]:
        """Return the rates of an epoch's batches in the order of reading."""
        batches = self.batches(epoch, **options)
        itr = batches.next_epoch_itr()
        return [round(batches.dataset.scheduled.mask_prob(batch["id"].numpy()), 9) for batch in itr if batch]


def rate_at(update: int) -> float:
    """Return the rate of an update of 20, which go from 0.5 to 0.1 in eight steps."""
    return round(0.5 - 0.4 * (update * 8 // 20) / 7, 9)


def test_rates_by_hand(monkeypatch):
    """From 0.45 to 0.1 in 16 updates is 0.05 less in each second update; an epoch has 15 batches."""
    run = Run(monkeypatch, mask_prob=0.45, max_update=16)
    assert run.rates() == [0.45, 0.45, 0.4, 0.4, 0.35, 0.35, 0.3, 0.3, 0.25, 0.25, 0.2, 0.2, 0.15, 0.15, 0.1]
    run.updates = 15
    assert run.rates(2) == [0.1] * 15, "never beyond the end"
    rising = Run(monkeypatch, mask_prob=0.1, mask_prob_end=0.24, max_update=8)
    assert rising.rates()[:3] == [0.1, 0.12, 0.14]


@pytest.mark.parametrize("options", [{"data_buffer_size": 0}, {"num_workers": 2}])
def test_rates_with_several_batches_an_update(monkeypatch, options):
    """Four batches an update in the first epoch, then two; each of two ranks reads every other batch."""
    run = Run(monkeypatch, update_freq=(4, 2))
    assert run.rates(**options) == [rate_at(batch // 4) for batch in range(15)]
    run.updates = 4
    assert run.rates(2, num_shards=2, shard_id=1, **options) == [rate_at(4 + batch // 2) for batch in range(7)]
    assert run.rates(2, num_shards=2, shard_id=0, **options) == [rate_at(4 + batch // 2) for batch in range(8)]


@pytest.mark.parametrize(
    "scheme", [{}, {"random_token_prob": 0.2, "leave_unmasked_prob": 0.1}, {"masked_input": "kept"}]
)
def test_batches_are_masked_at_their_rate(monkeypatch, scheme):
    """Batches are masked as with a constant rate of that value, in workers too; validation uses the last rate."""
    run = Run(monkeypatch, **scheme)
    for number, batch in enumerate(run.batches(num_workers=2).next_epoch_itr()):
        constant = Run(monkeypatch, mask_prob=rate_at(number), mask_prob_end=None, **scheme)
        expected = constant.dataset.collater(batch["id"].numpy())
        assert batch["target"].tolist() == expected["target"].tolist()
        assert batch["net_input"]["src_tokens"].tolist() == expected["net_input"]["src_tokens"].tolist()
    assert run.task.validation_scheme.mask_prob == 0.1
    validation = MaskedBlockDataset(
        run.dataset.blocks, run.task.validation_scheme, Symbols(1, 39), EncoderView(), 0, fixed_epoch=1
    )
    batches = run.task.get_batch_iterator(validation, max_sentences=2)
    batches.next_epoch_itr()
    assert batches.dataset.scheduled is None


@pytest.mark.parametrize(
    ("changes", "dtype", "few"),
    [
        ({}, None, False),
        ({"precision": "bf16"}, None, True),
        ({}, torch.bfloat16, True),
        ({"compile": True}, None, True),
        ({"precision": "bf16"}, "meta", False),
    ],
)
def test_few_shapes_where_a_model_prepares_itself_for_each(monkeypatch, changes, dtype, few):
    """That is on a CPU in half precision and in compiled layers."""
    monkeypatch.setattr(UnequalBlocks, "sizes", np.arange(30) % 10 + 36)
    run = Run(monkeypatch)
    run.model = model_of(**changes).to(dtype or torch.float32)
    lengths = {batch["net_input"]["layout"]["padded_length"] for batch in run.batches().next_epoch_itr()}
    assert lengths == ({36, 40, 44, 45} if few else set(range(36, 46)))


@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("update_freq", [1, 3])
def test_a_resumed_run_goes_on_with_the_rates(monkeypatch, update_freq, skipped):
    """This also holds if fairseq skipped updates after overflows, whose batches are used up."""
    run = Run(monkeypatch, update_freq=(update_freq,), max_update=30)
    run.updates = 5
    whole = run.rates(2)
    batches = run.batches(2)
    itr = batches.next_epoch_itr()
    for _ in range(9):
        next(itr)
    state = batches.state_dict()
    run.updates = 5 + 9 // update_freq - skipped
    assert run.rates(2, state=state) == whole[9:]
    # Again, after three more batches.
    resumed = run.batches(2, state=state)
    itr = resumed.next_epoch_itr()
    for _ in range(3):
        next(itr)
    run.updates += 3 // update_freq
    assert run.rates(2, state=resumed.state_dict()) == whole[12:]
    run.updates = 0
    assert run.rates(2, state=state)[0] == 0.5, "after --reset-optimizer the run begins its updates again"


def test_a_changing_rate_needs_an_end_of_the_run(monkeypatch):
    with pytest.raises(ValueError, match="--mask-prob-end and --half-length-until need --max-update"):
        Run(monkeypatch, max_update=0).batches()
    with pytest.raises(ValueError, match="--mask-prob-end must be above 0 and below 1"):
        task_of(mask_prob_end=1.0)


def test_validation_has_a_rate_of_its_own():
    for options, expected in (
        ({"mask_prob": 0.4}, 0.4),
        ({"mask_prob": 0.4, "mask_prob_end": 0.2}, 0.2),
        ({"mask_prob": 0.4, "mask_prob_end": 0.2, "valid_mask_prob": 0.15}, 0.15),
    ):
        task = task_of(**options)
        assert (task.scheme.mask_prob, task.validation_scheme.mask_prob) == (0.4, expected)


def test_validation_hides_the_same_tokens_whatever_the_objective(monkeypatch):
    monkeypatch.setattr(MaelmTask, "blocks_of", lambda task, paths: UnequalBlocks())
    monkeypatch.setattr(UnequalBlocks, "check_tokens", lambda *anything: None, raising=False)
    slots = []
    for options in ({}, {"random_token_prob": 0.3, "leave_unmasked_prob": 0.3}):
        task = task_of(mask_prob=0.5, masked_input="kept", **options)
        for training in (False, True):
            dataset = task.dataset_of("valid", [], MaskedBlockDataset, training)
            net_input = dataset.collater(np.arange(30))["net_input"]
            slots.append(net_input["layout"]["predicted_slots"].tolist())
            seen = net_input["src_tokens"].flatten()[slots[-1]]
            assert (seen == task.mask_index).all() == (not training or not options)
    assert slots[0] == slots[2]


def test_the_command_for_the_next_token_names_the_right_one():
    with pytest.raises(ValueError, match=r"fairseq-eval-lm evaluates .*: use fairseq-validate --task maelm"):
        task_of().eval_lm_dataloader({})
