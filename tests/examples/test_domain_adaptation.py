"""The recipe that adapts an encoder to a domain and compares it with itself before."""

import csv
import json
import random
from pathlib import Path

import pytest
import torch
from end_to_end.toy import ROOT, TINY_TRAINING, TOPICS, run, sentence, toy_data, write_corpus

__all__ = ["toy_data"]

RECIPE = ROOT / "examples" / "domain_adaptation"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package.
    for folder in (ROOT / "examples", RECIPE):
        patch.syspath_prepend(folder)
    import adapt
    import tables


def write_records(path: Path, number: int, seed: int) -> None:
    generator = random.Random(seed)
    lines = []
    for _ in range(number):
        topic = generator.choice(sorted(TOPICS))
        lines.append(json.dumps({"text": sentence(topic, generator) + "\n\tMore.", "label": topic}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_tasks_are_found_and_must_be_whole(tmp_path: Path) -> None:
    for name, kind in (("b", "jsonl"), ("a", "conll")):
        (tmp_path / name).mkdir()
        for split in ("train", "dev", "test"):
            (tmp_path / name / f"{split}.{kind}").touch()
    assert list(tables.tasks_in(tmp_path).items()) == [("a", "conll"), ("b", "jsonl")]
    (tmp_path / "a" / "dev.conll").unlink()
    with pytest.raises(SystemExit, match="there is no .*dev.conll"):
        tables.tasks_in(tmp_path)
    with pytest.raises(SystemExit, match="has no folder with train, dev and test"):
        tables.tasks_in(tmp_path / "b")


def test_records_become_lines_of_a_table(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.tsv"
    records = [("a\tb\nc", "x"), ("d", "x"), ("e", "x"), ("f", "y z")]
    source.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in records))
    tables.write_table(source, target, None)
    assert target.read_text() == "a b c\tx\nd\tx\ne\tx\nf\ty z\n"
    tables.write_table(source, target, 3)
    assert target.read_text() == "a b c\tx\nd\tx\nf\ty z\n", "every label is among the first ones"
    for line, message in (
        ('{"text": "a"}', "line 1 is not a record"),
        ('{"text": " ", "label": 1}', "line 1 has an empty"),
    ):
        source.write_text(line + "\n")
        with pytest.raises(SystemExit, match=message):
            tables.write_table(source, target, None)


def cells(table: str, line: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[line].strip("|").split("|")]


def test_the_table_holds_medians_and_spread(tmp_path: Path) -> None:
    scores = {
        ("t", model, seed): score + seed for model, score in (("before", 50.0), ("after", 53.5)) for seed in (1, 2, 6)
    }
    table = tables.write_results(scores, {"t": "macro F1"}, tmp_path)
    assert cells(table, 2) == ["t", "macro F1", "52.0 (51.0 to 56.0)", "55.5 (54.5 to 59.5)", "+3.5"]
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 7 and rows[1] == ["t", "macro F1", "before", "1", "51.0"]
    scores.update({("t", "control", seed): 51.5 + seed for seed in (1, 2, 6)})
    table = tables.write_results(scores, {"t": "macro F1"}, tmp_path)
    assert cells(table, 0) == ["task", "metric", "before", "control", "after", "after - before", "after - control"]
    assert cells(table, 2)[3:] == ["53.5 (52.5 to 57.5)", "55.5 (54.5 to 59.5)", "+3.5", "+2.0"]


def test_runs_of_a_task_with_a_dot_in_its_name_have_files_of_their_own() -> None:
    args = adapt.make_parser().parse_args(["folder", "c", "data", "o", "--remove-runs"])
    study = adapt.Adaptation(args, {"v1.0": "jsonl"}, 1)
    jobs = [study.fine_tuning("v1.0", "before", seed) for seed in (1, 2)]
    assert [job.marker for job in jobs] == [Path(f"o/runs/v1.0_before_{seed}.json") for seed in (1, 2)]
    process = jobs[0].process("3")
    assert process.environment == {"CUDA_VISIBLE_DEVICES": "3"}
    assert process.words[process.words.index("--gpus") + 1] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in jobs[0].process("").environment


def write_entities(path: Path, number: int, seed: int) -> None:
    generator = random.Random(seed)
    sentences = []
    for _ in range(number):
        words = sentence(generator.choice(sorted(TOPICS)), generator).split()
        sentences.append("\n".join(f"{word} {'B-LONG' if len(word) > 5 else 'O'}" for word in words))
    path.write_text("\n\n".join(sentences) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_the_recipe_from_text_to_table(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    own = ["--max-positions", 64, "--max-update", 2, "--disable-validation", "--tokens-per-sample", 48]
    run(["fairseq-train", toy_data, *TINY_TRAINING, *own, "--save-dir", tmp_path / "pretrained"])
    folder = tmp_path / "folder"
    for name, write, suffix in (("topics", write_records, "jsonl"), ("words", write_entities, "conll")):
        (folder / name).mkdir(parents=True)
        for split, number in (("train", 24), ("dev", 12), ("test", 12)):
            write(folder / name / f"{split}.{suffix}", number, seed=len(split))
    (folder / "toy_train.txt").write_text("The cryostat cools the spectrometer.\n" * 30, encoding="utf-8")
    write_corpus(folder / "toy_valid.txt", documents=2, seed=6)
    output = tmp_path / "out"
    command = ["python", RECIPE / "adapt.py", folder, tmp_path / "pretrained" / "checkpoint_last.pt", toy_data, output]
    command += ["--seeds", 1, "--updates", 4, "--interval", 2, "--batch-size", 4, "--epochs", 1, "--jobs", 2]
    command += ["--general-loss-bound", 5, "--remove-runs"]
    printed = run(command)
    table = (output / "table.md").read_text()
    assert printed.endswith(table)
    assert [cells(table, number)[:2] for number in (2, 3)] == [
        ["topics", "macro F1"],
        ["words", "entity F1"],
    ]
    score = json.loads((output / "scores" / "topics_after_1.json").read_text())
    assert 0 <= score["macro F1"] <= 100 and score["accuracy"] == pytest.approx(round(score["accuracy"] * 0.12) / 0.12)
    tagged = (output / "scores" / "words_before_1.conll").read_text()
    assert len(tagged.split()) == len((folder / "words" / "test.conll").read_text().split())
    log = (output / "runs" / "adaptation.log").read_text()
    assert "general loss before the first update" in log and "Loaded checkpoint" in log
    assert not list((output / "runs").glob("*/*.pt")), "removed once there is a score"

    words = [str(word) for word in command[2:]]
    adapt.main(words)
    again = capsys.readouterr()
    assert "4 done earlier" in again.err and "8 done earlier" in again.err and again.out == table, "everything is there"
    # The control may be added later: as many updates as the best checkpoint has, and nothing else anew.
    adapt.main([*words, "--control"])
    assert "8 done earlier" in capsys.readouterr().err and cells((output / "table.md").read_text(), 0)[2:5] == [
        "before",
        "control",
        "after",
    ]
    updates = [
        torch.load(output / place, weights_only=False)["optimizer_history"][-1]["num_updates"]
        for place in ("adapted/checkpoint_best.pt", "control/checkpoint_last.pt")
    ]
    assert updates[0] == updates[1] > 0
    assert (output / "table.md").read_text() != table
    with pytest.raises(SystemExit, match=r"holds a study with other settings \(epochs: 1 then, 2 now\)"):
        adapt.main([*words, "--epochs", "2"])
    assert "control" in (output / "table.md").read_text()
