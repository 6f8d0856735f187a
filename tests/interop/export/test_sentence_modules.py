"""Heads that no class of transformers computes become modules of sentence-transformers, and give the same scores."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import logging_kept

from fairseq_maelm import cli
from fairseq_maelm.interop.export import sentence_modules
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from interop.export.checkpoints import HEADS, train_vocabulary, write_checkpoint
from interop.export.test_elsewhere import without_package

pytest.importorskip("sentence_transformers")

MEAN, FIRST = "mean_head", "sentence_classification_head"
ABSOLUTE = {"relative_buckets": "none"}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", MEAN, ABSOLUTE),
    "roberta": ("roberta", MEAN, ABSOLUTE),
    "mpnet": ("mpnet", MEAN, {"relative_num_buckets": 32, "relative_max_distance": 128}),
    "ours": ("maelm", MEAN, {}),
    "electra": ("electra", FIRST, ABSOLUTE),
    "distilbert": ("distilbert", FIRST, {**ABSOLUTE, "layer_norm_eps": 1e-12}),
}
TEXTS = ["the old house has three windows", "a river", "Nobody lives there, by the river."]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_vocabulary(tmp_path_factory.mktemp("data"))
    (folder / "label").mkdir()
    (folder / "label" / "dict.txt").write_text("wrong 9\nright 7\nunknown 2\n", encoding="utf-8")
    return folder


def exported(tmp_path: Path, data: Path, case: str, dtype: str = "float32", **task: Any) -> torch.Tensor:
    """Export a checkpoint with a head to the folder ``folder``, and return its scores of ``TEXTS``."""
    form, head, options = CASES[case]
    task = {"_name": "maelm_sentences", **task}
    write_checkpoint(tmp_path / "checkpoint.pt", data, task, (head,), 0.2, **options)
    done = export(tmp_path / "checkpoint.pt", data, tmp_path / "folder", ExportSettings(form, dtype=dtype))
    assert [each.what for each in done.agreements] == ["hidden states", "sequence-classification scores"]
    assert done.remarks[-1].endswith("with its head, for sentence-transformers, verified")
    source = load_with_model(tmp_path / "checkpoint.pt", data)
    rows = [torch.tensor([0, *source.tokenizer.encode(text), 2])[None] for text in TEXTS]
    with torch.no_grad():
        return torch.cat([source.model(row, classification_head_name=head)[0] for row in rows])


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_the_scores(case: str, data: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    import fairseq_maelm.hf  # noqa: F401

    expected = exported(tmp_path, data, case).numpy()
    found = SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    np.testing.assert_allclose(found.encode(TEXTS), expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))
    assert expected.shape == (3, HEADS[CASES[case][1]][1]) and found[0].auto_model.config.id2label[1] == "right"


@pytest.mark.parametrize(("task", "labels"), [({}, 3), ({"label_separator": "|"}, 3)], ids=["classes", "sets"])
def test_the_lines_of_the_card_run_elsewhere(task: dict, labels: int, data: Path, tmp_path: Path) -> None:
    scores = exported(tmp_path, data, "bert", "float16", **task)
    card = (tmp_path / "folder" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: sentence-transformers\npipeline_tag: text-classification\n")
    code = card.split("```python\n")[1].split("\n```")[0].replace('["A sentence.", "And one more."]', str(TEXTS))
    assert len(code.splitlines()) <= 10
    before = 'import sys\nsys.modules["fairseq"] = sys.modules["fairseq_maelm"] = None\n'
    said = without_package(before + code, tmp_path / "folder").stdout.splitlines()
    names = ["wrong", "right", "unknown"]
    if task:
        assert said == [str([names[i] for i in row.nonzero()]) for row in scores >= 0]
    else:
        for line, row in zip(said, scores.softmax(dim=-1), strict=True):
            label, probability = line.split()
            assert label == names[int(row.argmax())] and float(probability) == pytest.approx(float(row.max()), abs=0.02)


TOLD: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "mean": (ABSOLUTE, [], "`maelm export` will write RobertaModel with its head, for sentence-transformers"),
    "first": (ABSOLUTE, ["--pooling", "first"], "`maelm export` will write RobertaForSequenceClassification"),
    "refused": ({"local_attention": 8}, [], "cannot become a MaelmForSequenceClassification .*--local-attention is 8"),
}


@pytest.mark.parametrize("case", TOLD)
def test_fine_tuning_begins_with_what_can_be_exported(
    case: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, words, expected = TOLD[case]
    write_checkpoint(tmp_path / "base" / "checkpoint_last.pt", data, **options)
    shutil.copy(data / "dict.txt", tmp_path / "base")
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text("an old house\tright\na river\twrong\n", encoding="utf-8")
    tables = ["--train", tmp_path / "train.tsv", "--valid", tmp_path / "valid.tsv", "--output", tmp_path / "task"]
    cli.main(["prepare", "sentences", "--vocabulary", str(data), *map(str, tables)])
    run = ["--checkpoint", tmp_path / "base", "--output", tmp_path / "run", "--gpus", "0", "--dry-run", *words]
    with logging_kept():
        cli.main(["finetune", *map(str, [tmp_path / "task", *run])])
    assert re.search(expected, capsys.readouterr().err)


def test_a_wrong_module_is_found(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_modules, "_TANH", "torch.nn.modules.activation.Sigmoid")
    with pytest.raises(ValueError, match="sequence-classification scores differ by"):
        exported(tmp_path, data, "bert")
    assert not (tmp_path / "folder").exists()
