"""GLUE through the real commands: files, folders, fine-tuning, metrics, predictions, and the checkpoint in the hub."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from end_to_end.toy import TOPICS, run, sentence, train_log
from fairseq_maelm import MaelmModel, cli

HEAD = "sentence_classification_head"
# Labels and scores that the topic of both sentences decides, which a few updates can learn.
LABELS = {"sea": "entailment", "kitchen": "neutral", "court": "contradiction", "garden": "contradiction"}
SCORES = {"sea": 0.0, "kitchen": 2.5, "court": 4.75, "garden": 3.0}
MNLI_ROWS = {"train": 160, "dev_matched": 33, "dev_mismatched": 17, "test_matched": 9, "test_mismatched": 5}
STS_ROWS = {"train": 48, "dev": 20, "test": 7}
MNLI_COLUMNS = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
MNLI_COLUMNS += "sentence2_parse sentence1 sentence2"
STS_COLUMNS = "index genre filename year old_index source1 source2 sentence1 sentence2"

pytestmark = pytest.mark.slow


def write_split(path: Path, columns: str, values: dict[str, Any], rows: int, copies: int, generator: Any) -> None:
    """Write sentences about equal topics, with copies of the topic's label or score in the last columns."""
    lines, names = ["\t".join(columns.split())], columns.split()
    for number in range(rows):
        topic = generator.choice(sorted(TOPICS))
        texts = [sentence(topic, generator), sentence(topic, generator)]
        filler = ["x"] * (len(names) - 3 - copies)
        lines.append("\t".join([str(number), *filler, *texts, *[f"{values[topic]}"] * copies]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_glue(folder: Path) -> None:
    """MNLI and STS-B in GLUE's layout, about the toy corpus' topics."""
    generator = random.Random(3)
    votes = {"train": "label1 gold_label", "dev": "label1 label2 label3 label4 label5 gold_label", "test": ""}
    for name, rows in MNLI_ROWS.items():
        last = votes[name.split("_")[0]]
        columns = f"{MNLI_COLUMNS} {last}"
        write_split(folder / "MNLI" / f"{name}.tsv", columns, LABELS, rows, len(last.split()), generator)
    for name, rows in STS_ROWS.items():
        last = "" if name == "test" else "score"
        columns = f"{STS_COLUMNS} {last}"
        write_split(folder / "STS-B" / f"{name}.tsv", columns, SCORES, rows, len(last.split()), generator)


@pytest.fixture(scope="module")
def tasks(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    write_glue(folder / "glue")
    words = ["prepare", "glue", folder / "glue", "--vocabulary", toy_data, "--output", folder / "tasks"]
    cli.main([*map(str, words), "--accept-counts", "--max-length", "96"])
    return folder / "tasks"


def recipe(task: str, tasks: Path, checkpoint: Path, save_dir: Path) -> str:
    words = ["maelm", "finetune", tasks / task, "--checkpoint", checkpoint, "--output", save_dir, "--gpus", 0]
    return run([*words, "--lr", 1e-3, "--epochs", 2, "--batch-size", 16])


def validations(output: str) -> list[dict[str, Any]]:
    return [entry for entry in train_log(output) if entry["split"] in ("valid", "valid1")]


def predict(
    capsys: pytest.CaptureFixture[str], task: Path, checkpoint: Path, output: Path, split: str = "valid"
) -> dict[str, float]:
    """Run ``maelm predict`` and return the metrics; none of a split without labels."""
    metrics = output.with_suffix(".json")
    words = [task, "--checkpoint", checkpoint, "--split", split, "--output", output, "--batch-size", 7]
    words += ["--metrics", metrics]
    cli.main(["predict", *map(str, words), "--device", "cpu"])
    assert capsys.readouterr().out == ""
    return dict(json.loads(metrics.read_text())) if metrics.exists() else {}


def predictions(path: Path) -> list[tuple[str, str]]:
    header, *lines = path.read_text(encoding="ascii").splitlines()
    assert header == "index\tprediction"
    pairs = [line.split("\t") for line in lines]
    return [(index, prediction) for index, prediction in pairs]


def test_both_dev_sets_in_one_run_and_every_prediction_as_the_hub_gives_it(tasks, pretrained, tmp_path, capsys):
    folder = tmp_path / "run"
    logged = validations(recipe("MNLI", tasks, pretrained, folder))
    assert [entry["split"] for entry in logged] == ["valid", "valid1"] * 2
    best = max(logged[::2], key=lambda entry: (entry["valid_accuracy"], entry["epoch"]))
    other = logged[logged.index(best) + 1]
    assert other["split"] == "valid1"
    checkpoint, metrics = folder / "checkpoint_best.pt", {}
    for split in ("valid", "valid1", "test", "test1"):
        metrics[split] = predict(capsys, tasks / "MNLI", checkpoint, tmp_path / split, split)
    assert metrics["valid"]["accuracy"] == pytest.approx(best["valid_accuracy"], abs=1e-3), "matched chooses"
    assert metrics["valid1"]["accuracy"] == pytest.approx(other["valid1_accuracy"], abs=1e-3)
    assert metrics["valid1"]["mcc"] == pytest.approx(other["valid1_mcc"], abs=1e-3)
    assert "f1" not in metrics["valid"] and metrics["test"] == metrics["test1"] == {}

    hub = MaelmModel.from_pretrained(str(folder), "checkpoint_best.pt", str(tasks / "MNLI"))
    labels = hub.task.labels.names
    lines = (tasks.parent / "glue" / "MNLI" / "test_mismatched.tsv").read_text(encoding="utf-8").splitlines()[1:]
    expected = []
    for number, cells in enumerate(line.split("\t") for line in lines):
        scores = hub.predict(HEAD, hub.encode(cells[8], cells[9]))
        expected.append((str(number), labels[int(scores.argmax())]))
    assert predictions(tmp_path / "test1") == expected and len(expected) == MNLI_ROWS["test_mismatched"]
    assert {label for _, label in expected} <= set(LABELS.values())


def test_scores_of_similarity(tasks, pretrained, tmp_path, capsys):
    logged = validations(recipe("STS-B", tasks, pretrained, tmp_path / "run"))
    checkpoint = tmp_path / "run" / "checkpoint_best.pt"
    metrics = predict(capsys, tasks / "STS-B", checkpoint, tmp_path / "dev.tsv")
    for name in ("pearson", "spearman"):
        best = max(logged, key=lambda entry: (entry["valid_spearman"], entry["epoch"]))
        assert metrics[name] == pytest.approx(best[f"valid_{name}"], abs=1e-2)
    assert predict(capsys, tasks / "STS-B", checkpoint, tmp_path / "STS-B.tsv", "test") == {}
    scores = [float(score) for _, score in predictions(tmp_path / "STS-B.tsv")]
    assert len(scores) == STS_ROWS["test"] and all(0 <= score <= 5 for score in scores)
    # A table of the same texts gets the same scores, in the scale of the data.
    test = (tasks.parent / "glue" / "STS-B" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    (tmp_path / "table.tsv").write_text(
        "".join("\t".join(row.split("\t")[-2:]) + "\n" for row in test), encoding="utf-8"
    )
    words = ["predict", tmp_path / "table.tsv", "--checkpoint", checkpoint, "--output", tmp_path / "own.tsv"]
    cli.main([str(word) for word in [*words, "--device", "cpu"]])
    values = [float(row.split("\t")[0]) for row in (tmp_path / "own.tsv").read_text().splitlines()[1:]]
    assert max(values) > 1 and [min(max(value, 0), 5) for value in values] == pytest.approx(scores, abs=1e-3)
    hub = MaelmModel.from_pretrained(str(tmp_path / "run"))
    assert hub.classify([tuple(row.split("\t")[-2:]) for row in test]) == pytest.approx(values, rel=1e-4)
    with pytest.raises(ValueError, match="predicts values, which have no probabilities"):
        hub.class_probabilities([("the sea", "a ship")])
