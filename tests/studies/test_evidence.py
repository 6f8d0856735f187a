"""The evidence study: its plan becomes pretrainings of equal compute, and a small one runs from text to page."""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from end_to_end import toy

FOLDER = toy.ROOT / "studies" / "evidence"
MODULES = ("evidence", "page", "plan", "records", "summary", "words")
with pytest.MonkeyPatch.context() as patch:
    # Modules of studies are in no package, and other studies may use the same names.
    patch.syspath_prepend(FOLDER)
    for name in MODULES:
        patch.delitem(sys.modules, name, raising=False)
    import evidence
    import plan as plan_module
    import records

    for name in MODULES:
        del sys.modules[name]
PLAN = plan_module.Plan()
MLM = "3e8,_MLM,_seed_1"  # in the small study
CHOSEN = {method: {"learning rate": "3e-3", "masks": "15 %"} for method in PLAN.methods}


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_pretrainings_of_a_budget_cost_the_same(scale: str) -> None:
    vocabulary = 8195
    for run in plan_module.Plan(scale=scale).pretrainings(CHOSEN):
        if run.row == plan_module.RANDOM:
            assert (run.updates(vocabulary), run.options["lr"]) == (1, 0)
        else:
            assert run.updates(vocabulary) * run.flops(vocabulary) == pytest.approx(float(run.budget), rel=2e-3)


def test_methods_differ_by_one_flag() -> None:
    options = [PLAN.options(method, "3e14", CHOSEN[method]) for method in ("MLM", "control", "MAE-LM")]
    different = [{name for name in one if one[name] != other[name]} for one, other in zip(options, options[1:])]
    assert different == [{"decoder-layers"}, {"masked-input"}]


def test_trials_of_a_choice_differ_in_one_setting() -> None:
    for choice, chosen, options in (("learning rate", {}, {"lr"}), ("masks", {"learning rate": "6e-3"}, None)):
        first, *others = PLAN.trials("MAE-LM", choice, chosen)
        for other in others:
            differing = {name for name, _ in {*first.options.items()} ^ {*other.options.items()}}
            assert differing <= (options or {"mask-prob", "mask-prob-end"}) and differing and other.seed == 0


@pytest.mark.parametrize(
    ("plan", "kept", "page"), [("plan.yaml", "records.jsonl", "results.md"), ("curve.yaml", "curve.jsonl", "curve.md")]
)
def test_published_results_follow_from_the_records(plan: str, kept: str, page: str, tmp_path: Path) -> None:
    words = ["page", "--plan", FOLDER / plan, "--records", FOLDER / kept, "--output", tmp_path / "study"]
    evidence.main([str(word) for word in words])
    assert (tmp_path / "study" / "results.md").read_bytes() == (FOLDER / page).read_bytes()


def test_numbers_of_ranks_are_those_of_the_last_layer(tmp_path: Path) -> None:
    rows = [
        {"condition": condition, "token_set": kind, "layer": layer, "effective_rank": 8 * layer + len(condition)}
        for condition, kind in (("whole", "real"), ("masked", "all"))
        for layer in (0, 2, 1)
    ]
    (tmp_path / "results.json").write_text(json.dumps([{"ranks": rows}]), encoding="utf-8")
    expected = {"rank without masks": 21, "rank of all tokens, with masks": 22}
    assert records.measured({"command": "analyze"}, tmp_path, tmp_path) == expected
    with pytest.raises(ValueError, match="no row of the results"):
        records.last_layer(rows, condition="dropped")


