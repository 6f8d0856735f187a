"""The table of encoders and tasks: recipes, and pretraining in stages through the real command."""

import importlib
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.toy import ROOT, run, write_corpus
from support import load_script

from fairseq_maelm.finetuning.recipe import read_recipes
from fairseq_maelm.finetuning.squad.reading import read_squad
from fairseq_maelm.train_command import words_of

FOLDER = ROOT / "examples" / "small_encoders"
RECIPES = {recipe.path.stem: recipe for recipe in read_recipes(sorted((FOLDER / "recipes").glob("[!_]*.yaml")))}
TASKS = {"CoLA", "SST-2", "RTE", "STS-B", "QNLI", "SciCite", "SQuAD", "UD_EWT", "SciFact"}


def test_every_task_has_a_recipe_with_one_setting() -> None:
    assert RECIPES.keys() == TASKS
    for recipe in RECIPES.values():
        assert all(len(values) == 1 for values in recipe.search.values())
        assert recipe.metric == recipe.metrics[0]
        # Positions behind the last stage's length were never trained.
        longest = recipe.options.get("tokens-per-sample", recipe.options.get("max-length", 128))
        assert longest == 128


def test_too_few_arguments_are_refused() -> None:
    assert "tasks.sh: usage: tasks.sh" in run(["bash", FOLDER / "tasks.sh"], check=False)


def test_both_encoders_differ_by_their_method_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain = load_script(FOLDER / "pretrain.py")
    commands = {row: pretrain.stage(row, 4, tmp_path, 1.0, False, "").words for row in pretrain.ROWS}
    texts = [shlex.join(words).replace(f"/{row}/", "/row/") for row, words in commands.items()]
    methods = [shlex.join(words_of(options)) for options in pretrain.ROWS.values()]
    assert texts[0].replace(methods[0], methods[1]) == texts[1] != texts[0]
    (tmp_path / "text.txt").write_text("text\n")
    words = ["pretrain.py", tmp_path / "output", tmp_path / "text.txt", "--dry-run"]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    pretrain.main()
    assert not (tmp_path / "output").exists()


def test_tasks_need_a_vocabulary(tmp_path: Path) -> None:
    output = run(["bash", FOLDER / "tasks.sh", tmp_path, tmp_path / "tasks"], check=False)
    assert f"there is no dict.txt in {tmp_path}" in output


def squad_file(path: Path) -> list[dict[str, Any]]:
    """Two articles, five questions, of which a and d have no answer; returns the paragraphs of the first."""
    answer = {"text": "cook", "answer_start": 4}
    questions = [
        {"question": "Who?", "id": name, "answers": [] if name in "ad" else [answer], "is_impossible": name in "ad"}
        for name in "abcde"
    ]
    questions[0]["plausible_answers"] = [answer]
    paragraphs = [{"context": f"The cook of ship {n}.", "qas": questions[2 * n : 2 * n + 2]} for n in range(3)]
    articles = [{"title": "One", "paragraphs": paragraphs[:2]}, {"title": "Two", "paragraphs": paragraphs[2:]}]
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return paragraphs


def test_the_first_questions_of_a_file(tmp_path: Path) -> None:
    paragraphs = squad_file(tmp_path / "all.json")
    words = ["python", FOLDER / "choose_questions.py", tmp_path / "all.json"]
    run([*words, tmp_path / "some.json", "--first", "3"])
    kept = [paragraphs[0], {**paragraphs[1], "qas": paragraphs[1]["qas"][:1]}]
    expected = {"version": "v2.0", "data": [{"title": "One", "paragraphs": kept}]}
    assert json.loads((tmp_path / "some.json").read_text()) == expected
    output = run([*words, tmp_path / "some.json"], check=False)
    assert "File exists" in output and "Traceback" not in output
    assert json.loads((tmp_path / "some.json").read_text()) == expected
    output = run([*words, tmp_path / "none.json", "--first", "6"], check=False)
    assert "there are only 5 questions, and 6 are wanted" in output and not (tmp_path / "none.json").exists()


def test_the_answerable_questions_of_a_file_are_one_of_version_1(tmp_path: Path) -> None:
    squad_file(tmp_path / "all.json")
    words = ["python", FOLDER / "choose_questions.py", tmp_path / "all.json"]
    run([*words, tmp_path / "answerable.json", "--answerable"])
    chosen = read_squad(tmp_path / "answerable.json")
    assert chosen.version == "1.1" and [question.identity for question in chosen.questions] == ["b", "c", "e"]
    run([*words, tmp_path / "two.json", "--answerable", "--first", "2"])
    assert [question.identity for question in read_squad(tmp_path / "two.json").questions] == ["b", "c"]


