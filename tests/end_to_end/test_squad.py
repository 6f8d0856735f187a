"""SQuAD through the real commands: prepare, fine-tune, predict, score and answer."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from end_to_end.toy import TOPICS, metrics_in, run, train_log
from fairseq_maelm import MaelmModel
from fairseq_maelm.cli import main
from fairseq_maelm.finetuning.squad.inference import answer

# Short sequences, so that most contexts have several windows.
FORMAT = ["--max-length", 32, "--doc-stride", 8, "--max-question-length", 12]
QUESTIONS = {"Who is it?": 0, "Where is it?": 3, "When is it?": 4}
FILLERS = ("The old table is near the door.", "In the night the net and the rope and the knife.", "Until morning.")
METRICS = ["exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"]
METRICS += ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]


def write_questions(path: Path, contexts: int, seed: int, version: str = "2.0") -> None:
    """Write contexts with one fact among other sentences; in version 2.0 a fourth question has no answer."""
    generator = random.Random(seed)
    paragraphs = []
    for number in range(contexts):
        words = TOPICS[generator.choice(sorted(TOPICS))]
        who, does, where = (generator.choice(words[place]) for place in (0, 2, 3))
        when = generator.choice(("Monday", "Tuesday", "Friday", "Sunday"))
        fact = {0: f"The {who.upper()}", 3: where, 4: when}
        sentences = [generator.choice(FILLERS), f"{fact[0]} {does} at the  {where} on {when}."]
        context = " ".join([*sentences, generator.choice(FILLERS)] if generator.random() < 0.5 else sentences)
        questions: list[dict[str, Any]] = [
            {
                "id": f"{seed}-{number}-{part}",
                "question": question,
                "answers": [{"text": fact[part], "answer_start": context.index(fact[part])}],
            }
            for question, part in QUESTIONS.items()
        ]
        if version == "2.0":
            questions.append({"id": f"{seed}-{number}-none", "question": "What does it cost?", "answers": []})
            for question in questions:
                question["is_impossible"] = not question["answers"]
        paragraphs.append({"context": context, "qas": questions})
    path.write_text(json.dumps({"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}))


@pytest.fixture(scope="module")
def task(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squad")
    for split, contexts, seed in (("train", 100, 1), ("dev", 20, 2)):
        write_questions(folder / f"{split}.json", contexts, seed)
    run(
        ["maelm", "prepare", "squad", "--vocabulary", toy_data, "--train", folder / "train.json"]
        + ["--valid", folder / "dev.json", "--output", folder / "task"]
    )
    return folder / "task"


def call(*words: Any) -> None:
    """Run a sub-command in this process, which spares the seconds that a process needs to start."""
    main([str(word) for word in words])


def finetune(task: Path, checkpoint: Path, save_dir: Path, *options: Any, epochs: int = 2) -> str:
    """Run the recipe on the CPU."""
    words = ["maelm", "finetune", task, "--checkpoint", checkpoint, "--output", save_dir, "--gpus", 0]
    return run([*words, "--lr", 1e-3, "--epochs", epochs, "--batch-size", 16, "--", *FORMAT, *options])


@pytest.fixture(scope="module")
def finetuned(task: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("finetuned")
    return folder, finetune(task, pretrained, folder)


@pytest.mark.slow
def test_it_learns_and_the_metrics_are_those_of_the_official_rules(task, finetuned, tmp_path, capsys):
    folder, output = finetuned
    assert "dropping decoder, lm_head of the checkpoint" in output
    windows = re.search(r"valid: 80 questions in (\d+) windows", output)
    assert windows is not None and int(windows[1]) > 160, "questions with several windows"
    entries = [entry for entry in train_log(output) if entry["split"] == "valid"]
    logged = [{name: entry[f"valid_{name}"] for name in METRICS} for entry in entries]
    # Of equally good checkpoints fairseq keeps the last.
    best = max(reversed(logged), key=lambda metrics: metrics["best_f1"])
    assert best["best_f1"] > 60, "a constant 'no answer' has 25"
    assert best["HasAns_f1"] > 30

    dev, final, texts, odds = (
        task.parent / "dev.json",
        *(folder / f"{name}.json" for name in ("predictions", "best_texts", "odds")),
    )
    words = ["maelm", "predict", dev, "--checkpoint", folder, "--device", "cpu", "--output"]
    metrics = metrics_in(run([*words, final]))
    assert best == {name: pytest.approx(metrics[name], abs=5e-3) for name in METRICS}
    call(*words[1:], texts, "--threshold", "inf", "--null-odds", odds)
    capsys.readouterr()
    call("evaluate", "squad", dev, texts, "--null-odds", odds, "--json")
    assert json.loads(capsys.readouterr().out) == metrics
    call("evaluate", "squad", dev, final, "--json")
    submitted = json.loads(capsys.readouterr().out)
    assert submitted == {name: value for name, value in metrics.items() if not name.startswith("best")}

    # Questions without answers do not show that they may have none; the checkpoint knows it.
    hidden = tmp_path / "hidden.json"
    content = json.loads(dev.read_text())
    for question in (each for paragraph in content["data"][0]["paragraphs"] for each in paragraph["qas"]):
        del question["answers"], question["is_impossible"]
    hidden.write_text(json.dumps(content))
    call("predict", hidden, *words[3:], tmp_path / "of_hidden.json", "--threshold", 0)
    assert (tmp_path / "of_hidden.json").read_text() == final.read_text()

    # Predictions are substrings of their contexts.
    given, best_texts, null_odds = (json.loads(path.read_text()) for path in (final, texts, odds))
    paragraphs = json.loads(dev.read_text())["data"][0]["paragraphs"]
    contexts = {each["id"]: paragraph["context"] for paragraph in paragraphs for each in paragraph["qas"]}
    assert list(given) == list(best_texts) == list(null_odds) == list(contexts)
    assert any(given.values()) and not all(given.values())
    for identity, context in contexts.items():
        best_text = best_texts[identity]
        assert best_text and best_text in context
        assert given[identity] == ("" if null_odds[identity] > 0 else best_text)


@pytest.mark.slow
def test_answers_for_people(toy_data, finetuned, tmp_path):
    text = (
        "Until morning.\r\n" * 20
        + "The BAKER bakes at the  oven on Friday.\n"
        + "The old table is near the door. " * 20
    )
    (tmp_path / "text.txt").write_bytes(text.encode())
    command = ["maelm", "answer", tmp_path / "text.txt", *QUESTIONS, "--checkpoint", finetuned[0]]
    command += ["--vocabulary", toy_data, "--device", "cpu", "--threshold", "inf"]
    lines = [json.loads(line) for line in run([*command, "--json"]).splitlines() if line.startswith("{")]
    assert [line["question"] for line in lines] == list(QUESTIONS)
    assert all(line["text"] and text[line["begin"] : line["end"]] == line["text"] for line in lines)
    assert "Friday" in lines[2]["text"]
    for line in lines:
        answers = line["answers"]
        assert len({each["text"] for each in answers}) == len(answers) <= 21
        assert sum(not each["text"] for each in answers) == 1
        assert sum(each["probability"] for each in answers) == pytest.approx(1)
        assert [each["score"] for each in answers] == sorted((each["score"] for each in answers), reverse=True)
        assert all(text[each["begin"] : each["end"]] == each["text"] for each in answers if each["text"])

    hub = MaelmModel.from_pretrained(str(finetuned[0]), "checkpoint_best.pt", str(toy_data))
    for line in lines:
        assert answer(hub, line["question"], text, threshold=float("inf"))._asdict().items() <= line.items()
    never = answer(hub, "Who is it?", text, threshold=-float("inf"))
    assert (never.text, never.begin, never.end) == ("", -1, -1)


@pytest.mark.slow
def test_version_1_always_answers(toy_data, pretrained, tmp_path, capsys):
    dev, task, out = tmp_path / "dev.json", tmp_path / "task", tmp_path / "predictions.json"
    write_questions(dev, 4, 3, "1.1")
    call("prepare", "squad", "--vocabulary", toy_data, "--train", dev, "--valid", dev, "--output", task)
    output = finetune(task, pretrained, tmp_path / "run", epochs=1)
    (entry,) = [entry for entry in train_log(output) if entry["split"] == "valid"]
    assert {"valid_exact", "valid_f1"} <= entry.keys() and not {"valid_NoAns_f1", "valid_best_f1"} & entry.keys()

    hub = MaelmModel.from_pretrained(str(tmp_path / "run"))
    assert answer(hub, "Who?", "The baker bakes.").text and hub.task.cfg.squad_version == "1.1"

    # A prepared folder gives the predictions that the file gives.
    predict = ["predict", task, "--checkpoint", tmp_path / "run", "--device", "cpu"]
    capsys.readouterr()
    call(*predict, "--output", out, "--metrics", tmp_path / "metrics.json")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert all(json.loads(out.read_text()).values())
    assert metrics["f1"] == pytest.approx(entry["valid_f1"], abs=5e-3)
    call("evaluate", "squad", dev, out, "--json")
    assert json.loads(capsys.readouterr().out) == metrics
    call("predict", dev, *predict[2:])
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    with pytest.raises(SystemExit, match="2"):
        call(*predict, "--threshold", 0)
    assert "omit --threshold and --null-odds" in capsys.readouterr().err
