"""The study of a recipe's parts: rows become commands, logs become curves, and a small one runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end.toy import ROOT

PARTS = ROOT / "examples" / "pretraining" / "parts" / "rows.yaml"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package.
    patch.syspath_prepend(ROOT / "examples")
    import rows
CONTENT = yaml.safe_load(PARTS.read_text(encoding="utf-8"))
# An update of two batches of 2,048 tokens.
OPTIONS = {
    "max-tokens": 2048,
    "update-freq": 2,
    "masked-input": "kept",
    "decoder-layers": 0,
    "optimizer": "fused_adamw",
}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The words of the study of all rows."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "dict.txt").touch()
    return [str(PARTS), str(data), str(tmp_path / "out"), "--precision", "bf16"]


@pytest.fixture
def args(words: list[str]) -> Any:
    """The command line of the study of all rows."""
    return rows.parse(words)


def commands(args: Any) -> dict[str, list[list[str]]]:
    """The commands of each pretraining, with that of the part that precedes it."""
    return {
        job.name.split("/")[1]: [each.process("").words for group in [*job.after, [job]] for each in group]
        for job in args.jobs
        if ".first/" not in job.name
    }


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_rows_are_pretrained_on_equally_many_tokens(args: Any) -> None:
    for parts in commands(args).values():
        tokens = sum(int(value(words, "--max-update")) * int(value(words, "--max-tokens")) for words in parts)
        assert tokens == pytest.approx(CONTENT["tokens"], rel=1e-3)


def test_several_batches_of_an_update_count_as_tokens(words: list[str]) -> None:
    for parts in commands(rows.parse([*words, "--set", "update-freq=4"])).values():
        assert {value(words, "--update-freq") for words in parts} == {"4"}
        tokens = sum(4 * int(value(words, "--max-update")) * int(value(words, "--max-tokens")) for words in parts)
        assert tokens == pytest.approx(CONTENT["tokens"], rel=4e-3)


def test_options_of_a_row_are_those_of_its_parts(args: Any) -> None:
    (words,) = commands(args)["masks_30_to_15.mlm.seed_1"]
    assert (value(words, "--mask-prob"), value(words, "--mask-prob-end")) == ("0.3", "0.15")
    assert (value(words, "--layer"), value(words, "--optimizer"), value(words, "--max-tokens")) == (
        "modern", "muon", "2048",
    )  # fmt: skip
    assert (value(words, "--masked-input"), value(words, "--decoder-layers")) == ("kept", "0")
    assert value(words, "--phase-ratio") == "[0.02, 0.58, 0.4]"
    assert "--warm-up" not in words and "--hold" not in words


def test_the_old_recipe_begins_with_short_sequences(args: Any) -> None:
    first, last = commands(args)["old.maelm.seed_1"]
    assert (value(first, "--tokens-per-sample"), value(last, "--tokens-per-sample")) == ("16", "128")
    assert (value(first, "--lr-scheduler"), value(last, "--lr-scheduler")) == ("fixed", "polynomial_decay")
    assert value(last, "--finetune-from-model").endswith("old.maelm.seed_1.first/checkpoints/checkpoint_last.pt")


def test_seconds_count_updates_of_several_batches(tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "old"
    runs.mkdir(parents=True)
    settings = {
        "tokens": 8192, "vocabulary": 100, "rows": {"old": {}}, "plan": {"common": {**CONTENT["common"], **OPTIONS}},
        "runs": {"runs/old/pretraining": {"step": "pretraining", "row": "old", "objective": "mlm", "seed": "1"}},
    }  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (runs / "pretraining.json").write_text('{"loss": 8.0, "updates_per_second": 0.5}', encoding="utf-8")
    record = '2026-01-01 00:00:00 | INFO | valid | {"valid_num_updates": "2", "valid_loss": "8"}\n'
    (runs / "pretraining.log").write_text(record, encoding="utf-8")
    rows.Plan(PARTS, {}).report.write(tmp_path)
    (line,) = (tmp_path / "curves.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert line.split(",")[3] == "8192" and line.split(",")[5] == "4"


@pytest.mark.slow
def test_a_small_study(toy_data: Path, tmp_path: Path) -> None:
    plan = {**CONTENT, "tokens": 4000, "validations": 4, "report": str(PARTS.parent / "curves.py")}
    small = {"encoder-layers": 1, "encoder-embed-dim": 32, "encoder-ffn-embed-dim": 64, "max-tokens": 500}
    plan["common"] = {**CONTENT["common"], **small, "tokens-per-sample": 32, "max-positions": 32}
    plan["parts"] = {**CONTENT["parts"], "modern": {**CONTENT["parts"]["modern"], "encoder-ffn-embed-dim": 48}}
    plan["rows"] = {"old": {**CONTENT["rows"]["old"], "objectives": "maelm"}, "modern": CONTENT["rows"]["modern"]}
    (tmp_path / "plan.yaml").write_text(json.dumps(plan), encoding="utf-8")
    words = [str(tmp_path / "plan.yaml"), str(toy_data), str(tmp_path / "study"), "--seeds", "1"]
    rows.main(words)
    table = (tmp_path / "study" / "table.md").read_text(encoding="utf-8")
    shown = [line.replace(" ", "").split("|")[1:4] for line in table.splitlines()[2:]]
    assert shown == [["old", "maelm", "1"], ["modern", "maelm", "1"], ["modern", "mlm", "1"]]
    curves = (tmp_path / "study" / "curves.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[3] for line in curves if line.startswith("modern,mlm")] == ["1000", "2000", "3000", "4000"]
    assert (tmp_path / "study" / "curves.png").stat().st_size > 10_000
