"""The task, apart from what the end-to-end tests show."""

import multiprocessing
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support import dictionary_of

from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig


class Blocks:
    """Eight sequences in memory with the interface of ``TokenBlocks``."""

    sizes = np.full(8, 10)

    def __len__(self):
        return 8

    def read(self, indices, filler):
        return np.tile(np.arange(4, 14), (len(indices), 1)), self.sizes[indices]


def task_of(**changes) -> MaelmTask:
    defaults = {name: field.default for name, field in MaelmTaskConfig.__dataclass_fields__.items()}
    return MaelmTask(SimpleNamespace(**{**defaults, "data": "", "seed": 1, **changes}), dictionary_of(40))


def test_workers_end_with_their_epoch():
    """fairseq keeps an epoch's workers for the next one, which here has an iterator of its own: they would add up."""
    task = task_of()
    dataset = MaskedBlockDataset(Blocks(), task.scheme, Symbols(1, task.mask_index), EncoderView(), seed=1)
    for epoch in range(1, 4):
        # fairseq-train reads ahead through a buffer, which runs the loader to its end.
        batches = task.get_batch_iterator(
            dataset, max_sentences=2, num_workers=1, epoch=epoch, data_buffer_size=10
        ).next_epoch_itr()
        assert sum(batch["nsentences"] for batch in batches) == 8
        deadline = time.monotonic() + 20
        while multiprocessing.active_children() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not multiprocessing.active_children(), "workers outlive their epoch"


class UnequalBlocks:
    """Thirty sequences of 6 to 15 tokens."""

    sizes = np.arange(30) % 10 + 6

    def __len__(self):
        return 30

    def read(self, indices, filler):
        lengths = self.sizes[indices]
        return np.where(np.arange(lengths.max()) < lengths[:, None], 4 + np.asarray(indices)[:, None], filler), lengths


@pytest.mark.parametrize("num_shards", [1, 2])
def test_workers_and_ranks_change_no_batch(num_shards):
    """Every rank gets equally many batches, all together every sequence once, the same from any number of workers."""
    task = task_of()
    dataset = MaskedBlockDataset(UnequalBlocks(), task.scheme, Symbols(1, task.mask_index), EncoderView(), seed=1)

    def epoch_of(rank: int, workers: int) -> list[dict]:
        iterator = task.get_batch_iterator(
            dataset, max_tokens=64, num_workers=workers, epoch=2, num_shards=num_shards, shard_id=rank
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


@pytest.mark.parametrize("length", [0, 1, 2**17])
def test_impossible_lengths(length):
    with pytest.raises(ValueError, match="tokens-per-sample"):
        task_of(tokens_per_sample=length)


def test_options_reach_the_scheme():
    plain = task_of().scheme
    assert plain.word_starts is None and plain.protected is None and plain.mask_prob == 0.15
    scheme = task_of(mask_whole_words=True, protect_special_tokens=True, random_token_prob=0.1).scheme
    assert scheme.word_starts is not None and scheme.protected is not None and scheme.random_token_prob == 0.1
