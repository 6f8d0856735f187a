"""The amount and the choice of general blocks in the epochs of a domain."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.small import BLANK_LINE, write_split
from support import dictionary_of, scheme_of
from tasks.test_maelm import task_of

from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.tasks.general_text import MixedBlockDataset, blocks_to_mix


def test_the_share_is_one_of_tokens() -> None:
    # With 60 tokens of the domain, a quarter of general text is 20 tokens, in blocks of 8.
    assert blocks_to_mix(60, np.array([4, 8, 12] * 9), 0.25) == round(20 / 8)
    assert blocks_to_mix(60, np.array([10] * 9), 0.0) == 0
    with pytest.raises(ValueError, match="needs 9 blocks of general text in every epoch, but there are 3: give more"):
        blocks_to_mix(30, np.array([10] * 3), 0.75)


@pytest.fixture
def mixed(tmp_path: Path) -> MixedBlockDataset:
    """Ten domain lines of token 5 and forty general ones of token 6, each a document."""
    for name, lines, token in (("domain", 10, 5), ("general", 40, 6)):
        items = [item for _ in range(lines) for item in (torch.tensor([token] * 9 + [2]), BLANK_LINE)]
        write_split(tmp_path / name, items)
    blocks = TokenBlocks([str(tmp_path / "domain"), str(tmp_path / "general")], "complete_doc", 64, 0)
    dataset = MixedBlockDataset(blocks, scheme_of(40), Symbols(1, 39), EncoderView(), seed=3)
    return dataset.mix(blocks.blocks_of_files(1), [110], 3 / 8)


def test_epochs_hold_the_domain_and_their_own_general_blocks(mixed: MixedBlockDataset) -> None:
    assert (mixed.domain_blocks, mixed.general_blocks) == (10, [6])
    counts = np.zeros(50, dtype=int)
    for epoch in range(1, 21):
        mixed.set_epoch(epoch)
        indices = mixed.ordered_indices()
        assert sorted(indices)[:10] == list(range(10)) and len(indices) == len(set(indices.tolist())) == 16
        assert indices.tolist() == mixed.ordered_indices().tolist(), "an epoch is what it is, however often asked"
        counts[indices] += 1
        assert np.ptp(counts[10:]) <= 1, "the next blocks in turn, none twice"
    assert counts[10:].tolist() == [3] * 40
    batch = mixed.collater(indices.tolist())
    tokens = set(batch["target"].tolist()) | set(batch["net_input"]["src_tokens"].flatten().tolist())
    assert {5, 6} <= tokens


@pytest.mark.parametrize("resumed_at", [1, 2, 5])
def test_shards_of_unequal_length_take_all_general_blocks_equally_often(resumed_at: int, tmp_path: Path) -> None:
    """Also in a run that resumes, and has not opened the shards before."""
    folders = [tmp_path / name for name in ("small", "large", "middle", "general")]
    for folder, lines in zip(folders, (4, 24, 10, 40)):
        folder.mkdir()
        items = [item for _ in range(lines) for item in (torch.tensor([5] * 9 + [2]), BLANK_LINE)]
        write_split(folder / "train", items)
        dictionary_of(40).save(str(folder / "dict.txt"))
    *domain, general = map(str, folders)
    options = {"general_data": general, "general_ratio": 0.5, "train_subset": "train", "tokens_per_sample": 64}
    seen = []
    for first in (1, resumed_at):
        task, epochs = task_of(data=":".join(domain), **options), []
        for epoch in range(first, 13):
            task.load_dataset("train", epoch=epoch, combine=True)
            dataset: Any = task.dataset("train")
            dataset.set_epoch(epoch)
            chosen = np.bincount(dataset.ordered_indices(), minlength=len(dataset))
            assert chosen[: dataset.domain_blocks].tolist() == [1] * (4, 24, 10)[(epoch - 1) % 3]
            epochs.append(chosen[dataset.domain_blocks :])
        seen.append(np.array(epochs))
    assert np.ptp(seen[0].cumsum(axis=0), axis=1).max() <= 1
    assert np.array_equal(seen[0][resumed_at - 1 :], seen[1])