def test_places_whose_word_stands_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    repeated_words = importlib.import_module("repeated_words")
    # 9 stands twice and 8 three times, one of these next to another; 3 is frequent, and 7 stands once.
    stretches = np.array([[0, 9, 3, 7, 3, 5, 9, 2], [0, 8, 8, 5, 6, 4, 8, 2]])
    cases = repeated_words.find_cases(stretches, 4, 4, np.random.default_rng(0))
    assert [(case.place, case.others.tolist()) for case in cases][0] in [(1, [6]), (6, [1])]
    # Of 8's places only the last is 4 tokens away from both others.
    assert all(case.place == 6 and case.others.tolist() == [1, 2] for case in cases[1:])
    repeated, replaced = repeated_words.inputs(
        repeated_words.Case(stretches[1], 6, np.array([1, 2])), 99, np.array([4, 5])
    )
    assert repeated.tolist() == [0, 8, 8, 5, 6, 4, 99, 2] and replaced.tolist() == [0, 4, 5, 5, 6, 4, 99, 2]
    assert repeated_words.find_cases(stretches, 4, 7, np.random.default_rng(0)) == []


def test_vectors_that_find_their_other_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    pooled_vectors = importlib.import_module("pooled_vectors")
    short, long = pooled_vectors.parts_of(np.array([[0, 5, 6, 7, 2], [0, 8, 9, 4, 2]]), 1)
    assert short.tolist() == [[0, 5, 2], [0, 8, 2]] and long.tolist() == [[0, 6, 7, 2], [0, 9, 4, 2]]
    long = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    # The third short part is nearest to the first long one, then to its own: ranks 1, 1 and 2.
    found = pooled_vectors.measure(torch.tensor([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0]]), long)
    assert found.reciprocal_rank == pytest.approx(2.5 / 3)
    assert found.cosine == pytest.approx(2 * 0.5**0.5 / 3) and found.directions == 2
    # On a line there is one direction, and the length of a vector says nothing.
    found = pooled_vectors.measure(long, torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]))
    assert found == (1.0, 1, pytest.approx(1.0))


@pytest.mark.slow
def test_both_encoders_from_text(tmp_path: Path) -> None:
    write_corpus(tmp_path / "text.txt", documents=400, seed=1)
    output = tmp_path / "encoders"
    words = ["python", FOLDER / "pretrain.py", output, tmp_path / "text.txt", "--share", "0.003", "--pieces", "300"]
    first = run(words)
    for model in ("mae-lm", "mlm"):
        assert f"{model}: {output}/{model}/stage_4/checkpoint_last.pt" in first
        assert (output / model / "stage_4" / "checkpoint_last.pt").exists()
        log = (output / model / "stage_4.log").read_text()
        assert f"{model}/stage_3/checkpoint_last.pt" in log
        # 3 thousandths of 1,700.
        state = torch.load(output / model / "stage_4" / "checkpoint_last.pt", weights_only=False)
        assert state["optimizer_history"][-1]["num_updates"] == 5
    encoders = [output / model / "stage_4" / "checkpoint_last.pt" for model in ("mae-lm", "mlm")]
    options = ["--length", "40", "--rare-from", "20", "--distance", "2", "--cases", "30"]
    lines = run(["python", FOLDER / "repeated_words.py", output / "data", *encoders, *options])
    # So early nothing has been learned.
    gains = [float(gain) for gain in re.findall(r"([+-][0-9.]+) bits each, 30 cases", lines)]
    assert len(gains) == 2 and all(abs(gain) < 0.1 for gain in gains)
    options = ["--length", "40", "--short", "10", "--texts", "20"]
    lines = run(["python", FOLDER / "pooled_vectors.py", output / "data", *encoders, *options])
    measured = re.findall(r"^(.+), (embeddings|layer \d): reciprocal rank (0\.\d+), (\d+) directions", lines, re.M)
    assert len(measured) == 15 and {name for name, *_ in measured} == {"random weights", *map(str, encoders)}
    assert all(1 <= int(directions) < 20 for *_, directions in measured)
    # Texts of another domain for a task, in the encoders' vocabulary.
    (tmp_path / "scicite").mkdir()
    for split in ("train", "dev"):
        lines = [json.dumps({"text": f"the {word} sails", "label": word}) for word in ("cook", "ship")]
        (tmp_path / "scicite" / f"{split}.jsonl").write_text("\n".join(lines))
    (tmp_path / "squad").mkdir()
    for split in ("train", "dev"):
        squad_file(tmp_path / "squad" / f"small-{split}-v2.0.json")
    sources = ["--scicite", tmp_path / "scicite", "--squad", tmp_path / "squad", "--squad-questions", 2]
    run(["bash", FOLDER / "tasks.sh", output / "data", tmp_path / "tasks", *sources])
    assert sorted(os.listdir(tmp_path / "tasks")) == ["scicite", "squad"]
    splits = json.loads((tmp_path / "tasks" / "squad" / "manifest.json").read_text())["splits"]
    counts = {name: (split["version"], split["questions"]) for name, split in splits.items()}
    assert counts == {"train": ("1.1", 2), "valid": ("1.1", 3)}
    assert (tmp_path / "tasks" / "scicite" / "input0" / "valid.idx").exists()
    # A second time there is nothing left to do.
    before = (output / "mlm" / "stage_4" / "checkpoint_last.pt").stat().st_mtime_ns
    assert run(words).endswith(first.splitlines()[-1] + "\n")
    assert (output / "mlm" / "stage_4" / "checkpoint_last.pt").stat().st_mtime_ns == before
