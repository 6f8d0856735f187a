"""--initial-output-bias frequencies: training starts where word frequencies alone lead, and only training does."""

import math

import numpy as np
import torch
from fairseq import checkpoint_utils

from end_to_end.toy import TINY_TRAINING, losses, run


def test_a_run_starts_at_the_entropy_of_the_frequencies(toy_data, tmp_path):
    still = ["--lr", "0", "--warmup-updates", "0", "--max-update", "1", "--protect-special-tokens"]
    command = ["fairseq-train", toy_data, *TINY_TRAINING, *still]
    zeros = losses(run([*command, "--no-save"]), "valid")[-1]
    options = ["--initial-output-bias", "frequencies", "--save-dir", tmp_path]
    frequencies = losses(run([*command, *options]), "valid")[-1]

    text = np.fromfile(toy_data / "train.bin", dtype=np.uint16)
    shares = np.bincount(text[text > 3]) / (text > 3).sum()
    entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum()
    # What the random weights add to the logits costs a little.
    assert entropy - 0.1 < frequencies < entropy + 0.3
    assert zeros > frequencies + 1.0

    bias = torch.load(tmp_path / "checkpoint_last.pt")["model"]["lm_head.bias"]
    assert math.isclose(bias.double().exp().sum().item(), 1.0, abs_tol=1e-5)
    # Loading reads no training text: the folder of a reader may hold the dictionary alone.
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (tmp_path / name).write_bytes((toy_data / name).read_bytes())
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "checkpoint_last.pt")], {"data": str(tmp_path)}
    )
    assert torch.equal(model.lm_head.bias, bias)
