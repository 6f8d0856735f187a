"""The study of a recipe's parts: rows become commands, logs become curves, and a small one runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end.toy import ROOT
from support import load_script

PARTS = ROOT / "examples" / "pretraining" / "parts"
parts = load_script(PARTS / "parts.py")
PLAN = yaml.safe_load((PARTS / "rows.yaml").read_text(encoding="utf-8"))
CPU = parts.Machine(0, "bf16")


def words_of(name: str, **changes: Any) -> list[list[str]]:
    """The commands of one run and of what precedes it."""
    runs = {run.name: run for run in parts.runs_of(PLAN, list(PLAN["rows"]), None)}
    job = parts.job_of(runs[name], {**PLAN, **changes}, CPU, Path("data"), Path("out"))
    return [each.process("").words for each in job.all]


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_rows_are_pretrained_on_equally_many_tokens() -> None:
    for run in parts.runs_of(PLAN, list(PLAN["rows"]), None):
        commands = [each.process("").words for each in parts.job_of(run, PLAN, CPU, Path("d"), Path("o")).all]
        tokens = sum(int(value(words, "--max-update")) * int(value(words, "--max-tokens")) for words in commands)
        assert tokens == pytest.approx(PLAN["tokens"], rel=1e-3)


def test_main_rows_have_both_objectives_and_two_seeds() -> None:
    runs = [run.name for run in parts.runs_of(PLAN, ["modern", "masks_15"], None)]
    modern = [f"modern.{objective}.seed_{seed}" for seed in (1, 2) for objective in ("maelm", "mlm")]
    masks = ["masks_15.maelm.seed_1", "masks_15.mlm.seed_1"]
    assert runs == [*modern[:2], *masks, *modern[2:]]


def test_options_of_a_row_are_those_of_its_parts() -> None:
    ((words),) = words_of("masks_30_to_15.mlm.seed_1")
    assert (value(words, "--mask-prob"), value(words, "--mask-prob-end")) == ("0.3", "0.15")
    assert (value(words, "--layer"), value(words, "--optimizer"), value(words, "--max-tokens")) == (
        "modern", "muon", "2048",
    )  # fmt: skip
    assert (value(words, "--masked-input"), value(words, "--decoder-layers")) == ("kept", "0")
    assert value(words, "--phase-ratio") == "[0.02, 0.58, 0.4]"
    assert "--warm-up" not in words and "--hold" not in words


def test_the_old_recipe_begins_with_short_sequences() -> None:
    first, last = words_of("old.maelm.seed_1")
    assert (value(first, "--tokens-per-sample"), value(last, "--tokens-per-sample")) == ("16", "128")
    assert (value(first, "--lr-scheduler"), value(last, "--lr-scheduler")) == ("fixed", "polynomial_decay")
    assert value(last, "--finetune-from-model").endswith("old.maelm.seed_1.first/checkpoint_last.pt")


def test_a_run_has_the_gpus_of_its_slot() -> None:
    (run,) = parts.runs_of(PLAN, ["modern_adam"], 1)
    job = parts.job_of(run, PLAN, parts.Machine(1, "bf16"), Path("data"), Path("out"))
    assert job.process("1").environment == {"CUDA_VISIBLE_DEVICES": "1"} and job.process("").environment == {}


@pytest.mark.slow
def test_a_small_study(toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {**PLAN, "tokens": 4000, "validate-tokens": 1000}
    small = {"encoder-layers": 1, "encoder-embed-dim": 32, "encoder-ffn-embed-dim": 64, "max-tokens": 500}
    plan["common"] = {**PLAN["common"], **small, "tokens-per-sample": 32, "max-positions": 32}
    plan["parts"] = {**PLAN["parts"], "modern": {**PLAN["parts"]["modern"], "encoder-ffn-embed-dim": 48}}
    plan["rows"] = {"old": {**PLAN["rows"]["old"], "objectives": ["maelm"]}, "modern": PLAN["rows"]["modern"]}
    (tmp_path / "plan.yaml").write_text(json.dumps(plan), encoding="utf-8")
    words = [str(toy_data), str(tmp_path / "study"), "--plan", str(tmp_path / "plan.yaml"), "--seeds", "1"]
    parts.main(words)
    table = (tmp_path / "study" / "table.md").read_text(encoding="utf-8")
    rows = [line.replace(" ", "").split("|")[1:4] for line in table.splitlines()[2:]]
    assert rows == [["old", "maelm", "1"], ["modern", "maelm", "1"], ["modern", "mlm", "1"]]
    curves = (tmp_path / "study" / "curves.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[3] for line in curves if line.startswith("modern,mlm")] == ["1000", "2000", "3000", "4000"]
    assert (tmp_path / "study" / "curves.png").stat().st_size > 10_000
    capsys.readouterr()
    parts.main(words)
    assert capsys.readouterr().out == table, "nothing is done twice"
