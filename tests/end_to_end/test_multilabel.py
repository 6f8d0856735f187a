"""Rows with any number of labels, from the table to the exported folder: equal probabilities everywhere."""

import json
import random
from pathlib import Path

import pytest
import torch

from end_to_end.toy import TOPICS, losses, metrics_in, run, sentence
from fairseq_maelm import MaelmModel

transformers = pytest.importorskip("transformers")


def write_table(path: Path, rows: int) -> None:
    """Write sentences about none, one or two topics, labeled with these topics."""
    generator = random.Random(rows)
    lines = ["text,tags"]
    for _ in range(rows):
        topics = generator.sample(sorted(TOPICS), generator.choice((0, 1, 1, 2)))
        text = " ".join(sentence(topic, generator) for topic in topics) or "It was late."
        lines.append(f'"{text}",{"|".join(topics)}')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_probabilities_are_those_of_transformers(toy_data: Path, pretrained: Path, tmp_path: Path) -> None:
    for name, rows in (("train", 320), ("valid", 40)):
        write_table(tmp_path / f"{name}.csv", rows)
    task, tuned, folder = tmp_path / "task", tmp_path / "tuned", tmp_path / "folder"
    columns = ["--text", "text", "--label", "tags"]
    tables = ["--train", tmp_path / "train.csv", "--valid", tmp_path / "valid.csv", *columns, "--label-separator", "|"]
    run(["maelm", "prepare", "sentences", *tables, "--vocabulary", toy_data, "--output", task])
    words = ["maelm", "finetune", task, "--checkpoint", pretrained, "--output", tuned, "--gpus", 0, "--lr", 1e-3]
    words += ["--pooling", "first"]  # the exported class reads the first token
    said = run([*words, "--epochs", 12, "--batch-size", 16, "--", "--num-workers", 0])
    best = max(losses(said, "valid", "micro_f1"))
    assert best > 60 and losses(said, "valid", "macro_f1") and losses(said, "valid", "subset_accuracy")

    predict = ["maelm", "predict", "--checkpoint", tuned, "--device", "cpu"]
    said = run([*predict, tmp_path / "valid.csv", *columns, "--output", tmp_path / "predicted.tsv", "--report"])
    assert round(metrics_in(said)["micro_f1"], 1) == best
    assert all(f"{topic}  " in said for topic in TOPICS) and "micro avg" in said
    lines = [line.split("\t") for line in (tmp_path / "predicted.tsv").read_text().splitlines()]
    assert lines[0] == ["labels", *(f"P({topic})" for topic in sorted(TOPICS)), "text"]
    predicted = torch.tensor([[float(cell) for cell in line[1:5]] for line in lines[1:]])
    chosen = ["|".join(topic for topic, there in zip(sorted(TOPICS), row >= 0.5) if there) for row in predicted]
    assert [line[0] for line in lines[1:]] == chosen and len({*chosen}) > 3
    of_split = run([*predict, task, "--output", tmp_path / "split.tsv"])
    assert metrics_in(of_split)["micro_f1"] == pytest.approx(best, abs=0.05)

    hub, texts = MaelmModel.from_pretrained(str(tuned), "checkpoint_best.pt"), [line[5] for line in lines[1:]]
    of_hub = torch.tensor([[*each.values()] for each in hub.class_probabilities(texts)])
    torch.testing.assert_close(of_hub, predicted, rtol=0, atol=1e-4)
    head = hub.predict("sentence_classification_head", hub.encode(texts[0]))[0]
    torch.testing.assert_close(head.exp().detach(), of_hub[0], rtol=0, atol=1e-5)
    assert ["|".join(label for label, _ in each) for each in hub.classify(texts)] == chosen

    run(["maelm", "export", "--checkpoint", tuned, "--output", folder])
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification" and [*config["label2id"]] == sorted(TOPICS)
    assert ".nonzero()]" in (folder / "README.md").read_text()
    pipeline = transformers.pipeline(
        "text-classification", str(folder), top_k=None, trust_remote_code=True, device="cpu"
    )
    found = [{each["label"]: each["score"] for each in row} for row in pipeline(texts)]
    of_pipeline = torch.tensor([[row[topic] for topic in sorted(TOPICS)] for row in found])
    torch.testing.assert_close(of_pipeline, of_hub, rtol=0, atol=1e-5)
