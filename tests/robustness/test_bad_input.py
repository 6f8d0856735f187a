"""Bad input at every command: one line says what is wrong; nothing is written, and no file is changed."""

import io
import json
import re
import sys
import warnings
from typing import Any

import pytest
import torch
from fairseq import optim, tasks

from fairseq_maelm.finetuning.prompting.inference import classify_by_prompt
from fairseq_maelm.finetuning.squad.inference import answer, answer_questions
from fairseq_maelm.launch.command_line import parse_training
from fairseq_maelm.scoring.sentence_scores import score
from robustness.cases import cases, write_bad_files
from robustness.commands import GOOD, Case
from robustness.rows import HUB, NAN, TOKENS, TRAINED
from robustness.world import PAIR_PROMPT, PROMPT, Answer, World

CASES = cases()
# What commands say besides: their log, and progress bars.
_LOG = re.compile(r"\d\d:\d\d:\d\d \| |\d{4}-\d\d-\d\d |.*\d%\||.*/s\]$")


@pytest.fixture(scope="module")
def bad(world: World) -> World:
    write_bad_files(world)
    return world


def test_there_are_enough_of_them() -> None:
    assert len(CASES) + len(TRAINED) + sum(map(len, HUB.values())) >= 500


@pytest.mark.parametrize("command", [name for name, line in GOOD.items() if "{new}" not in line or name == "sweep"])
def test_good_input_is_accepted(command: str, world: World) -> None:
    """So that no case is refused for another reason than its own; test_full_disk.py shows it of the others."""
    world.run(GOOD[command])
    world.remove_new()


@pytest.mark.parametrize("command", ["predict", "predict tags", "predict answers", "predict prompts"])
def test_standard_input_is_read_like_a_file(command: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    program, name, rest = GOOD[command].split(" ", 2)
    content = io.BytesIO(world.path(name.strip("{}")).read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content))
    assert world.run(f"{program} - {rest}") == world.run(GOOD[command])


@pytest.mark.parametrize("command", ["predict text.txt classifier sentences", "predict squad.json reader squad"])
def test_predictions_are_kept_without_a_report(command: str, world: World) -> None:
    _, name, checkpoint, vocabulary = command.split()
    line = f"predict {{{name}}} --checkpoint {{{checkpoint}}} --vocabulary {{{vocabulary}}}"
    assert world.run(f"{line} --report") == world.run(line)


def test_invalid_rows_are_skipped_and_counted(world: World) -> None:
    corpus = "--output {new} --vocabulary {data} --valid-documents 1 --workers 1"
    for line, documents in (("{records.jsonl} --skip-invalid", 2), ("{text.txt} --line-documents", None)):
        world.run(f"prepare corpus {line} {corpus}")
        manifest = json.loads((world.folder / "new" / "manifest.json").read_text())
        assert manifest["invalid_records"] == {"inputs": int("skip" in line)}
        assert documents is None or sum(each["documents"] for each in manifest["counts"].values()) == documents
        world.remove_new()
    (world.folder / "new.tsv").write_text("A house.\ta\n\ta\nA door.\tb\nc\nA wall.\ta\nA roof.\tb\n")
    (world.folder / "new2.tsv").write_text("A house.\t-1\nA door.\t\n")
    sentences = "prepare sentences --train {new.tsv} --test {new2.tsv} --vocabulary {data} --output {new}"
    with pytest.raises(Answer, match="new.tsv:2 has an empty sentence"):
        world.run(sentences)
    world.run(f"{sentences} --skip-invalid --valid-fraction 0.5")
    manifest = json.loads((world.folder / "new" / "manifest.json").read_text())
    assert manifest["invalid_rows"] == 2
    assert manifest["splits"]["test"] == {"examples": 2}
    world.remove_new()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_gets_one_line(case: Case, bad: World) -> None:
    before = bad.listing()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Answer) as caught:
            bad.run(case.line)
    *others, last = caught.value.error.splitlines()
    assert re.fullmatch(r"maelm [a-z ]+: error: .{10,1100}|fairseq-train: error: .{10,600}", last), last
    assert re.search(case.expected, last), last
    assert "--debug shows" not in last
    assert [line for line in others if line.strip() and not _LOG.match(line)] == []
    after = bad.listing()
    # What can be resumed is kept under a hidden name; a training keeps its folder until the process ends.
    kept = (".unfinished/", ".fairseq-train.lock")
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed = [name for name in changed if not any(part in name for part in kept)]
    bad.remove_new()
    assert changed == []


@pytest.mark.parametrize(("options", "expected"), TRAINED.items(), ids=list(TRAINED))
def test_what_cannot_be_trained_is_refused(options: str, expected: str, world: World) -> None:
    """By what fairseq-train makes of its options before it trains."""
    words = ["--task", "maelm", "--criterion", "maelm", "--arch", "maelm_tiny", "--lr", "0.001", *options.split()]
    with pytest.raises(ValueError, match=expected):
        args = parse_training([str(world.path("data")), *words])
        model = tasks.setup_task(args).build_model(args)
        optim.build_optimizer(args, list(model.parameters()))


@pytest.mark.parametrize(
    ("name", "call", "expected"), [(name, *row) for name, rows in HUB.items() for row in rows], ids=str
)
def test_the_hub_says_what_was_given(name: str, call: str, expected: str, world: World) -> None:
    hub = world.hub(name)
    names: dict[str, Any] = {"hub": hub, "world": world, "torch": torch, "answer": answer, "score": score}
    names |= {"answer_questions": answer_questions, "classify_by_prompt": classify_by_prompt}
    names |= {"TOKENS": TOKENS, "NAN": NAN, "PROMPT": PROMPT["template"], "PAIR": PAIR_PROMPT["template"]}
    names |= {"WORDS": PROMPT["label_words"], "broken": _with_nan(world) if "broken" in call else None}
    with pytest.raises((ValueError, FileNotFoundError), match=expected):
        eval(call, names)


def _with_nan(world: World) -> Any:
    # With an override it is another than the one that all share.
    broken = world.hub("pretrained", dropout=0.0)
    broken.model.lm_head.bias.data[7] = float("nan")
    return broken


def test_debug_shows_where(world: World) -> None:
    with pytest.raises(Answer) as caught:
        world.run("report {data} --debug")
    assert "Traceback" in caught.value.error and caught.value.error.splitlines()[-1].startswith("maelm report: error: ")
