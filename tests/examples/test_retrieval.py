"""The example on retrieval learns to find documents, and measures them as sentence-transformers does."""

import json
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts.sources import ROOT
from interop.export.checkpoints import MODERN, train_vocabulary, write_checkpoint

from fairseq_maelm.interop.export.exporter import ExportSettings, export

for _library in ("transformers", "sentence_transformers", "datasets"):
    pytest.importorskip(_library)

PAIRS = 24


def write_task(folder: Path) -> Path:
    """Write documents and queries that share no word, with relevant pairs that can only be learned by heart."""
    words = [a + b for a in "bcdfghjk" for b in ("al", "en", "ir", "on", "ut", "es")]
    random.Random(1).shuffle(words)
    (folder / "qrels").mkdir(parents=True)
    for name, chosen in (("corpus", words[:PAIRS]), ("queries", words[PAIRS:])):
        lines = [json.dumps({"_id": f"{name[0]}{row}", "text": f"{word} " * 4}) for row, word in enumerate(chosen)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = "".join(f"q{row}\tc{row}\t1\nq{row}\tc{(row + 1) % PAIRS}\t0\n" for row in range(PAIRS))
    for split in ("train", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    return folder


def scores(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: Any) -> dict[str, float]:
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, words), "--max-length", "32"])
    runpy.run_path(str(ROOT / "examples" / "retrieval" / "train.py"), run_name="__main__")
    found: dict[str, float] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_it_learns_to_find(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    beir, data = write_task(tmp_path / "beir"), train_vocabulary(tmp_path / "data")
    write_checkpoint(tmp_path / "checkpoint.pt", data, scale=0.1, **MODERN)
    encoder = export(tmp_path / "checkpoint.pt", data, tmp_path / "encoder", ExportSettings("modernbert")).folder
    before = scores(capsys, monkeypatch, beir, encoder, "--output", tmp_path / "before", "--epochs", 0)
    more = ["--epochs", 30, "--lr", 5e-3, "--batch-size", 8, "--hard-negatives", 1]
    after = scores(capsys, monkeypatch, beir, encoder, "--output", tmp_path / "after", *more)
    assert before["recall@100"] == after["recall@100"] == 100
    assert before["ndcg@10"] < 50 < 80 < after["ndcg@10"]
    (beir / "qrels" / "train.tsv").unlink()
    again = scores(capsys, monkeypatch, beir, tmp_path / "after", "--output", tmp_path / "again", "--epochs", 0)
    assert again == after
    with pytest.raises(SystemExit):
        scores(capsys, monkeypatch, beir, encoder, "--output", tmp_path / "after")
    assert "exists already: name another folder" in capsys.readouterr().err
