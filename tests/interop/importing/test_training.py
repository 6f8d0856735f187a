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
    finetune = ["maelm", "finetune", tmp_path / "task", "--checkpoint", checkpoint, "--output", tmp_path / "saved"]
    finetune += ["--batch-size", 8, "--gpus", 0, "--", "--lr", 0, "--max-update", 1, "--weight-decay", 0]
    run(finetune)
    assert "this run is complete after 1 update" in run(finetune)
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


def _modernbert(folder: Path) -> None:
    """Save a folder like ModernBERT's with published kinds of layers: every third is global."""
    tokenizer = sources.byte_pairs(sources.folder_of(folder), [*sources.SPECIAL], ["<mask>"])
    sources.between(tokenizer, "<s>", "</s>")
    sizes = {"hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 72}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    settings = {**sizes, **ids, "max_position_embeddings": 200, "local_attention": 16}
    sources.save(folder, "ModernBert", tokenizer, tokenizer.get_vocab_size(), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_a_published_encoder_is_adapted_without_masks(family: str, tmp_path: Path) -> None:
    """Four commands: import, prepare, pretrain, export; the result is opened by the stock class."""
    folder = tmp_path / "source"
    if family == "roberta":
        sources.roberta_folder(folder)
    else:
        _modernbert(folder)
    run(["maelm", "import", folder, "--output", tmp_path / "base"])
    write_corpus(tmp_path / "text.txt", documents=30)
    run(
        ["maelm", "prepare", "corpus", tmp_path / "text.txt", "--vocabulary", tmp_path / "base"]
        + ["--output", tmp_path / "data", "--valid-fraction", 0.2, "--workers", 1]
    )
    pretrain = ["maelm", "pretrain", tmp_path / "data", "--checkpoint", tmp_path / "base", "--gpus", 0]
    pretrain += ["--set", "max-update=4", "batch-sequences=8", "sequences-per-gpu=8"]
    output = run([*pretrain, "--output", tmp_path / "adapted"])
    assert "the checkpoint has no decoder" in output and "--decoder-attention cross" in output
    assert "this run is complete after 4 updates" in run([*pretrain, "--output", tmp_path / "adapted"])
    before = parameters(tmp_path / "base" / "checkpoint_best.pt")
    after = parameters(tmp_path / "adapted" / "checkpoint_last.pt")
    assert any(name.startswith("decoder.") for name in after)
    moved = [
        name for name in before if name.startswith("encoder.layers") and not torch.equal(before[name], after[name])
    ]
    assert len(moved) > 10
    export = ["maelm", "export", "--checkpoint", tmp_path / "adapted", "--format", family]
    assert "verified" in run([*export, "--output", tmp_path / "stock"])
    model = sources.transformers.AutoModel.from_pretrained(tmp_path / "stock")
    assert model.config.model_type == family
    original = json.loads((folder / "config.json").read_text())
    for name in ("local_attention", "hidden_size", "max_position_embeddings"):
        assert getattr(model.config, name, None) == original.get(name)


def test_continued_pretraining_refuses_what_does_not_fit(tmp_path: Path) -> None:
    sources.roberta_folder(tmp_path / "source")
    import_model(tmp_path / "source", tmp_path / "base")
    write_corpus(tmp_path / "text.txt", documents=10)
    run(["maelm", "prepare", "corpus", tmp_path / "text.txt", "--output", tmp_path / "other", "--workers", 1]
        + ["--vocabulary-size", 300, "--valid-fraction", 0.2])  # fmt: skip
    pretrain = ["maelm", "pretrain", tmp_path / "other", "--output", tmp_path / "new", "--dry-run"]
    refused = run([*pretrain, "--checkpoint", tmp_path / "base"], check=False)
    assert "was not prepared with the vocabulary of" in refused and "maelm prepare corpus TEXT --vocabulary" in refused
    assert "--arch comes from --checkpoint" in run(
        [*pretrain, "--checkpoint", tmp_path / "base", "--arch", "x"], check=False
    )
    assert "need --checkpoint" in run([*pretrain, "--recipe", "tiny", "--objective", "mlm"], check=False)
    assert not (tmp_path / "new").exists()
