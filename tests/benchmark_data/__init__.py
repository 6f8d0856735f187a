"""Training data for the benchmarks' tests."""

from pathlib import Path

import numpy as np
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder


def prepared_data(folder: Path, tokens: int = 4000) -> Path:
    """A data folder of random words."""
    folder.mkdir()
    (folder / "dict.txt").write_text("".join(f"word{number} {100 - number}\n" for number in range(60)))
    builder = MMapIndexedDatasetBuilder(str(folder / "train.bin"), dtype=np.uint16)
    for line in np.random.default_rng(1).integers(4, 64, (tokens // 20, 20)):
        builder.add_item(torch.from_numpy(np.append(line, 2)))
    builder.finalize(str(folder / "train.idx"))
    return folder
