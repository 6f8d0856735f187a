"""From pretraining to a classifier in the user's hands: the recipe, its checkpoints and the hub interface."""

import importlib.util
import math
import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import pytest
import torch

from end_to_end.toy import ROOT, TINY_TRAINING, TOPICS, losses, run, sentence
from fairseq_maelm import MaelmHubInterface, MaelmModel

FINETUNING = ROOT / "examples" / "finetuning"
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


def distance_from_the_sea(generator: random.Random) -> Line:
    """Regression of a number that the topic decides."""
    topic = generator.choice(sorted(TOPICS))
    return sentence(topic, generator), str({"sea": 0.0, "garden": 0.5, "kitchen": 1.0, "court": 2.0}[topic])


def prepare_task(folder: Path, data: Path, line: Callable[[random.Random], Line], *options: str) -> Path:
    """Write tables of 160 and 40 examples and prepare them."""
    generator = random.Random(5)
    for split, examples in (("train", 160), ("valid", 40)):
        lines = ["\t".join(line(generator)) for _ in range(examples)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["python", FINETUNING / "prepare_sentences.py", "--data", data, "--output", folder / "task", *options]
    run([*command, "--train", folder / "train.tsv", "--valid", folder / "valid.tsv"])
    return folder / "task"


def table(task: Path, split: str = "valid") -> list[Line]:
    """Read the table that a task was prepared from."""
    lines = (task.parent / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]


def finetune(task: Path, checkpoint: Path, save_dir: Path, *options: Any, epochs: int = 5) -> str:
    """Run the recipe on the CPU."""
    return run(
        ["bash", FINETUNING / "finetune.sh", task, checkpoint, save_dir, "--num-workers", 0, *options],
        environment={"LEARNING_RATE": "1e-3", "EPOCHS": str(epochs), "BATCH_SIZE": "16", "GPUS": "0"},
    )


def parameters(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a checkpoint."""
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    return state["model"]


def hub_logits(hub: MaelmHubInterface, lines: list[Line]) -> torch.Tensor:
    """Score every line by itself: <float>[lines, classes]."""
    with torch.no_grad():
        return torch.cat([hub.predict(HEAD, hub.encode(*line[:-1]), return_logits=True) for line in lines])


@pytest.fixture(scope="module")
def pretrained(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a short pretraining, with numbers that are not the architecture's."""
    folder = tmp_path_factory.mktemp("pretrained")
    own = ["--max-positions", 96, "--relative-num-buckets", 16, "--decoder-layers", 2]
    run(
        ["fairseq-train", toy_data, *TINY_TRAINING, *own, "--save-dir", folder]
        + ["--max-update", 40, "--disable-validation"]
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def topics(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the classification task."""
    return prepare_task(tmp_path_factory.mktemp("topics"), toy_data, topic_of_a_sentence)


@pytest.mark.slow
def test_classification_in_bf16_with_little_memory(topics: Path, pretrained: Path, tmp_path: Path) -> None:
    output = finetune(topics, pretrained, tmp_path, "--precision", "bf16", "--checkpoint-activations")
    assert max(losses(output, "valid", "accuracy")) > 60, "as in single precision"
    model = parameters(tmp_path / "checkpoint_best.pt")
    assert {tensor.dtype for tensor in model.values()} == {torch.float32, torch.int64}
    # The checkpoint is as good in single precision.
    hub = MaelmModel.from_pretrained(str(tmp_path), "checkpoint_best.pt", str(topics))
    lines = table(topics)
    labels = hub.task.label_dictionary
    predicted = hub_logits(hub, lines).argmax(dim=1)
    right = [labels[int(index) + labels.nspecial] == line[-1] for index, line in zip(predicted, lines)]
    assert 100 * sum(right) / len(right) > 60


@pytest.mark.slow
def test_classification(topics: Path, pretrained: Path, tmp_path: Path) -> None:
    output = finetune(topics, pretrained, tmp_path)
    assert re.search(
        r"dropping decoder, lm_head of the checkpoint \([\d,]+ parameters\): not needed for fine-tun", output
    )
    accuracies = losses(output, "valid", "accuracy")
    assert len(accuracies) == 5
    assert max(accuracies) > 60, "four equally frequent classes, decided by the sentence's words"

    validation = run(
        ["fairseq-validate", topics, "--path", tmp_path / "checkpoint_best.pt", "--task", "sentence_prediction"]
        + ["--criterion", "sentence_prediction", "--num-classes", 4, "--init-token", 0, "--separator-token", 2]
        + ["--batch-size", 8, "--cpu", "--log-format", "json", "--num-workers", 0]
    )
    assert losses(validation, "valid", "accuracy") == [max(accuracies)]

    hub = MaelmModel.from_pretrained(str(tmp_path), "checkpoint_best.pt", str(topics))
    labels = hub.task.label_dictionary
    predicted = [labels[labels.nspecial + int(row.argmax())] for row in hub_logits(hub, table(topics))]
    correct = sum(guess == line[-1] for guess, line in zip(predicted, table(topics)))
    assert round(100 * correct / len(predicted), 1) == max(accuracies)


@pytest.mark.slow
def test_pretrained_encoder_arrives_and_pairs_are_read_as_written(
    toy_data: Path, pretrained: Path, tmp_path: Path
) -> None:
    task = prepare_task(tmp_path, toy_data, same_topic)
    # One update with a learning rate of zero leaves what was loaded.
    finetune(task, pretrained, tmp_path / "run", "--max-update", 1, "--lr", 0)
    before, after = parameters(pretrained), parameters(tmp_path / "run" / "checkpoint_last.pt")
    encoder = {name for name in before if name.startswith("encoder.")}
    head = {
        f"classification_heads.{HEAD}.{name}"
        for name in ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")
    }
    assert len(encoder) > 20
    assert after.keys() == encoder | head
    assert all(torch.equal(before[name], after[name]) for name in encoder)
    assert list(after[f"classification_heads.{HEAD}.out_proj.weight"].shape) == [2, 128]

    hub = MaelmModel.from_pretrained(str(tmp_path / "run"), "checkpoint_last.pt", str(task))
    hub.task.load_dataset("valid")
    dataset = hub.task.datasets["valid"].dataset
    lines = table(task)
    assert len(dataset) == len(lines)
    tokens = [dataset[number]["net_input.src_tokens"] for number in range(len(lines))]
    assert all(torch.equal(item, hub.encode(*line[:-1])) for item, line in zip(tokens, lines))
    # A batch through the model as fairseq runs it, against every pair by itself through the hub interface.
    batch = dataset.collater([dataset[number] for number in range(len(lines))])
    with torch.no_grad():
        logits, _ = hub.model(**batch["net_input"], features_only=True, classification_head_name=HEAD)
    torch.testing.assert_close(logits, hub_logits(hub, lines), rtol=1e-5, atol=1e-5)


def long_pair(generator: random.Random) -> Line:
    """A pair of which one text or both have more tokens than the model has positions."""
    topic = generator.choice(sorted(TOPICS))
    texts = (" ".join(sentence(topic, generator) for _ in range(count)) for count in generator.choices((1, 4, 16), k=2))
    return *texts, topic


@pytest.mark.slow
def test_long_texts_are_cut_as_in_training(toy_data: Path, pretrained: Path, tmp_path: Path) -> None:
    """By fairseq's --shorten-method truncate, which the recipe gives: at the end, whatever stands there."""
    task = prepare_task(tmp_path, toy_data, long_pair)
    finetune(task, pretrained, tmp_path / "run", "--max-update", 1, "--disable-validation")
    hub = MaelmModel.from_pretrained(str(tmp_path / "run"), "checkpoint_last.pt", str(task))
    hub.task.load_dataset("valid")
    dataset = hub.task.datasets["valid"].dataset
    lines = table(task)
    for number, line in enumerate(lines):
        tokens = hub.encode(*line[:-1], max_length=hub.model.max_positions())
        assert torch.equal(tokens, dataset[number]["net_input.src_tokens"])
    assert len({len(hub.encode(*line[:-1])) > 96 for line in lines}) == 2, "some are cut, and some are not"


@pytest.mark.slow
def test_regression_and_its_resumption(toy_data: Path, pretrained: Path, tmp_path: Path) -> None:
    task = prepare_task(tmp_path, toy_data, distance_from_the_sea, "--regression")
    output = finetune(task, pretrained, tmp_path / "whole", epochs=3)
    errors = losses(output, "valid")
    assert len(errors) == 3

    hub = MaelmModel.from_pretrained(str(tmp_path / "whole"), "checkpoint_best.pt", str(task))
    lines = table(task)
    truth = torch.tensor([[float(line[-1])] for line in lines])
    squared = torch.nn.functional.mse_loss(hub_logits(hub, lines), truth)
    # fairseq divides every loss by ln 2, the squared error too.
    assert float(squared) / math.log(2) == pytest.approx(min(errors), abs=6e-4)
    assert float(squared) < float(truth.var(correction=0)), "no better than the mean"

    # Stopped in the middle of the second epoch, and the same command again.
    finetune(task, pretrained, tmp_path / "parts", "--max-update", 14, epochs=3)
    resumed = finetune(task, pretrained, tmp_path / "parts", epochs=3)
    assert "Loaded checkpoint" in resumed and "loading pretrained model" not in resumed
    whole, parts = (parameters(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    assert losses(resumed, "valid")[-1] == errors[-1]


def preparation() -> ModuleType:
    """Import the script, which is no module of the package."""
    specification = importlib.util.spec_from_file_location("prepare_sentences", FINETUNING / "prepare_sentences.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        ("a sentence\tgood\nno label\n", "", "train.tsv, line 2 has 1 columns"),
        ("a\tgood\nb\tbad\n", "c\td\tgood\n", "valid.tsv, line 1 has 2 sentences, and the training table 1"),
        ("a\tgood\nb\tbad\n", "c\tugly\n", "valid.tsv, line 1 has the label 'ugly', which no training example has"),
        ("a\tgood\nb\tgood\n", "", "classification needs two at least"),
        ("a\tgood\nb\t<unk>\n", "", "the label '<unk>' is spelled like one of fairseq's special symbols"),
        ("a\tgood\n \tbad\n", "", "train.tsv, line 2 has an empty sentence"),
        ("a\tgood\nb\t \n", "", "train.tsv, line 2 has no label"),
        ("a\tgood\nb\xff\tbad\n", "", "train.tsv, line 2 is not UTF-8"),
        ("a\tgood\nb\tbad\n", "", "valid.tsv is empty"),
        ("a\t1.5\nb\tmuch\n", "", "train.tsv, line 2 has the label 'much': --regression needs a finite number"),
        ("a\t1.5\nb\tnan\n", "", "train.tsv, line 2 has the label 'nan': --regression needs a finite number"),
        ("", "", "train.tsv is empty"),
        ("sentence\tlabel\na\tgood\nb\tbad\n", "c\tgood\n", "train.tsv, line 1 looks like a header: its cells name"),
        (
            "Satz\tUrteil\na\tgood\nb\tbad\nc\tgood\nd\tbad\n",
            "c\tgood\n",
            "looks like a header: its label 'Urteil' is on no other line, and every other label is on several. Tables "
            "have none: remove the line, or move it down if it is an example",
        ),
    ],
)
def test_bad_tables_are_explained(train: str, valid: str, message: str, toy_data: Path, tmp_path: Path) -> None:
    script = preparation()
    (tmp_path / "train.tsv").write_text(train, encoding="latin-1")
    (tmp_path / "valid.tsv").write_text(valid, encoding="latin-1")
    tables = {split: tmp_path / f"{split}.tsv" for split in ("train", "valid")}
    regression = "regression" in message or not train
    with pytest.raises(script.CorpusError, match=re.escape(message)):
        script.prepare(toy_data, tables, tmp_path / "task", regression)
    assert not (tmp_path / "task").exists()


def test_nothing_is_overwritten(toy_data: Path, topics: Path) -> None:
    before = {path: path.read_bytes() for path in topics.rglob("*") if path.is_file()}
    output = run(
        ["python", FINETUNING / "prepare_sentences.py", "--data", toy_data, "--output", topics]
        + ["--train", topics.parent / "train.tsv", "--valid", topics.parent / "valid.tsv"],
        check=False,
    )
    assert output.endswith(f"error: {topics} exists already: name another folder, or remove it first\n")
    assert before == {path: path.read_bytes() for path in topics.rglob("*") if path.is_file()}


@pytest.mark.parametrize("missing", ["task", "checkpoint"])
def test_missing_input_is_said_before_anything_starts(
    missing: str, topics: Path, pretrained: Path, tmp_path: Path
) -> None:
    task, checkpoint = (tmp_path / "no", pretrained) if missing == "task" else (topics, tmp_path / "no.pt")
    output = run(["bash", FINETUNING / "finetune.sh", task, checkpoint, tmp_path / "run"], check=False)
    expected = (
        "make the folder with prepare_sentences.py" if missing == "task" else f"there is no checkpoint {checkpoint}"
    )
    assert expected in output and "Traceback" not in output
    assert not (tmp_path / "run").exists()
