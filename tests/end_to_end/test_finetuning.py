"""From a pretrained checkpoint to a classifier: the commands, the checkpoints and the hub interface."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from end_to_end.toy import TOPICS, losses, run, sentence
from fairseq_maelm import MaelmHubInterface, MaelmModel
from fairseq_maelm.cli import main

HEAD = "sentence_classification_head"

# A line of a table: the sentences and the label.
Line = tuple[str, ...]


def topic_of_a_sentence(generator: random.Random) -> Line:
    """Classification: which topic is the sentence about?"""
    topic = generator.choice(sorted(TOPICS))
    return sentence(topic, generator), topic


def same_topic(generator: random.Random) -> Line:
    """Classification of a pair: are both sentences about the same topic?"""
    first, second = generator.choice(sorted(TOPICS)), generator.choice(sorted(TOPICS))
    return sentence(first, generator), sentence(second, generator), "same" if first == second else "different"


def write_tables(folder: Path, line: Callable[[random.Random], Line], sizes: tuple[int, int]) -> list[Any]:
    """Write tables for training and validation, and return the options that name them."""
    generator = random.Random(5)
    for split, examples in zip(("train", "valid"), sizes):
        lines = ["\t".join(line(generator)) for _ in range(examples)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--train", folder / "train.tsv", "--valid", folder / "valid.tsv"]


def prepare_task(
    folder: Path, data: Path, line: Callable[[random.Random], Line], sizes: tuple[int, int] = (160, 40)
) -> Path:
    """Write tables and prepare them."""
    tables = write_tables(folder, line, sizes)
    run(["maelm", "prepare", "sentences", "--vocabulary", data, "--output", folder / "task", *tables])
    return folder / "task"


def table(task: Path, split: str = "valid") -> list[Line]:
    """Read the table that a task was prepared from."""
    lines = (task.parent / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]


def finetune(task: Path, checkpoint: Path, save_dir: Path, *options: Any, epochs: int = 5, lr: float = 1e-3) -> str:
    """Run the recipe on the CPU."""
    words = ["maelm", "finetune", task, "--checkpoint", checkpoint, "--output", save_dir, "--gpus", 0, "--lr", lr]
    return run([*words, "--epochs", epochs, "--batch-size", 16, *options, "--", "--num-workers", 0])


def hub_logits(hub: MaelmHubInterface, lines: list[Line]) -> torch.Tensor:
    """Score every line by itself: <float>[lines, classes]."""
    with torch.no_grad():
        return torch.cat([hub.predict(HEAD, hub.encode(*line[:-1]), return_logits=True) for line in lines])


@pytest.fixture(scope="module")
def topics(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the classification task."""
    return prepare_task(tmp_path_factory.mktemp("topics"), toy_data, topic_of_a_sentence)


@pytest.mark.slow
def test_classification(topics, pretrained, tmp_path):
    output = finetune(topics, pretrained, tmp_path)
    assert re.search(
        r"dropping decoder, lm_head of the checkpoint \([\d,]+ parameters\): not needed for fine-tun", output
    )
    accuracies = losses(output, "valid", "accuracy")
    assert len(accuracies) == 1, "too few rows to choose among epochs: the last one is validated and kept"
    assert max(accuracies) > 60, "four equally frequent classes, decided by the sentence's words"
    assert (tmp_path / "checkpoint_last.pt").samefile(tmp_path / "checkpoint_best.pt"), "equal, stored once"

    validation = run(
        ["fairseq-validate", topics, "--path", tmp_path / "checkpoint_best.pt", "--task", "maelm_sentences"]
        + ["--criterion", "maelm_sentences", "--batch-size", 8, "--cpu", "--log-format", "json", "--num-workers", 0]
    )
    assert losses(validation, "valid", "accuracy") == [max(accuracies)]

    hub = MaelmModel.from_pretrained(str(tmp_path), "checkpoint_best.pt", str(topics))
    lines, labels = table(topics), hub.task.labels.names
    logits = hub_logits(hub, lines)
    predicted = [labels[int(row.argmax())] for row in logits]
    correct = sum(guess == line[-1] for guess, line in zip(predicted, lines))
    assert round(100 * correct / len(predicted), 1) == max(accuracies)

    classified = hub.classify([line[0] for line in lines], HEAD, batch_size=7)
    assert [label for label, _ in classified] == predicted
    every = hub.class_probabilities([line[0] for line in lines])
    assert all(list(each) == sorted(TOPICS) for each in every)
    rows = torch.tensor([list(each.values()) for each in every])
    torch.testing.assert_close(rows, logits.softmax(dim=-1), rtol=1e-4, atol=1e-5)
    assert [probability for _, probability in classified] == pytest.approx([max(e.values()) for e in every], rel=1e-4)
    for given in (topics.parent / "valid.tsv", topics):
        output = tmp_path / f"{given.name}.predicted"
        command = ["maelm", "predict", given, "--checkpoint", tmp_path / "checkpoint_best.pt", "--vocabulary", topics]
        said = run([*command, "--output", output, "--device", "cpu"])
        assert round(json.loads(said.splitlines()[-1].partition("metrics: ")[2])["accuracy"], 1) == max(accuracies)
        rows = [row.split("\t") for row in output.read_text(encoding="utf-8").splitlines()]
        assert rows[0][:2] == ["label", "probability"] and [row[0] for row in rows[1:]] == predicted
        found = torch.tensor([[float(cell) for cell in row[2 : 2 + logits.shape[1]]] for row in rows[1:]])
        torch.testing.assert_close(found, logits.softmax(dim=-1), rtol=0, atol=2e-4)


