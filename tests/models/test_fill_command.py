"""``maelm fill`` says what the hub's ``fill_mask`` says."""

import json
from pathlib import Path

import pytest
from support import usage_error

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.cli import main

KEPT = Path(__file__).parents[1] / "end_to_end" / "kept"
TEXTS = ["The <mask> is old.", "Every <mask> the sailor takes the <mask> home."]


@pytest.mark.parametrize("checkpoint", [KEPT, KEPT / "checkpoint_last.pt"])
def test_candidates_are_the_hubs(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fill", *TEXTS, "--checkpoint", str(checkpoint), "--vocabulary", str(KEPT / "data"), "--device", "cpu"]
    main([*words, "--top", "3", "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    hub = MaelmModel.from_pretrained(str(KEPT), "checkpoint_last.pt", str(KEPT / "data"))
    expected = hub.fill_mask(TEXTS, topk=3)
    assert [line["text"] for line in lines] == TEXTS
    for line, masks in zip(lines, expected, strict=True):
        assert [[each["token"] for each in mask] for mask in line["masks"]] == [
            [each.token for each in mask] for mask in masks
        ]
        assert line["masks"][0][0]["probability"] == pytest.approx(masks[0][0].probability)
    main([*words, "--top", "1"])
    first = expected[0][0][0]
    assert capsys.readouterr().out.startswith(f"{TEXTS[0]}\n  mask 1  {first.probability:.3f}  {first.token}\n")


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fill", TEXTS[0], "--vocabulary", str(KEPT / "data"), "--device", "cpu"]
    with pytest.raises(SystemExit, match="maelm fill: error: 'No mask.' has no <mask> to fill"):
        main([*words[:1], "No mask.", *words[2:], "--checkpoint", str(KEPT)])
    refused = usage_error(capsys, [*words, "--checkpoint", str(KEPT), "--top", "0"])
    assert refused.startswith("maelm fill: error: argument --top: must be at least 1, not 0")
    refused = usage_error(capsys, [*words, "--checkpoint", str(tmp_path)])
    assert "neither checkpoint_best.pt nor checkpoint_last.pt in" in refused
    (tmp_path / "training.log").touch()
    assert "has saved no checkpoint yet" in usage_error(capsys, [*words, "--checkpoint", str(tmp_path)])


def test_a_folder_stands_for_its_best_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_last.pt").touch()
    assert find_checkpoint(tmp_path).name == "checkpoint_last.pt"
    (tmp_path / "checkpoint_best.pt").touch()
    assert find_checkpoint(tmp_path).name == "checkpoint_best.pt"
