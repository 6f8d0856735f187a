"""The paper in miniature: GLUE files, equal commands, metrics from logs; and a small one through the real commands."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from end_to_end.toy import ROOT, TOPICS, sentence, write_corpus

from fairseq_maelm.sweep import jobs

FOLDERS = [ROOT / "examples" / "paper_in_miniature"]
# The examples' modules lie beside their scripts and are in no package; other examples may use the same names.
NAMES = [path.stem for folder in FOLDERS for path in folder.glob("*.py")]
OTHERS = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
sys.path[:0] = map(str, FOLDERS)

import commands  # noqa: E402
import glue  # noqa: E402
import miniature  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402
import scales  # noqa: E402

for folder in FOLDERS:
    while str(folder) in sys.path:
        sys.path.remove(str(folder))
for name in NAMES:
    sys.modules.pop(name, None)
sys.modules.update(OTHERS)

HEADERS = {
    "SST-2": "sentence\tlabel",
    "RTE": "index\tsentence1\tsentence2\tlabel",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
}


def glue_line(name: str, number: int, first: str, second: str, label: str) -> str:
    """An example as GLUE writes it."""
    return {
        "CoLA": f"gj04\t{label}\t\t{first}",
        "SST-2": f"{first}\t{label}",
        "RTE": f"{number}\t{first}\t{second}\t{label}",
        "STS-B": f"{number}\tmain\tMSRvid\t2012\t0\tnone\tnone\t{first}\t{second}\t{label}",
    }[name]


def write_glue(folder: Path, examples: int) -> None:
    """A folder in GLUE's layout whose labels can be read off the sentences."""
    generator = random.Random(3)
    topics = sorted(TOPICS)[:2]
    for name in glue.TASKS:
        (folder / name).mkdir(parents=True)
        for split, count in (("train", examples), ("dev", examples // 2)):
            lines = [HEADERS[name]] if name in HEADERS else []
            for number in range(count):
                label = number % 2
                first, second = (sentence(topics[label], generator) for _ in range(2))
                names = {"STS-B": ("0.000", "5.000"), "RTE": ("entailment", "not_entailment")}
                text = names.get(name, ("0", "1"))[label]
                lines.append(glue_line(name, number, first, second, text))
            (folder / name / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


# GLUE's files


def test_tables_hold_examples_from_everywhere(tmp_path: Path) -> None:
    write_glue(tmp_path / "glue", 12)
    counts = glue.write_tables(tmp_path / "glue", "RTE", tmp_path / "tables", 4)
    assert counts == {"train": 4, "valid": 6}
    train = (tmp_path / "tables" / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.count("\t") for line in train] == [2] * 4
    source = (tmp_path / "glue" / "RTE" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split("\t", 1)[1] for line in source[::3]] == train
    documents = (tmp_path / "tables" / "valid.txt").read_text(encoding="utf-8").split("\n\n")
    assert len(documents) == 6 and all(document.strip().count("\n") == 1 for document in documents)


# The command line


def test_mistakes_are_found_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_glue(tmp_path / "glue", 4)
    (tmp_path / "text.txt").write_text("text\n", encoding="utf-8")
    good = [str(tmp_path / "text.txt"), "--tasks", str(tmp_path / "glue"), "--output", str(tmp_path / "output")]
    assert len(miniature.parse(good).runner.slots) == 2
    wrong = {
        "there is no text": ["missing.txt", *good[1:]],
        "--budget must lie": [*good, "--budget", "2"],
        "at least 1": [*good, "--seeds", "0"],
        "lacks CoLA/train.tsv": [good[0], "--tasks", str(tmp_path), *good[3:]],
    }
    for message, words in wrong.items():
        with pytest.raises(SystemExit):
            miniature.parse(words)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


def test_a_dry_run_writes_commands_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_glue(tmp_path / "glue", 4)
    (tmp_path / "text.txt").write_text("text\n", encoding="utf-8")
    words = [tmp_path / "text.txt", "--tasks", tmp_path / "glue", "--output", tmp_path / "output", "--dry-run"]
    miniature.main([*map(str, words), "--scale", "gpu"])
    lines = capsys.readouterr().out.splitlines()
    assert "# MAE-LM, stage_3" in lines and "fine-tuned" in lines[-1]
    trained = [line for line in lines if "fairseq-train" in line]
    assert len(trained) == 7 and all(line.startswith("CUDA_VISIBLE_DEVICES=0 ") for line in trained)
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("scale", scales.SCALES.values(), ids=scales.SCALES)
def test_models_differ_by_their_method_alone(scale: Any, tmp_path: Path) -> None:
    commands_of = {
        model: commands.pretrain(model, scale, len(scale.stages) - 1, tmp_path, tmp_path / "model", "").words
        for model in commands.MODELS
    }
    own = {
        "MLM": ["--masked-input", "kept", "--decoder-layers", "0"],
        "MAE-LM": ["--masked-input", "dropped", "--decoder-layers", str(scale.decoder_layers)],
    }
    rest = {}
    for model, words in commands_of.items():
        place = words.index("--masked-input")
        assert words[place : place + 4] == own[model]
        rest[model] = words[:place] + words[place + 4 :]
    assert rest["MLM"] == rest["MAE-LM"]


# What a user might take for the paper's settings, in each of the scales where the command has it.
NOT_THE_PAPERS = {
    "--dropout 0": ["cpu"],
    "--attention-dropout 0": ["cpu"],
    "--mask-prob 0.4": ["cpu"],
    "--protect-special-tokens": ["cpu", "gpu"],
    "--initial-output-bias frequencies": ["cpu", "gpu"],
    "--sample-break-mode none": ["cpu", "gpu"],
    "--init-std": ["cpu", "gpu"],
    "--embedding-init-std": ["cpu", "gpu"],
}


def test_readme_states_what_is_not_as_in_the_paper(tmp_path: Path) -> None:
    readme = (FOLDERS[0] / "README.md").read_text(encoding="utf-8")
    for name, scale in scales.SCALES.items():
        process = commands.pretrain("MAE-LM", scale, len(scale.stages) - 1, tmp_path, tmp_path / "model", "")
        command = " ".join(process.words) + " "
        assert [option for option in NOT_THE_PAPERS if f"{option} " in command] == [
            option for option, names in NOT_THE_PAPERS.items() if name in names
        ]
    # Alone, or among others between one pair of backquotes.
    stated = {option: re.search(rf"`[^`|]*{re.escape(option)}\b[^`|]*`", readme) for option in NOT_THE_PAPERS}
    assert [option for option, found in stated.items() if found is None] == []


# Results


def test_time_is_that_of_training_steps_and_counts_repeated_updates_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    records = [(100, 20), (200, 30), (100, 21), (200, 31), (300, 40)]
    log.write_text(
        "".join(
            f"2026 | INFO | train_inner | {json.dumps({'num_updates': str(update), 'train_wall': str(wall)})}\n"
            for update, wall in records
        ),
        encoding="utf-8",
    )
    assert results.training_seconds(log) == {100: 21.0, 200: 52.0, 300: 92.0}


def test_figure_3_takes_the_same_seeds_at_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FIGURE_3_TASKS", ("SST-2",))
    monkeypatch.setattr(results, "MODELS", ("MLM",))
    for stage, update, wall in ((1, 10, 60), (2, 50, 120), (2, 100, 240)):
        path = tmp_path / "MLM" / f"stage_{stage}.log"
        path.parent.mkdir(exist_ok=True)
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(f"| INFO | train_inner | {json.dumps({'num_updates': update, 'train_wall': wall})}\n")
    for stage, scores in (("0", (50, 52)), ("50", (60, 62)), ("final", (70, 72, 99, 99, 99))):
        for seed, score in enumerate(scores, 1):
            path = tmp_path / "MLM" / stage / "SST-2" / f"seed_{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"score": score}), encoding="utf-8")
    points = results.figure_3(tmp_path, 2, 100)["MLM"]
    assert [tuple(point.values()) for point in points] == [(1.0, 0, 51.0), (3.0, 50, 61.0), (7.0, 100, 71.0)]


# The whole


def test_the_whole_resumes_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task instead of four, for the time that the others take."""
    for name in set(glue.TASKS) - {"SST-2"}:
        monkeypatch.delitem(glue.TASKS, name)
    for module in (miniature, results, page):
        monkeypatch.setattr(module, "FIGURE_3_TASKS", ("SST-2",))
    scale = scales.SCALES["cpu"].shrunk(0.002)
    small = scales.replace(scale, vocabulary_size=200, model={"arch": "maelm_tiny", "encoder-layers": 2})
    monkeypatch.setitem(scales.SCALES, "cpu", small)
    write_glue(tmp_path / "glue", 32)
    write_corpus(tmp_path / "text.txt", documents=400)
    output = tmp_path / "output"
    words = [str(tmp_path / "text.txt"), "--tasks", str(tmp_path / "glue"), "--output", str(output), "--seeds", "1"]
    miniature.main(words)
    measured = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert set(measured["table"]) == {"MLM", "MAE-LM", "random weights"}
    assert all(len(row["SST-2"]) == 1 for row in measured["table"].values())
    assert [len(points) for points in measured["figure_3"].values()] == [3, 3]
    assert len(measured["ranks"]["MLM"]["masked, mask"]) == 3
    assert set(measured["fine_tuned_ranks"]) == {"MLM", "MAE-LM"}
    text = (output / "page.html").read_text(encoding="utf-8")
    assert text.count("<svg") == 5 and "<img" not in text
    assert (output / "figures" / "figure_3.png").stat().st_size > 1000

    monkeypatch.setattr(
        jobs.LocalLauncher, "start", lambda *args, **kwargs: pytest.fail("a finished program ran again")
    )
    miniature.main(words)
    with pytest.raises(SystemExit, match="other settings"):
        miniature.main([*words, "--jobs", "1"])
