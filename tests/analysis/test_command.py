"""``maelm analyze`` from checkpoints to tables and figures."""

import csv
import json
from pathlib import Path

import pytest
import torch

from fairseq_maelm import cli
from fairseq_maelm.checkpoints.fit import SETTINGS

pytest.importorskip("matplotlib")

# A small pretrained run, with its vocabulary in its data folder only.
KEPT = Path(__file__).resolve().parents[1] / "end_to_end" / "kept"
DATA = KEPT / "data"
CHECKPOINT = KEPT / "checkpoint_last.pt"
FIGURES = {"figure_1a_rank", "figure_1b_rank_of_mask", "figure_5a_rank_pretrained"}
SMALL = ("--tokens", 600, "--max-length", 48, "--batch-tokens", 512)


@pytest.fixture
def mlm(tmp_path: Path) -> Path:
    """Return a checkpoint whose configuration says that its encoder saw <mask>."""
    state = torch.load(CHECKPOINT)
    state["cfg"]["task"]["masked_input"] = "kept"
    torch.save(state, tmp_path / "mlm.pt")
    return tmp_path / "mlm.pt"


@pytest.fixture
def fine_tuned(tmp_path: Path) -> Path:
    """Return a checkpoint as after fine-tuning: without decoder and LM head, with a classification head."""
    state = torch.load(CHECKPOINT)
    kept = {key: value for key, value in state["model"].items() if key.startswith("encoder.") or key == SETTINGS}
    head = "classification_heads.sentence_classification_head."
    width = kept["encoder.embed_tokens.weight"].shape[1]
    kept[head + "dense.weight"], kept[head + "dense.bias"] = torch.zeros(width, width), torch.zeros(width)
    kept[head + "out_proj.weight"], kept[head + "out_proj.bias"] = torch.zeros(2, width), torch.zeros(2)
    torch.save({**state, "model": kept}, tmp_path / "tuned.pt")
    return tmp_path / "tuned.pt"


def analyze(output: Path, *options: object) -> None:
    cli.main(["analyze", "--output", str(output), "--device", "cpu", *map(str, options)])


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_analysis_of_checkpoints(
    mlm: Path, fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "analysis"
    # The folder of a run can be given instead of its checkpoint.
    models = [f"--checkpoint=MAE-LM={KEPT}", f"--checkpoint=MLM={mlm}"]
    analyze(output, *models, "--data", DATA, *SMALL)
    assert capsys.readouterr().out == f"{output}\n"
    assert {path.name for path in (output / "figures").iterdir()} == {
        f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")
    }

    results = json.loads((output / "results.json").read_text())
    assert [result["kind"] for result in results] == ["maelm", "mlm"]
    assert {row["condition"] for row in results[0]["ranks"]} == {"whole", "masked", "dropped"}
    assert {row["condition"] for row in results[1]["ranks"]} == {"whole", "masked"}
    for row in results[0]["ranks"]:
        energies = torch.tensor(row["singular_values"], dtype=torch.float64).square()
        assert len(energies) == results[0]["width"]
        share = energies.cumsum(dim=0) / energies.sum()
        assert share[row["effective_rank"] - 1] >= 0.9 - 1e-6
        assert row["effective_rank"] == 1 or share[row["effective_rank"] - 2] < 0.9 + 1e-6
    # The embeddings of <mask> differ only in their positions: fewer directions than real tokens have.
    first = {row["token_set"]: row["rows"] for row in rows(output / "ranks.csv") if row["condition"] == "masked"}
    assert 0.1 < int(first["mask"]) / int(first["all"]) < 0.2
    theorem = rows(output / "theorem.csv")
    assert {row["weights"] for row in theorem} == {"trained", "random"}
    assert all(row["holds"] == "True" for row in theorem if row["proved"] == "True")
    assert {row["tau"] for row in theorem} == {"0.9"}

    before = (output / "models" / "MLM.json").stat().st_mtime_ns
    analyze(output, f"--checkpoint=MLM={mlm}", f"--checkpoint=tuned={fine_tuned}", "--data", DATA, *SMALL)
    assert (output / "models" / "MLM.json").stat().st_mtime_ns == before, "a finished model was run again"
    assert {row["model"] for row in rows(output / "ranks.csv")} == {"MAE-LM", "MLM", "tuned"}
    assert (output / "figures" / "figure_5b_rank_fine_tuned.svg").exists()
    with pytest.raises(SystemExit, match="other settings.*tau"):
        analyze(output, *models, "--data", DATA, *SMALL, "--tau", 0.8)
    with pytest.raises(SystemExit, match="a different model"):
        analyze(output, f"--checkpoint=MLM={CHECKPOINT}", "--data", DATA, *SMALL)


def test_models_are_compared_on_one_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A cook bakes the bread.\n" * 20)
    known = (f"--checkpoint=MAE-LM={KEPT}", "--text", text, "--vocabulary", DATA, *SMALL)
    analyze(tmp_path / "analysis", *known)
    text.write_text("Every sailor takes the harbour home.\n" * 20)
    with pytest.raises(SystemExit, match="MAE-LM.json has results from before the text changed"):
        analyze(tmp_path / "analysis", *known)
