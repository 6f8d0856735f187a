"""A save folder is enough: with all data moved away, its checkpoints are used, exported and fine-tuned."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end import test_finetuning
from end_to_end.toy import TOPICS
from fairseq_maelm import MaelmModel, cli

VOCABULARY = ["dict.txt", "sentencepiece.bpe.model"]
LAST = "checkpoint_last.pt"
TEXT = "The sailor takes the rope to the harbour."


def maelm(*words: Any) -> None:
    """Run the package's command line in this process."""
    cli.main([str(word) for word in words])


def companions(folder: Path) -> list[str]:
    """What a save folder holds besides checkpoints."""
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not name.endswith(".pt"))


@pytest.mark.slow
def test_sentences(pretrained, tmp_path):
    assert companions(pretrained.parent) == VOCABULARY
    task = test_finetuning.prepare_task(tmp_path, pretrained.parent, test_finetuning.topic_of_a_sentence)
    saved = tmp_path / "saved"
    test_finetuning.finetune(task, pretrained, saved, "--max-update", 1)
    with_data = MaelmModel.from_pretrained(str(saved), LAST, str(task))
    shutil.rmtree(task)
    assert companions(saved) == [*(f"input0/{name}" for name in VOCABULARY), "label/dict.txt"]
    hub = MaelmModel.from_pretrained(str(saved), LAST)
    tokens = hub.encode(TEXT)
    assert torch.equal(hub.predict(test_finetuning.HEAD, tokens), with_data.predict(test_finetuning.HEAD, tokens))
    assert hub.task.label_dictionary.symbols == with_data.task.label_dictionary.symbols
    text = tmp_path / "text.txt"
    text.write_text(f"{TEXT}\n", encoding="utf-8")
    maelm(
        "analyze",
        "--checkpoint",
        f"a={saved / LAST}",
        "--text",
        text,
        "--tokens",
        100,
        "--output",
        tmp_path / "analysis",
    )
    pytest.importorskip("transformers")
    maelm(
        "export",
        "--checkpoint",
        saved / LAST,
        "--format",
        "maelm",
        "--architecture",
        "sequence-classification",
        "--output",
        tmp_path / "exported",
    )
    labels = json.loads((tmp_path / "exported" / "config.json").read_text())["id2label"]
    assert sorted(labels.values()) == sorted(TOPICS)
