"""The commonest job as a user does it: text, pretraining, a table of one's own, fine-tuning, predictions."""

import csv
import json
import random

import pytest

from end_to_end.toy import TOPICS, run, sentence, write_corpus


@pytest.mark.slow
def test_five_commands(tmp_path):
    write_corpus(tmp_path / "text.txt")
    generator = random.Random(3)
    topics = [generator.choice(sorted(TOPICS)) for _ in range(400)]
    for name, part in (("train", topics[:320]), ("new", topics[320:])):
        with open(tmp_path / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "review", "topic"])
            writer.writerows([number, sentence(topic, generator), topic] for number, topic in enumerate(part))

    small = ["--vocabulary-size", 400, "--workers", 1]
    run(["maelm", "prepare", "corpus", "text.txt", "--output", "data", "--valid-fraction", 0.1, *small], cwd=tmp_path)
    settings = ["--set", "max-update=40", "warmup-updates=4", "batch-sequences=16", "sequences-per-gpu=16"]
    words = ["maelm", "pretrain", "data", "--output", "pretrained", "--recipe", "tiny", "--gpus", 0, *settings]
    run([*words, "--", "--disable-validation"], cwd=tmp_path)
    columns = ["--text", "review", "--label", "topic"]
    table = ["--train", "train.csv", "--vocabulary", "pretrained", "--output", "task", *columns]
    run(["maelm", "prepare", "sentences", *table], cwd=tmp_path)
    words = ["maelm", "finetune", "task", "--checkpoint", "pretrained/checkpoint_last.pt", "--output", "tuned"]
    words += ["--gpus", 0, "--lr", 1e-3, "--epochs", 4, "--batch-size", 16]
    assert "dropping decoder" in run(words, cwd=tmp_path)
    words = ["maelm", "predict", "new.csv", "--checkpoint", "tuned/checkpoint_best.pt", *columns]
    output = run([*words, "--output", "predicted.tsv", "--device", "cpu"], cwd=tmp_path)
    assert json.loads(output.splitlines()[-1])["accuracy"] > 80, "words decide the topic"
    rows = (tmp_path / "predicted.tsv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 81 and rows[0] == "label\tprobability"
