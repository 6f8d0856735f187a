"""A save folder is enough: with all data moved away, its checkpoints are used, exported and fine-tuned."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end import test_finetuning, test_prompting
from end_to_end.toy import TINY_TRAINING, TOPICS, run, sentence
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


@pytest.fixture(scope="module")
def pretrained(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The save folder of a pretraining whose data are gone."""
    root = tmp_path_factory.mktemp("pretraining")
    shutil.copytree(toy_data, root / "data")
    own = ["--max-positions", 64, "--max-update", 2, "--disable-validation", "--save-dir", root / "saved"]
    run(["fairseq-train", root / "data", *TINY_TRAINING, *own])
    shutil.rmtree(root / "data")
    assert companions(root / "saved") == VOCABULARY
    assert all((root / "saved" / name).read_bytes() == (toy_data / name).read_bytes() for name in VOCABULARY)
    return root / "saved"


@pytest.mark.slow
def test_pretrained(pretrained, toy_data, tmp_path, capsys):
    checkpoint, text = pretrained / LAST, tmp_path / "text.txt"
    text.write_text(f"{TEXT}\n", encoding="utf-8")
    hubs = [MaelmModel.from_pretrained(str(pretrained), LAST, *data) for data in ([], [str(toy_data)])]
    (own,), (given,) = (hub.fill_mask("The <mask> rows.", topk=3) for hub in hubs)
    assert own == given
    maelm(
        "analyze", "--checkpoint", f"a={checkpoint}", "--text", text, "--tokens", 100, "--output", tmp_path / "analysis"
    )
    rows = "".join(f"{sentence(topic, random.Random(1))}\t{topic}\n" for topic in sorted(TOPICS))
    (tmp_path / "table.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "topics.yaml").write_text(test_prompting.PROMPT, encoding="utf-8")
    prompt = ["--prompt", tmp_path / "topics.yaml", "--several-pieces"]
    maelm("predict", tmp_path / "table.tsv", "--checkpoint", checkpoint, *prompt)
    assert "accuracy" in json.loads(capsys.readouterr().out.splitlines()[-1])
    pytest.importorskip("transformers")
    maelm("export", "--checkpoint", checkpoint, "--format", "maelm", "--output", tmp_path / "exported")
    assert (tmp_path / "exported" / "tokenizer.json").exists()


@pytest.mark.slow
def test_another_vocabulary_is_refused_before_training(pretrained, toy_data, tmp_path):
    folder, other = tmp_path / "saved", tmp_path / "other"
    shutil.copytree(pretrained, folder)
    shutil.copytree(toy_data, other)
    lines = (other / "dict.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    (other / "dict.txt").write_text("".join([lines[1], lines[0], *lines[2:]]), encoding="utf-8")
    (other / "manifest.json").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    more = ["--max-positions", 64, "--max-update", 4, "--disable-validation", "--save-dir", folder]
    output = run(["fairseq-train", other, *TINY_TRAINING, *more], check=False)
    assert output.splitlines()[-1].startswith(f"fairseq-train: error: {folder}/dict.txt differs from {other}/dict")
    assert "Traceback" not in output and "begin training epoch" not in output
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # The same vocabulary goes on, as it did before folders held any.
    (folder / "dict.txt").unlink()
    run(["fairseq-train", toy_data, *TINY_TRAINING, *more])
    assert companions(folder) == VOCABULARY
    assert torch.load(folder / LAST)["optimizer_history"][-1]["num_updates"] == 4


@pytest.mark.slow
def test_sentences(pretrained, tmp_path):
    task = test_finetuning.prepare_task(tmp_path, pretrained, test_finetuning.topic_of_a_sentence)
    saved = tmp_path / "saved"
    test_finetuning.finetune(task, pretrained / LAST, saved, "--max-update", 1)
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
    maelm("export", "--checkpoint", saved / LAST, "--format", "mpnet", "--output", tmp_path / "exported")
    labels = json.loads((tmp_path / "exported" / "config.json").read_text())["id2label"]
    assert sorted(labels.values()) == sorted(TOPICS)
