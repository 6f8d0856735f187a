"""The start of a training logs what is true and what its user can use."""

import re
from pathlib import Path

import torch
from end_to_end.small import NARROW, cut, training
from end_to_end.toy import run, toy_data
from fairseq import trainer

import fairseq_maelm

__all__ = ["toy_data"]


def test_shared_parameters_are_found_and_absent_ones_are_not() -> None:
    fairseq_maelm.register()
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    assert trainer._catalog_shared_params(model) == []
    model["b"].weight = model["a"].weight
    model["c"] = model["a"]
    assert trainer._catalog_shared_params(model) == [["a.weight", "b.weight", "c.weight"]]


def test_the_log_has_no_false_and_no_useless_lines(toy_data: Path, tmp_path: Path) -> None:
    data = cut(toy_data, tmp_path / "data", lines=4)
    output = run([*training(data, tmp_path / "run", *NARROW), "--max-update", 1, "--layer", "modern"])
    shared = re.findall(r"detected shared parameter: (\S+) <- (\S+)", output)
    assert all(name.endswith("weight") for pair in shared for name in pair), shared
    assert not re.search("Warning|rebuild_batches|reuse_dataloader|can_reuse_epoch_itr", output), output[-3000:]
