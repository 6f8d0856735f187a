"""Exported folders compute the same as their checkpoints, or the export is refused."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from end_to_end.toy import losses as valid_losses
from end_to_end.toy import run
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from support import usage_error

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.files.prepared_folder import FORMAT
from fairseq_maelm.interop.export import exporter
from fairseq_maelm.interop.export.exporter import Export, ExportSettings, export
from fairseq_maelm.interop.export.target import AUTO_CLASSES, default_format
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from interop.export.checkpoints import HEADS, MODERN, shuffle_dictionary, train_vocabulary, write_checkpoint

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

# Stock MPNet computes these buckets, whatever its configuration says.
MPNET_BUCKETS = {"relative_num_buckets": 32, "relative_max_distance": 128}
STOCK: dict[str, dict[str, Any]] = {
    "mpnet": MPNET_BUCKETS,
    "roberta": {"relative_buckets": "none", "max_positions": 64},
    "modernbert": {"layer": "modern", "positions": "rotary"},
}
MLM = {"task": {"masked_input": "kept"}, "decoder_layers": 0}
TEXTS = ["The <mask> house by the <mask> has three windows<mask>", "Nobody <mask> there.", "<mask>"]
CLASSES = {architecture: getattr(transformers, name) for architecture, name in AUTO_CLASSES.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with labels for sentences."""
    folder = train_vocabulary(tmp_path_factory.mktemp("data"))
    shuffle_dictionary(folder, surplus=3)
    (folder / "label").mkdir()
    (folder / "label" / "dict.txt").write_text("wrong 9\nright 7\nunknown 2\n", encoding="utf-8")
    return folder


def exported(tmp_path: Path, data: Path, form: str, settings: dict[str, Any] | None = None, **options: Any) -> Export:
    """Write a checkpoint and export it."""
    write_checkpoint(tmp_path / "checkpoint.pt", data, **options)
    chosen = ExportSettings(**{"format": form, **(settings or {})})
    return export(tmp_path / "checkpoint.pt", data, tmp_path / "folder", chosen)


def opened(done: Export, architecture: str | None = None) -> tuple[Any, Any]:
    """Open the tokenizer and the model of a folder after our classes were imported."""
    import fairseq_maelm.hf  # noqa: F401

    tokenizer = transformers.AutoTokenizer.from_pretrained(done.folder)
    model = CLASSES[architecture or done.target.architecture].from_pretrained(done.folder)
    return tokenizer, model.eval()