@pytest.mark.slow
def test_the_weights_before_and_after_training_are_mixed(topics, pretrained, tmp_path):
    weights, outputs = {}, {}
    # With --patience, nothing is mixed.
    for name, lr, options in (("start", 0.0, []), ("end", 1e-2, ["--patience", 9]), ("mixed", 1e-2, [])):
        outputs[name] = finetune(topics, pretrained, tmp_path / name, *options, epochs=1, lr=lr)
        weights[name] = torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)["model"]
    said = next(line for line in outputs["mixed"].splitlines() if "is kept" in line)
    tried = {int(share) / 100: float(loss) for share, loss in re.findall(r"(\d+) %: ([\d.]+)", said)}
    assert list(tried) == [0, 0.25, 0.5, 0.75, 1]
    # Weights of a mean: how likely each mixture makes the labels.
    likely = np.exp(min(tried.values()) - np.array(list(tried.values())))
    share = float(likely @ list(tried) / likely.sum())
    if float(re.search(r"(\d+) % is kept", said)[1]) != pytest.approx(100 * share, abs=1.5):
        share = min(tried, key=lambda each: tried[each])
    assert float(re.search(r"is kept: ([\d.]+)", said)[1]) <= min(tried[0], tried[1])
    temperature = int((re.findall(r"scores divided by (\d)", said) or ["1"])[-1])
    # The losses are rounded; the weights tell the share exactly.
    one, other, mixed = (weights[name]["encoder.layers.0.fc1.weight"].double() for name in ("start", "end", "mixed"))
    exact = float(((mixed - one) * (other - one)).sum() / (other - one).square().sum())
    assert exact == pytest.approx(share, abs=0.015)
    for name, weight in weights["mixed"].items():
        if weight.is_floating_point():
            expected = torch.lerp(weights["start"][name], weights["end"][name], exact)
            expected = expected / temperature if "out_proj" in name else expected
            torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6)
    # What is kept is what was validated; no temperature makes an end worse than fairseq measured it. fairseq's losses
    # are bits of an example.
    nats = {name: losses(outputs[name], "valid")[0] * len(table(topics)) * math.log(2) for name in outputs}
    rounding = 2e-3 * len(table(topics)) * math.log(2)
    assert nats["mixed"] == pytest.approx(float(re.search(r"is kept: ([\d.]+)", said)[1]), abs=rounding)
    for name, point in (("start", 0), ("end", 1)):
        assert nats[name] >= tried[point] - rounding
    # A fine-tuned checkpoint gives its encoder, not its head.
    again = finetune(topics, tmp_path / "end" / "checkpoint_last.pt", tmp_path / "again", epochs=1, lr=0.0)
    assert again.count("of the checkpoint (4 outputs) is dropped: the model has a new one") == 1
    last = torch.load(tmp_path / "again" / "checkpoint_last.pt", weights_only=True)["model"]
    for name, weight in weights["end"].items():
        assert torch.equal(weight, last[name]) == name.startswith(("encoder.", "_extra")), name


@pytest.mark.slow
def test_pretrained_encoder_arrives_and_pairs_are_read_as_written(toy_data, pretrained, tmp_path):
    task = prepare_task(tmp_path, toy_data, same_topic)
    # A learning rate of zero leaves what was loaded.
    output = finetune(task, pretrained, tmp_path / "run", epochs=1, lr=0.0)
    assert "of always answering" in output
    assert torch.load(tmp_path / "run" / "checkpoint_last.pt")["cfg"]["task"]["texts"] == 2
    paths = (pretrained, tmp_path / "run" / "checkpoint_last.pt")
    before, after = (torch.load(path, weights_only=True)["model"] for path in paths)
    encoder = {name for name in before if name.startswith("encoder.")}
    head = {
        f"classification_heads.{HEAD}.{part}.{kind}"
        for part in ("mean_dense", "out_proj")
        for kind in ("weight", "bias")
    }
    assert len(encoder) > 20
    assert after.keys() - {"_extra_state"} == encoder | head
    assert all(torch.equal(before[name], after[name]) for name in encoder)

    hub = MaelmModel.from_pretrained(str(tmp_path / "run"), "checkpoint_last.pt", str(task))
    hub.task.load_dataset("valid")
    dataset, lines = hub.task.datasets["valid"], table(task)
    assert len(dataset) == len(lines)
    batch = dataset.collate(np.arange(len(lines)))
    assert torch.equal(batch["net_input"]["src_tokens"], hub._pad([hub.encode(*line[:-1]).numpy() for line in lines]))
    # A batch through the model as fairseq runs it, against every pair by itself through the hub interface.
    with torch.no_grad():
        logits, _ = hub.model(**batch["net_input"], features_only=True, classification_head_name=HEAD)
    torch.testing.assert_close(logits, hub_logits(hub, lines), rtol=1e-5, atol=1e-5)


def test_the_batch_size_and_the_metric_count(topics, pretrained, tmp_path, capsys):
    command = ["finetune", topics, "--checkpoint", pretrained, "--output", tmp_path, "--gpus", 0, "--dry-run"]
    main([str(word) for word in [*command, "--epochs", 3, "--batch-size", 4, "--metric", "loss", "--patience", 2]])
    words = capsys.readouterr().out.split()
    assert {words[words.index(name) + 1] for name in ("--max-update", "--total-num-update")} == {str(3 * 160 // 4)}
    assert "--maximize-best-checkpoint-metric" not in words and words[words.index("--patience") + 1] == "2"
