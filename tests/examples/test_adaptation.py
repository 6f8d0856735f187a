"""The recipe that adapts an encoder to a domain and compares it with itself before."""

import csv
import json
import random
from pathlib import Path

import pytest
import torch
from end_to_end.toy import ROOT, TINY_TRAINING, TOPICS, run, sentence, toy_data, write_corpus

from fairseq_maelm.files.atomic import write_json

__all__ = ["toy_data"]

GIVEN = ("checkpoint", "train", "valid")

PLAN = ROOT / "examples" / "adaptation" / "plan.yaml"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package.
    patch.syspath_prepend(ROOT / "examples")
    import rows

    table_of = rows.Plan(PLAN, {}).report


def write_records(path: Path, number: int, seed: int) -> None:
    generator = random.Random(seed)
    lines = []
    for _ in range(number):
        topic = generator.choice(sorted(TOPICS))
        lines.append(json.dumps({"text": sentence(topic, generator) + "\n\tMore.", "label": topic}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command line of a study of the task v1.0, whose files are there."""
    for name in ("dict.txt", "sentencepiece.bpe.model", "c.pt", "train.txt", "valid.txt"):
        (tmp_path / name).touch()
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").touch()
    paths = [f"{name}={tmp_path / path}" for name, path in zip(GIVEN, ("c.pt", "train.txt", "valid.txt"), strict=True)]
    return [str(PLAN), str(tmp_path), str(tmp_path / "o"), "--tasks", f"v1.0={tmp_path}", "--set", *paths]


def test_labels_of_records_are_compared_with_predicted_ones(tmp_path: Path) -> None:
    records = [("a", "x"), ("d", " x"), ("e", "x"), ("f", "y z")]
    lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in records]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    (tmp_path / "p.tsv").write_text("label\tprobability\nx\t1\nx\t1\ny z\t1\ny z\t1\n")
    # F1 is 2 * 1 * 2/3 / (5/3) = 0.8 for x and 2 * 1/2 * 1 / (3/2) = 2/3 for y z.
    expected = {"macro F1": pytest.approx(100 * (0.8 + 2 / 3) / 2), "accuracy": pytest.approx(75)}
    assert table_of.score_of_table(tmp_path / "test.jsonl", tmp_path / "p.tsv") == expected


def cells(table: str, line: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[line].strip("|").split("|")]


def write_scores(folder: Path, scores: dict[str, float]) -> list[list[str]]:
    """Record scores that rise with the seed, and return the table's cells."""
    runs = {f"scores/t_{row}_{seed}": {"step": "test", "row": row, "task": "t", "seed": str(seed)}
            for row in scores for seed in (1, 2, 6)}  # fmt: skip
    folder.joinpath("scores").mkdir(exist_ok=True)
    tasks = {"t": {"metric": "macro F1"}}
    write_json(folder / "settings.json", {"tasks": tasks, "rows": dict.fromkeys(scores, {}), "runs": runs})
    for name, axes in runs.items():
        score = scores[axes["row"]] + int(axes["seed"])
        result = {"macro F1": score, "accuracy": 1.0} if score > 0 else {"failed": "exit status 1"}
        write_json(folder / f"{name}.json", result)
    table = table_of.write(folder)
    return [cells(table, line) for line in range(len(table.splitlines()))]


def test_the_table_holds_medians_and_spread(tmp_path: Path) -> None:
    table = write_scores(tmp_path, {"before": 50.0, "after": 53.5})
    assert table[2] == ["t", "macro F1", "52.0 (51.0 to 56.0)", "55.5 (54.5 to 59.5)", "+3.5"]
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert len(lines) == 7 and lines[1] == ["t", "macro F1", "before", "1", "51.0"]
    table = write_scores(tmp_path, {"before": 50.0, "after": 53.5, "control": 51.5})
    assert table[0] == ["task", "metric", "before", "control", "after", "after - before", "after - control"]
    assert table[2][3:] == ["53.5 (52.5 to 57.5)", "55.5 (54.5 to 59.5)", "+3.5", "+2.0"]
    table = write_scores(tmp_path, {"before": 50.0, "after": -100.0})
    assert table[2][3:] == ["–", "–"], "what failed has no score"


def test_runs_of_a_task_with_a_dot_in_its_name_have_files_of_their_own(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    args = rows.parse([*words, "--gpus", "3", "--rows", "before", "--seeds", "2"])
    task, *jobs = (job for job in args.jobs if "scores" not in job.name)
    assert task.marker == tmp_path / "o" / "runs" / "prepare_v1.0.json"
    assert [job.marker for job in jobs] == [tmp_path / f"o/runs/v1.0_before_{seed}.json" for seed in (1, 2)]
    assert all(job.after == [[task]] for job in jobs), "a failed adaptation keeps them not back"
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
def test_the_study_from_text_to_table(
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
    (folder / "train.txt").write_text("The cryostat cools the spectrometer.\n" * 30, encoding="utf-8")
    write_corpus(folder / "valid.txt", documents=2, seed=6)
    output = tmp_path / "out"
    given = (tmp_path / "pretrained" / "checkpoint_last.pt", folder / "train.txt", folder / "valid.txt")
    command = ["python", ROOT / "examples" / "rows.py", PLAN, toy_data, output, "--jobs", 2, "--tasks"]
    command += [*(f"{name}={folder / name}" for name in ("topics", "words")), "--seeds", 1, "--set"]
    command += [*(f"{name}={path}" for name, path in zip(GIVEN, given, strict=True)), "updates=4", "interval=2"]
    command += ["batch-size=4", "epochs=1", "general-loss-bound=5"]
    printed = run(command)
    table = (output / "table.md").read_text()
    assert printed.endswith(table)
    assert [cells(table, number)[:2] for number in (2, 3)] == [["topics", "macro F1"], ["words", "entity F1"]]
    score = json.loads((output / "scores" / "topics_after_1.json").read_text())
    assert 0 <= score["macro F1"] <= 100 and score["accuracy"] == pytest.approx(round(score["accuracy"] * 0.12) / 0.12)
    tagged = (output / "scores" / "words_before_1.conll").read_text()
    assert len(tagged.split()) == len((folder / "words" / "test.conll").read_text().split())
    log = (output / "runs" / "adaptation.log").read_text()
    assert "general loss before the first update" in log and "Loaded checkpoint" in log
    assert not list((output / "runs").glob("*/*.pt")), "removed once there is a score"

    words = [str(word) for word in command[2:]]
    # The control may be added later: as many updates as the best checkpoint has, and nothing else is repeated.
    rows.main([*words, "--rows", "before", "control", "after"])
    assert "12 of 17 runs done earlier" in capsys.readouterr().err
    assert cells((output / "table.md").read_text(), 0)[2:5] == ["before", "control", "after"]
    updates = [
        torch.load(output / place, weights_only=False)["optimizer_history"][-1]["num_updates"]
        for place in ("adapted/checkpoint_best.pt", "control/checkpoint_last.pt")
    ]
    assert updates[0] == updates[1] > 0