def hub_of(tmp_path: Path, data: Path) -> Any:
    """Open the checkpoint by the hub interface."""
    return MaelmModel.from_pretrained(str(tmp_path), "checkpoint.pt", str(data))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare within 1e-5, relative to the largest value if that is above 1."""
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * scale)


# Filling masks

VARIANTS: dict[str, dict[str, Any]] = {
    "roberta": {**MLM, "relative_buckets": "none"},
    "mpnet": {**MLM, **MPNET_BUCKETS},
    "modernbert": {**MODERN, **MLM, "encoder_layers": 5, "local_attention": 6, "global_every": 2},
}


@pytest.mark.parametrize("form", VARIANTS)
def test_masks_are_filled_as_by_the_hub(form: str, data: Path, tmp_path: Path) -> None:
    done = exported(tmp_path, data, form, scale=0.15, **VARIANTS[form])
    assert [each.what for each in done.agreements] == ["hidden states", "masked-lm scores"]
    assert all(each.single <= 1e-5 * max(1, each.size) and each.size > 0.1 for each in done.agreements)
    tokenizer, model = opened(done)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = model(**batch).logits
    probabilities = logits[batch.input_ids == tokenizer.mask_token_id].softmax(dim=-1)
    filled = [mask for masks in hub_of(tmp_path, data).fill_mask(TEXTS, topk=5) for mask in masks]
    assert len(filled) == len(probabilities) == 5
    for candidates, row in zip(filled, probabilities):
        best = row.topk(5).values
        torch.testing.assert_close(torch.tensor([each.probability for each in candidates]), best, rtol=1e-4, atol=1e-7)


# The encoder and fine-tuned heads


@pytest.mark.parametrize(
    ("model", "form"),
    [
        (MPNET_BUCKETS, "mpnet"),
        ({"relative_num_buckets": 64}, "maelm"),
        ({"relative_buckets": "none"}, "roberta"),
        ({"layer": "modern", "positions": "rotary", "relative_buckets": "none"}, "modernbert"),
    ],
)
def test_the_default_is_the_stock_model_that_computes_the_same(
    data: Path, tmp_path: Path, model: dict[str, Any], form: str
) -> None:
    write_checkpoint(tmp_path / "checkpoint.pt", data, **model)
    assert default_format(load_with_model(tmp_path / "checkpoint.pt", data)) == form


@pytest.mark.parametrize(
    ("form", "head", "architecture"),
    [
        ("mpnet", "sentence_classification_head", "sequence-classification"),
        ("modernbert", "mean_head", "sequence-classification"),
        ("maelm", "spans", "question-answering"),
        ("roberta", "tags", "token-classification"),
    ],
)
def test_heads_score_as_before(form: str, head: str, architecture: str, data: Path, tmp_path: Path) -> None:
    task = {"_name": {"spans": "maelm_squad", "tags": "maelm_tagging"}.get(head, "sentence_prediction")}
    done = exported(tmp_path, data, form, scale=0.2, task=task, heads=(head,), **STOCK.get(form, {}))
    assert done.target.architecture == architecture
    tokenizer, model = opened(done)
    batch = tokenizer(["the old house", "a river"], ["by the river", "three"], return_tensors="pt", padding=True)
    with torch.no_grad():
        expected, _ = load_with_model(tmp_path / "checkpoint.pt", data).model(
            batch.input_ids, classification_head_name=head
        )
        output = model(**batch)
    found = torch.stack(output[:2], dim=-1) if architecture == "question-answering" else output.logits
    assert expected.shape[-1] == HEADS[head][1]
    inside = ... if expected.dim() == 2 else batch.attention_mask.bool()
    assert_close(found[inside], expected[inside])
    names = model.config.id2label
    if architecture == "sequence-classification":
        assert names == {0: "wrong", 1: "right", 2: "unknown"}
    elif architecture == "token-classification":
        assert names == {number: f"LABEL_{number}" for number in range(5)}


def test_labels_may_be_given_and_must_fit(data: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("O\nB-PER\nI-PER\nB-LOC\nI-LOC\n", encoding="utf-8")
    done = exported(tmp_path, data, "maelm", {"labels": labels}, heads=("tags",))
    assert json.loads((done.folder / "config.json").read_text())["id2label"]["1"] == "B-PER"
    for text, message in (("O\nB\n", "names 2 labels, but the head has 5 outputs"), ("O\n" * 5, "names a label twice")):
        labels.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            export(tmp_path / "checkpoint.pt", data, tmp_path / "other", ExportSettings("maelm", labels=labels))


def test_labels_next_to_the_checkpoint_are_found_with_another_vocabulary(data: Path, tmp_path: Path) -> None:
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    layout = {"form": "conll", "column": "-1"}
    settings = {"labels": labels, "scheme": "iob2", "file_scheme": "iob2", "layout": layout}
    parts = {"kind": "tagging", "format": FORMAT, "settings": {}, "files": {}, "outputs": {}, "tagging": settings}
    (tmp_path / "manifest.json").write_text(json.dumps(parts))
    done = exported(tmp_path, data, "maelm", task={"_name": "maelm_tagging"}, heads=("tags",))
    assert list(json.loads((done.folder / "config.json").read_text())["id2label"].values()) == labels


# Refusals


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {}, "its --relative-num-buckets is 8, but MPNet always computes 32"),
        (
            {},
            {**MPNET_BUCKETS, "relative_buckets": "none"},
            "its --relative-buckets is none, but MPNet always computes t5.*--format maelm represents its encoder",
        ),
        ({"architecture": "masked-lm"}, MPNET_BUCKETS, "predicts masked tokens by its decoder"),
        (
            {"architecture": "masked-lm"},
            {**MPNET_BUCKETS, "decoder_layers": 0},
            "does not predict from <mask> .--masked-input dropped",
        ),
        ({"architecture": "sequence-classification"}, MPNET_BUCKETS, "has no fine-tuned head"),
        (
            {"architecture": "question-answering"},
            {**MPNET_BUCKETS, "heads": ("tags",)},
            "a start and an end, but the head 'tags' has 5 outputs",
        ),
        (
            {"architecture": "token-classification"},
            {**MPNET_BUCKETS, "heads": ("sentence_classification_head",)},
            "scores whole sequences",
        ),
        (
            {"architecture": "masked-lm"},
            {**MPNET_BUCKETS, "heads": ("tags",)},
            "the checkpoint has no LM head",
        ),
        ({"format": "roberta"}, {}, "but Roberta always computes none.*--format maelm represents its encoder"),
        ({"format": "modernbert"}, {}, "but ModernBert always computes modern.*--format maelm represents its encoder"),
        (
            {"format": "maelm"},
            {"layer": "modern", "positions": "rotary"},
            "its --layer is modern, but Maelm always computes post_norm",
        ),
        (
            {"architecture": "sequence-classification"},
            {**MPNET_BUCKETS, "heads": ("mean_head",)},
            "reads the mean of all states, and MPNetForSequenceClassification the first token.s",
        ),
        (
            {"format": "distilbert"},
            {"relative_buckets": "none"},
            "its --layer-norm-eps is 1e-05, but DistilBert always computes 1e-12",
        ),
        ({}, {"heads": ("tags", "spans")}, "several heads: choose one of tags, spans with --head"),
    ],
)
def test_what_stock_models_cannot_hold_is_refused(
    settings: dict, options: dict, message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        exported(tmp_path, data, "mpnet", settings, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt"]


def test_the_encoder_of_mae_lm_is_exported_without_a_prediction_head(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = exported(tmp_path, data, "mpnet", **MPNET_BUCKETS)
    assert done.target.class_name == "MPNetModel"
    assert "without prediction of masks: it predicts masked tokens by its decoder" in caplog.text
    from safetensors import safe_open

    with safe_open(done.folder / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
    assert "pooler.dense.weight" in names and not any(name.startswith(("lm_head", "decoder")) for name in names)


def test_the_lm_head_goes_along_on_demand_and_is_measured(data: Path, tmp_path: Path) -> None:
    """The stock class predicts by the encoder and the head; a head that knows nothing has the loss of guessing."""
    own = tmp_path / "data"
    own.mkdir()
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (own / name).write_bytes((data / name).read_bytes())
    builder = MMapIndexedDatasetBuilder(str(own / "valid.bin"), dtype=np.uint16)
    for number in range(40):
        builder.add_item(torch.tensor([*range(10 + number, 25 + number), 2]))
    builder.finalize(str(own / "valid.idx"))
    task = {"mask_prob": 0.3, "protect_special_tokens": True, "sample_break_mode": "eos", "tokens_per_sample": 12}
    write_checkpoint(tmp_path / "checkpoint.pt", own, task, **STOCK["roberta"], decoder_attention="cross")
    state = torch.load(tmp_path / "checkpoint.pt")
    state["cfg"]["criterion"] = {"_name": "maelm"}
    torch.save(state, tmp_path / "checkpoint.pt")

    def measured(name: str) -> tuple[Export, list[float]]:
        settings = ExportSettings("roberta", with_mlm_head=True)
        done = export(tmp_path / "checkpoint.pt", own, tmp_path / name, settings)
        line = re.search(r": (.+) with masks in the input .* (.+) with the decoder .* held-out", done.remarks[0])
        assert line is not None and done.remarks[0] in (done.folder / "README.md").read_text()
        return done, [float(number) for number in line.groups()]

    done, losses = measured("trained")
    assert done.target is not None and done.target.class_name == "RobertaForMaskedLM"
    assert [each.what for each in done.agreements] == ["hidden states", "masked-lm scores"]
    guessing = math.log2(len(load_with_model(tmp_path / "checkpoint.pt", own).dictionary))
    assert losses[0] != losses[1] and min(losses) > guessing
    words = ["fairseq-validate", own, "--path", tmp_path / "checkpoint.pt", "--task", "maelm", "--criterion", "maelm"]
    words += ["--mask-prob", 0.3, "--protect-special-tokens", "--sample-break-mode", "eos", "--tokens-per-sample", 12]
    validated = run([*words, "--batch-size", 8, "--cpu", "--num-workers", 0, "--log-format", "json"])
    assert losses[1] == pytest.approx(valid_losses(validated, "valid")[0], abs=0.006)
    for name in ("layer_norm.weight", "layer_norm.bias", "bias"):
        state["model"][f"lm_head.{name}"].zero_()
    torch.save(state, tmp_path / "checkpoint.pt")
    assert measured("blank")[1] == pytest.approx([guessing] * 2, abs=0.006)


# Verification, and files after a failure


def amplify_rounding(checkpoint: Path) -> None:
    """Give a checkpoint a head as trained ones are: `dense` has the spectral norm 7, where states do not vary."""
    state = torch.load(checkpoint)
    weights, embedding = state["model"], state["model"]["encoder.embed_tokens.weight"]
    embedding *= 1.37 / embedding.norm(dim=1, keepdim=True)
    for name in [name for name in weights if "layer_norm" in name or name in ("lm_head.dense.bias", "lm_head.bias")]:
        weights[name].fill_(float("norm.weight" in name))
    dense = weights["lm_head.dense.weight"]
    dense *= 0.02 / torch.linalg.matrix_norm(dense, 2)
    # The numbers of a state after a LayerNorm without affine part sum to 0.
    dense += 7 * torch.outer(F.normalize(torch.randn(len(dense)), dim=0), F.normalize(torch.ones(len(dense)), dim=0))
    torch.save(state, checkpoint)


def test_rounding_is_no_defect_and_a_billionth_is(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "checkpoint.pt", data, **MLM, **STOCK["roberta"])
    amplify_rounding(tmp_path / "checkpoint.pt")
    scores = export(tmp_path / "checkpoint.pt", data, tmp_path / "right", ExportSettings("roberta")).agreements[1]
    assert scores.what == "masked-lm scores" and 3 < scores.size < 10
    assert scores.single > 1e-5 * scores.size and scores.difference < 1e-12 * scores.size
    honest = exporter.model_weights

    def with_a_defect(*arguments: Any) -> dict[str, torch.Tensor]:
        weights = honest(*arguments)
        weights["lm_head.bias"][9] += 1e-9 * scores.size
        return weights

    monkeypatch.setattr(exporter, "model_weights", with_a_defect)
    with pytest.raises(ValueError, match=r"masked-lm scores differ by \d\.\de-09 .values up to"):
        export(tmp_path / "checkpoint.pt", data, tmp_path / "wrong", ExportSettings("roberta"))


def without_a_bias(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in weights.items() if name != "lm_head.bias"}


def always_a_space(files: dict[str, str]) -> dict[str, str]:
    content = json.loads(files["tokenizer.json"])
    content["pre_tokenizer"]["pretokenizers"].pop()
    return {**files, "tokenizer.json": json.dumps(content)}


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        ("model_weights", without_a_bias, "do not match transformers.*lm_head.bias"),
        ("tokenizer_files", always_a_space, "the exported tokenizer reads .* texts differently"),
    ],
)
def test_a_wrong_export_is_refused(
    function: str, change: Any, message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(exporter, function)
    monkeypatch.setattr(exporter, function, lambda *arguments: change(honest(*arguments)))
    with pytest.raises(ValueError, match=message):
        exported(tmp_path, data, "roberta", **MLM, **STOCK["roberta"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt"]


def test_card_has_the_facts_and_a_use_that_works(data: Path, tmp_path: Path) -> None:
    manifest = {
        "settings": {"vocabulary": "base"},
        "files": {"inputs": [{"file": "/somewhere/of/mine/text.txt"}]},
        "counts": {"train": {"documents": 1200, "tokens": 34567}},
    }
    own = tmp_path / "data"
    own.mkdir()
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (own / name).write_bytes((data / name).read_bytes())
    manifest["outputs"] = {"dict.txt": {"sha256": sha256_of(own / "dict.txt")}}
    (own / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    done = exported(
        tmp_path,
        own,
        "roberta",
        {"license": "mit", "name": str(tmp_path / "folder")},
        **MLM,
        **STOCK["roberta"],
        precision="bf16",
    )
    card = (done.folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\nlicense: mit\n")
    for fact in (
        "| updates | 30 |",
        "up to 16 sequences per update",
        "| vocabulary | base, ",
        "`text.txt`",
        "34,567 tokens",
        "| lr | [0.001] |",
        "| precision | bf16 |",
    ):
        assert fact in card
    assert "/somewhere" not in card
    code = card.split("```python\n")[1].split("\n```")[0]
    assert len(code.splitlines()) == 5
    import fairseq_maelm.hf  # noqa: F401

    variables: dict[str, Any] = {}
    exec(code.replace(", trust_remote_code=True", ""), variables)
    assert isinstance(variables["word"], str)


# The command


def words(tmp_path: Path, data: Path) -> list[str]:
    given = ["--checkpoint", tmp_path / "checkpoint.pt", "--vocabulary", data, "--output", tmp_path / "folder"]
    return ["export", *map(str, given)]


def test_the_command_says_what_it_has_compared(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "checkpoint.pt", data, **MLM, **MPNET_BUCKETS)
    command = words(tmp_path, data)
    cli.main([*command, "--format", "mpnet"])
    output = capsys.readouterr().out
    assert re.search(r"masked-lm scores: largest difference \d\.\d\de-1\d .*, largest value \d\.\d\de\+\d\d\n", output)
    assert output.endswith(f"{tmp_path / 'folder'}: MPNetForMaskedLM, verified\n")
    assert "--head has no effect with --format fairseq" in usage_error(
        capsys, [*command, "--format", "fairseq", "--head", "a"]
    )


@pytest.mark.parametrize("averaged", [True, False])
def test_checkpoints_of_fairseq_are_whole(averaged: bool, data: Path, tmp_path: Path) -> None:
    """The checkpoint has the averaged weights, its vocabulary and labels, and no optimizer state."""
    write_checkpoint(tmp_path / "checkpoint.pt", data, heads=("tags",), task={"_name": "maelm_tagging"})
    outputs = {"dict.txt": {"sha256": sha256_of(data / "dict.txt")}}
    (data / "manifest.json").write_text(json.dumps({"outputs": outputs}), encoding="utf-8")
    state = torch.load(tmp_path / "checkpoint.pt")
    average = {name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in state["model"].items()}
    precise = {"encoder.embed_tokens.weight": average["encoder.embed_tokens.weight"] + 1, "_extra_state": -1}
    state["extra_state"] |= {"ema": average, "ema_fp32_params": {n: torch.as_tensor(t) for n, t in precise.items()}}
    torch.save({**state, "last_optimizer_state": {"large": torch.ones(9)}}, tmp_path / "checkpoint.pt")
    cli.main([*words(tmp_path, data), "--format", "fairseq", *(["--averaged-weights"] if averaged else [])])
    (data / "manifest.json").unlink()
    names = {path.name for path in (tmp_path / "folder").iterdir()}
    assert names == {"checkpoint_best.pt", "dict.txt", "sentencepiece.bpe.model", "manifest.json"}
    written = torch.load(tmp_path / "folder" / "checkpoint_best.pt")
    expected = (
        state["model"]
        if not averaged
        else {**average, "encoder.embed_tokens.weight": precise["encoder.embed_tokens.weight"]}
    )
    assert written["model"].keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written["model"].items())
    assert "last_optimizer_state" not in written and "ema" not in written["extra_state"]
    assert written["optimizer_history"][-1]["num_updates"] == 30
    model = load_with_model(tmp_path / "folder" / "checkpoint_best.pt").model
    same = load_with_model(tmp_path / "checkpoint.pt", data, averaged=averaged).model
    assert torch.equal(model.encoder.embed_tokens.weight, same.encoder.embed_tokens.weight)
