"""Imported models are trained further by the real commands, from the preparation of text on."""

import json
from pathlib import Path

import pytest
import torch
from end_to_end.toy import run, write_corpus

from fairseq_maelm.interop.importing.run import import_model
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import MODEL_FILE

from . import sources

# One update that changes nothing, so that the loaded weights are saved.
STILL = ["--optimizer", "sgd", "--lr", "0", "--batch-size", "4", "--max-update", "1", "--cpu", "--num-workers", "0"]
STILL += ["--disable-validation", "--log-format", "json"]


def parameters(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return state


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], prefix: str = "") -> None:
    names = [name for name in first if name.startswith(prefix)]
    assert len(names) > 10
    assert all(torch.equal(first[name], second[name]) for name in names)


@pytest.mark.slow
def test_pretraining_goes_on_over_byte_pairs(tmp_path: Path) -> None:
    folder = sources.roberta_folder(tmp_path / "source")
    output = run(["maelm", "import", folder, "--output", tmp_path / "imported"])
    assert "hidden states: largest difference " in output and "masked-lm scores: largest difference " in output
    printed = [
        line.split(": ", 1)[1].split() for line in output.splitlines() if line.startswith(("model:", "continued"))
    ]
    write_corpus(tmp_path / "text.txt", documents=30)
    run(
        ["maelm", "prepare", "corpus", tmp_path / "text.txt", "--output", tmp_path / "data"]
        + ["--vocabulary", tmp_path / "imported", "--valid-fraction", 0.1, "--workers", 1]
    )
    assert (tmp_path / "data" / TOKENIZER_FILE).exists() and not (tmp_path / "data" / MODEL_FILE).exists()
    facts = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert facts["counts"]["train"]["unknown_tokens"] == 0 and facts["settings"]["vocabulary"] == "imported"
    checkpoint = tmp_path / "imported" / "checkpoint_best.pt"
    run(
        ["fairseq-train", tmp_path / "data", "--criterion", "maelm", *STILL, *printed[0], *printed[1]]
        + ["--tokens-per-sample", 40, "--restore-file", checkpoint, "--save-dir", tmp_path / "saved"]
    )
    saved = parameters(tmp_path / "saved" / "checkpoint_last.pt")
    assert saved.keys() == parameters(checkpoint).keys()
    assert_equal(parameters(checkpoint), saved)


@pytest.mark.slow
def test_fine_tuning_starts_from_it(tmp_path: Path) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source")
    import_model(checkpoint, tmp_path / "imported")
    lines = "the sailor rows\tsea\nthe cook fries\tkitchen\n" * 4
    (tmp_path / "table.tsv").write_text(lines)
    prepare = ["maelm", "prepare", "sentences", "--vocabulary", tmp_path / "imported"]
    run([*prepare, "--train", tmp_path / "table.tsv", "--valid", tmp_path / "table.tsv", "--output", tmp_path / "task"])
    checkpoint = tmp_path / "imported" / "checkpoint_best.pt"
    run(
        ["maelm", "finetune", tmp_path / "task", "--checkpoint", checkpoint, "--output", tmp_path / "saved"]
        + ["--batch-size", 8, "--gpus", 0, "--", "--lr", 0, "--max-update", 1, "--weight-decay", 0],
    )
    saved = parameters(tmp_path / "saved" / "checkpoint_last.pt")
    assert any(name.startswith("classification_heads.") for name in saved)
    assert_equal(saved, parameters(checkpoint), "encoder.")


@pytest.mark.slow
def test_the_epsilon_of_layer_norm_goes_all_the_way(tmp_path: Path) -> None:
    """transformers' default of 1e-12 is kept by import, fine-tuning and export; another value is refused."""
    folder = sources.roberta_folder(tmp_path / "source", layer_norm_eps=1e-12)
    assert "--layer-norm-eps 1e-12" in run(["maelm", "import", folder, "--output", tmp_path / "imported"])
    lines = "the sailor rows\tsea\nthe cook fries\tkitchen\n" * 4
    (tmp_path / "table.tsv").write_text(lines)
    prepare = ["maelm", "prepare", "sentences", "--vocabulary", tmp_path / "imported"]
    run([*prepare, "--train", tmp_path / "table.tsv", "--valid", tmp_path / "table.tsv", "--output", tmp_path / "task"])
    checkpoint, saved = tmp_path / "imported" / "checkpoint_best.pt", tmp_path / "saved"
    fine_tune = ["maelm", "finetune", tmp_path / "task", "--checkpoint", checkpoint, "--output", saved]
    fine_tune += ["--batch-size", 8, "--gpus", 0, "--", "--max-update", 1]
    refused = run([*fine_tune, "--layer-norm-eps", 1e-5], check=False)
    assert "--layer-norm-eps 1e-05 contradicts the checkpoint" in refused
    run(fine_tune)
    own = torch.load(saved / "checkpoint_last.pt", weights_only=True)["cfg"]["model"]
    assert own["layer_norm_eps"] == 1e-12
    export = ["maelm", "export", "--checkpoint", saved / "checkpoint_last.pt", "--format", "maelm"]
    assert "verified" in run([*export, "--output", tmp_path / "folder"])
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["layer_norm_eps"] == 1e-12
