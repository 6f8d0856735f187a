"""``maelm analyze`` from checkpoints made by fairseq-train to tables, figures and the page."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from end_to_end.toy import TINY_TRAINING, run, toy_data

from fairseq_maelm import cli
from fairseq_maelm.analysis.checkpoints import CheckpointEncoder
from fairseq_maelm.models import hub

pytest.importorskip("matplotlib")

__all__ = ["toy_data"]

FIGURES = {
    "figure_1a_rank",
    "figure_1b_rank_of_mask",
    "figure_5a_rank_pretrained",
    "spectrum",
    "subspace",
    "collapse",
}


@pytest.fixture(scope="module")
def checkpoints(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A few updates of MAE-LM and of MLM."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, options in (("maelm", []), ("mlm", ["--masked-input", "kept", "--decoder-layers", 0])):
        run(
            ["fairseq-train", toy_data, *TINY_TRAINING, "--disable-validation", "--max-update", 2]
            + ["--save-dir", folder / name, *options]
        )
    return {name: folder / name / "checkpoint_last.pt" for name in ("maelm", "mlm")}


def fine_tuned(checkpoint: Path, path: Path) -> Path:
    """What fine-tuning leaves of a checkpoint: no decoder and prediction head, a classification head."""
    state = torch.load(checkpoint)
    kept = {key: value for key, value in state["model"].items() if key.startswith("encoder.")}
    head = "classification_heads.sentence_classification_head."
    width = kept["encoder.embed_tokens.weight"].shape[1]
    kept[head + "dense.weight"], kept[head + "dense.bias"] = torch.zeros(width, width), torch.zeros(width)
    kept[head + "out_proj.weight"], kept[head + "out_proj.bias"] = torch.zeros(2, width), torch.zeros(2)
    torch.save({**state, "model": kept}, path)
    return path


def analyze(output: Path, *options: object) -> None:
    cli.main(["analyze", "--output", str(output), "--device", "cpu", *map(str, options)])


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


SMALL = ("--tokens", 2000, "--tokens-per-sample", 64, "--batch-tokens", 512)


@pytest.mark.slow
def test_analysis_of_checkpoints(
    checkpoints: dict[str, Path], toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "analysis"
    tuned = fine_tuned(checkpoints["mlm"], tmp_path / "tuned.pt")
    models = [f"--model=MAE-LM={checkpoints['maelm']}", f"--model=MLM={checkpoints['mlm']}"]
    analyze(output, *models, "--data", toy_data, *SMALL)
    page = output / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert text.count("<svg") == len(FIGURES)
    assert "src=" not in text.replace("xlink:href", "")
    assert "http" not in text.split("<body>")[1].split("<svg")[0]
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
    analyze(output, *models, f"--model=tuned={tuned}", "--data", toy_data, *SMALL)
    assert (output / "models" / "MLM.json").stat().st_mtime_ns == before, "a finished model was run again"
    assert (output / "figures" / "figure_5b_rank_fine_tuned.svg").exists()
    with pytest.raises(SystemExit, match="other settings.*tau"):
        analyze(output, *models, "--data", toy_data, *SMALL, "--tau", 0.8)
    with pytest.raises(SystemExit, match="another model"):
        analyze(output, f"--model=MLM={checkpoints['maelm']}", "--data", toy_data, *SMALL)


@pytest.mark.slow
def test_states_are_those_of_the_hub_interface(checkpoints: dict[str, Path], toy_data: Path) -> None:
    encoder = CheckpointEncoder(checkpoints["maelm"], toy_data)
    interface = hub.load(str(checkpoints["maelm"].parent), "checkpoint_last.pt", str(toy_data))
    tokens = interface.encode_batch(["the cook bakes slowly", "a judge decides near the bench until evening"])
    with torch.inference_mode():
        expected = interface.extract_features(tokens, return_all_hiddens=True)
        actual = encoder.hidden_states(tokens)
    assert len(actual) == len(expected) == encoder.num_layers + 1
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(actual, expected))
    line = "the cook bakes slowly"
    assert [0, *encoder.encode_line(line), 2] == interface.encode(line).tolist()


@pytest.mark.slow
def test_what_does_not_fit_is_refused(checkpoints: dict[str, Path], toy_data: Path, tmp_path: Path) -> None:
    # Away from what training lays beside it.
    model = f"--model=MAE-LM={shutil.copy(checkpoints['maelm'], tmp_path)}"
    with pytest.raises(SystemExit, match="no dict.txt"):
        analyze(tmp_path / "a", model, "--text", toy_data / "dict.txt")
    with pytest.raises(SystemExit, match="has no layer 9"):
        analyze(tmp_path / "b", model, "--data", toy_data, "--layers", "0,9")
    other = tmp_path / "other"
    other.mkdir()
    lines = (toy_data / "dict.txt").read_text().splitlines()
    (other / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
    with pytest.raises(SystemExit, match="another vocabulary"):
        analyze(tmp_path / "c", model, "--data", other)
    beside = tmp_path / "beside"
    beside.mkdir()
    for file in (checkpoints["maelm"], toy_data / "dict.txt", toy_data / "sentencepiece.bpe.model"):
        shutil.copy(file, beside)
    with pytest.raises(SystemExit, match="another dictionary"):
        analyze(tmp_path / "d", f"--model=MAE-LM={beside / 'checkpoint_last.pt'}", "--data", other)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(SystemExit, match="no line with a token"):
        analyze(tmp_path / "e", f"--model=MAE-LM={beside / 'checkpoint_last.pt'}", "--text", tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give --data or --text"),
        (["--data", "DATA", "--tau", 1.5], "--tau"),
        (["--data", "DATA", "--tokens", 0], "--tokens"),
        (["--data", "DATA", "--mask-prob", 1.0], "mask probability"),
        (["--data", "DATA", "--model", "m=DATA/weights.pt"], "name of its own"),
        (["--data", "DATA/nothing"], "there is no"),
        (["--data", "DATA", "--device", "abacus"], "--device abacus"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    options: list[object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    given = [str(option).replace("DATA", str(tmp_path)) for option in options]
    with pytest.raises(SystemExit, match=message):
        analyze(tmp_path / "out", f"--model=m={tmp_path / 'weights.pt'}", *given)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(SystemExit, match="holds no analysis"):
        analyze(tmp_path, f"--model=m={tmp_path / 'weights.pt'}", "--data", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.pt"]


@pytest.mark.parametrize("value", ["path.pt", "=path.pt", "a/b=path.pt", "name="])
def test_models_need_names(value: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        analyze(tmp_path / "out", "--model", value, "--data", tmp_path)
    assert caught.value.code == 2