def write_files(folder: Path) -> None:
    """A text, and a task: a label of pairs that follows from one word."""
    draw = random.Random(0)
    words = [f"{first}{second}" for first in ("ka", "lo", "mi", "ne") for second in ("ta", "ru", "si", "po")]
    sentences = [" ".join(draw.choices(words, k=8)) for _ in range(400)]
    (folder / "a.txt").write_text("\n".join(sentences), encoding="utf-8")
    for split, count in (("train", 64), ("valid", 24)):
        pairs = [(*draw.sample(sentences, 2), label) for label in ("yes", "no") for _ in range(count // 2)]
        lines = "".join(f"{label} {first}\t{second}\t{label}\n" for first, second, label in pairs)
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")


def small_plan(folder: Path) -> Path:
    budget = {"shape": "small", "seeds": 0, "tasks": "none", "repeats": 1}
    shape = {"encoder-layers": 1, "encoder-embed-dim": 32, "encoder-ffn-embed-dim": 48, "encoder-attention-heads": 2}
    sizes = {"max-tokens": 128, "tokens-per-sample": 32, "max-positions": 64, "lr": 3e-3}
    content = {
        "words": {"a": 3000}, "corpus": {"vocabulary-size": 60, "valid-fraction": 0.2}, "primary": ["pairs"],
        "common": {**PLAN.content["common"], **sizes}, "shapes": {"small": shape},
        "methods": {name: PLAN.methods[name] for name in ("MLM", "MAE-LM")}, "rows": {},
        "choices": {"masks": {name: PLAN.choices["masks"][name] for name in ("30 %", "15 %")}}, "choice-budget": "1e8",
        "budgets": {"1e8": budget, "3e8": {**budget, "seeds": 1, "tasks": "all"}},
        "tasks": {"pairs": {"kind": "sentences", "train": "train.tsv", "valid": "valid.tsv"}}, "fine-tuning-of": {},
        "fine-tuning": {"lr": 1e-3, "epochs": 1, "batch-size": 32}, "intermediate": {"3e8": 2}, "validations": 4,
        "measurements": {"rank": {"command": "analyze", "tokens": 100}},
    }  # fmt: skip
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.exhaustive
def test_a_small_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path)
    plan, output = small_plan(tmp_path), tmp_path / "study"
    words = ["--plan", plan, "--text", f"a={tmp_path / 'a.txt'}", "--files", tmp_path, "--output", output]
    words = [str(word) for word in words]
    with pytest.raises(SystemExit, match="run the stage choose first"):
        evidence.main(["pretrain", *words])
    evidence.main(["--jobs", "2", *words])
    chosen = records_of(output / "records.jsonl")["study"]["chosen"]
    assert chosen.keys() == {"MLM", "MAE-LM"} and chosen["MLM"].keys() == {"masks"}
    results = json.loads((output / "results.json").read_bytes())
    assert list(results["table"]["3e8"]) == ["random weights", "MLM", "MAE-LM"]
    for cells in results["table"]["3e8"].values():
        assert set(cells) == {"loss", "primary", "pairs", "rank without masks", "rank of all tokens, with masks"}
        assert 0 <= cells["pairs"]["mean"] <= 100 and 1 <= cells["rank without masks"]["mean"] <= 32
    check_records(output, tmp_path)
    page = (output / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 and "http" not in page
    assert not list(output.glob("runs/*/pairs/*/model")), "fine-tuned checkpoints are deleted"
    check_resumed(output, words)
    check_another_machine(output, words, results)


def records_of(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> record of a study."""
    return {record["name"]: record for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def write_records(path: Path, found: dict[str, dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in found.values()), encoding="utf-8")


def check_resumed(output: Path, words: list[str]) -> None:
    """After an interruption before the end of a fine-tuning's predictions, only these are made."""
    found, own = records_of(output / "records.jsonl"), output / "runs" / MLM / "pairs" / "seed_1"
    expected = found[MLM]["results"].pop("pairs/seed_1")
    write_records(output / "records.jsonl", found)
    (own / "result.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.log")}
    evidence.main(words)
    changed = {path for path in output.rglob("*.log") if before.get(path) != path.stat().st_mtime_ns}
    assert changed == {own / "result.log"}
    assert records_of(output / "records.jsonl")[MLM]["results"]["pairs/seed_1"] == expected


def check_records(output: Path, files: Path) -> None:
    """The records are what the predictions and logs say, also of checkpoints inside a pretraining."""
    labels = [line.split("\t")[2] for line in (files / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    kept = records_of(output / "records.jsonl")
    for method in ("MLM", "MAE-LM"):
        run = f"3e8,_{method},_seed_1"
        record = kept[run]["results"]
        path = output / "runs" / run / "pairs" / "seed_1" / "predictions.tsv"
        predicted = [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        right = [float(one == other) for one, other in zip(predicted, labels, strict=True)]
        assert records.correct_examples(record["pairs/seed_1"]["correct"]).tolist() == right
        assert record["pairs/seed_1"]["accuracy"] == pytest.approx(100 * np.mean(right), abs=0.01)
        half = list(record["pretraining"]["losses"])[1]
        log = output / "runs" / run / "part_1" / "pairs" / "seed_1" / "result.log"
        assert f"_{half}.pt" in log.read_text(encoding="utf-8") and "part_1/pairs/seed_1" in record


def check_another_machine(output: Path, words: list[str], results: dict[str, Any]) -> None:
    """The records alone make the page, and their pretrainings are not done again."""
    kept = output.parent / "kept.jsonl"
    shutil.move(output / "records.jsonl", kept)
    shutil.rmtree(output)
    evidence.main(["choose", "pretrain", "evaluate", "page", *words[:2], *words[-2:], "--records", str(kept)])
    assert json.loads((output / "results.json").read_bytes()) == results
    assert not (output / "runs").exists()
    found = records_of(kept)
    for stage, name, message in (
        ("evaluate", "results", "not pretrained here: run the stage pretrain first"),
        ("page", "options", "of a pretraining with other options"),
    ):
        found[MLM][name].popitem()
        write_records(kept, found)
        with pytest.raises(SystemExit, match=message):
            evidence.main([stage, *words, "--records", str(kept)])
