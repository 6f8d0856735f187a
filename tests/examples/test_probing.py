"""The example on probing finds what the states of trained and random weights know, in every layer."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.sources import ROOT

from fairseq_maelm import MaelmModel

PROGRAM = ROOT / "examples" / "probing" / "probe.py"
CHECKPOINT = "maelm-english-14m-uncased"


@pytest.mark.parametrize("columns", [1, 2])
def test_classes_that_a_word_decides_are_found_in_every_layer(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [("a warm and funny film", "good"), ("a dull waste of time", "bad")] * 4
    first = "a warm and funny film\t" * (columns - 1)
    lines = [f"{first}{text}\t{label}" for text, label in texts]
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["--train", str(tmp_path / "train.tsv"), "--test", str(tmp_path / "test.tsv"), f"ours={CHECKPOINT}"]
    monkeypatch.setattr(sys, "argv", ["probe.py", *words])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    rows: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 2 * 7 * 2 and {row["model"] for row in rows} == {"ours"}
    # The embedding of <s> is the same in every text.
    blind = [row["accuracy"] for row in rows if row["layer"] == 0 and row["pooling"] == "first"]
    seen = [row["accuracy"] for row in rows if row["pooling"] == "mean" or row["layer"]]
    assert set(blind) == {0.5} and set(seen) == {1.0}


def test_states_leave_special_tokens_out_of_the_mean() -> None:
    program = runpy.run_path(str(PROGRAM))
    hub = MaelmModel.from_pretrained(CHECKPOINT)
    states = hub.extract_features(hub.encode("a warm film"), return_all_hiddens=True)
    found = program["states_of"](hub, ["a warm film"], 128)
    for layer, each in enumerate(states):
        assert np.allclose(found[layer, 0, 0], each[0, 1:-1].mean(dim=0).detach(), atol=1e-4)
        assert np.allclose(found[layer, 1, 0], each[0, 0].detach(), atol=1e-4)
