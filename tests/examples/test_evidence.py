"""The evidence study: its plan becomes pretrainings of equal compute, and a small one runs from text to page."""

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from end_to_end import toy

from fairseq_maelm.sweep.plan import import_file

FOLDER = toy.ROOT / "examples" / "evidence"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package, and other examples may use the same names.
    patch.syspath_prepend(FOLDER)
    for name in ("page", "plan", "records", "summary"):
        patch.delitem(sys.modules, name, raising=False)
    evidence = import_file(FOLDER / "evidence.py")
    _, plan_module, records, summary = (sys.modules.pop(name) for name in ("page", "plan", "records", "summary"))
PLAN = plan_module.Plan(FOLDER / "plan.yaml", Path("files"))
CHOSEN = {method: {"learning rate": "3e-3", "masks": "15 %"} for method in PLAN.methods}
VOCABULARY = 8195


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_pretrainings_of_a_budget_cost_the_same(scale: str) -> None:
    plan = plan_module.Plan(FOLDER / "plan.yaml", Path("files"), scale)
    for run in plan.pretrainings(CHOSEN):
        if run.row == plan_module.RANDOM:
            assert (run.updates(VOCABULARY), run.options["lr"]) == (1, 0)
        else:
            assert run.updates(VOCABULARY) * run.flops(VOCABULARY) == pytest.approx(float(run.budget), rel=2e-3)


def test_seconds_of_a_pretraining_of_short_updates(tmp_path: Path) -> None:
    log = tmp_path / "result.log"
    kinds = [("train_inner", {"num_updates": "2", "train_wall": "0"})] * 20
    kinds += [("train", {"epoch": 1, "train_train_wall": "7"})]
    lines = [f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(metrics)}\n" for kind, metrics in kinds]
    log.write_text("".join(lines), encoding="utf-8")
    assert records.course(log) == {"losses": {}, "seconds": 7}


def test_methods_differ_by_one_flag() -> None:
    options = [PLAN.options(method, "3e14", CHOSEN[method]) for method in ("MLM", "control", "MAE-LM")]
    different = [{name for name in one if one[name] != other[name]} for one, other in zip(options, options[1:])]
    assert different == [{"decoder-layers"}, {"masked-input"}]


def test_seeds_rows_and_repeats_are_those_of_the_plan() -> None:
    runs = list(PLAN.pretrainings(CHOSEN))
    assert len({run.name for run in runs}) == len(runs)
    count = {
        budget: sum(run.budget == budget and run.row != plan_module.RANDOM for run in runs) for budget in PLAN.budgets
    }
    assert count == {"5e12": 0, "1e13": 9, "3e13": 9, "1e14": 9, "3e14": 15, "1e15": 5}
    assert [(run.budget, run.seed) for run in runs if run.row == plan_module.RANDOM] == [
        ("3e13", 1), ("3e13", 2), ("3e13", 3), ("3e14", 1), ("3e14", 2), ("3e14", 3), ("1e15", 1),
    ]  # fmt: skip
    assert PLAN.tasks_of("3e13") == {"MNLI-10k": 1, "QQP-10k": 1, "UD tags": 1} and not PLAN.tasks_of("1e13")
    assert PLAN.tasks_of("3e14")["CoLA"] == 3 and PLAN.tasks_of("1e15")["SST-2"] == 3


def test_each_method_has_equally_many_trials_and_one_setting_changes() -> None:
    for choice, chosen in (("learning rate", {}), ("masks", {"learning rate": "6e-3"})):
        trials = list(PLAN.trials("MAE-LM", choice, chosen))
        assert len(trials) == 3 and {run.seed for run in trials} == {0}
        rates = [(run.options["lr"], run.options["mask-prob"], run.options.get("mask-prob-end")) for run in trials]
        expected = {
            "learning rate": [(0.003, 0.3, None), (0.0015, 0.3, None), (0.006, 0.3, None)],
            "masks": [(0.006, 0.3, None), (0.006, 0.15, None), (0.006, 0.3, 0.15)],
        }
        assert rates == expected[choice]


@pytest.mark.parametrize(
    ("plan", "kept", "page"), [("plan.yaml", "records.jsonl", "results.md"), ("curve.yaml", "curve.jsonl", "curve.md")]
)
def test_published_results_follow_from_the_records(plan: str, kept: str, page: str, tmp_path: Path) -> None:
    words = ["page", "--plan", FOLDER / plan, "--records", FOLDER / kept, "--output", tmp_path / "study"]
    evidence.main([str(word) for word in words])
    made = (tmp_path / "study" / "results.md").read_text(encoding="utf-8")
    assert made == (FOLDER / page).read_text(encoding="utf-8")


def test_numbers_are_taken_from_rows_and_paths() -> None:
    rows = [{"set": f"sts-{year}", "layer": layer, "value": year * layer} for year in (12, 13) for layer in (0, 2)]
    rows.append({"set": "sts-12", "layer": None, "value": 0.1})  # as the share of the most frequent label
    own = {"list": "models.0.rows", "number": "value", "scale": 100, "values": {"a": "models.0.n"}}
    own["rows"] = {"b": {"set": "sts-*", "layer": -1}, "c": {"set": "sts-13", "layer": 0}}
    content = {"models": [{"rows": rows, "n": 0.5}]}
    assert records.numbers(own, content) == {"a": 50, "b": 2500, "c": 0}
    with pytest.raises(ValueError, match="no row of the results matches d"):
        records.numbers({**own, "rows": {"d": {"set": "x"}}}, content)


def write_files(folder: Path) -> None:
    """A text, and a task: a label of pairs that follows from one word."""
    draw = random.Random(0)
    words = [f"{first}{second}" for first in ("ka", "lo", "mi", "ne") for second in ("ta", "ru", "si", "po")]

    def sentence() -> str:
        return " ".join(draw.choice(words) for _ in range(8))

    (folder / "a.txt").write_text("\n".join(sentence() for _ in range(400)), encoding="utf-8")
    for split, count in (("train", 64), ("valid", 24)):
        rows = [(sentence(), sentence(), label) for label in ("yes", "no") for _ in range(count // 2)]
        lines = [f"{label} {first}\t{second}\t{label}" for first, second, label in rows]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def small_plan(folder: Path) -> Path:
    content: dict[str, Any] = yaml.safe_load((FOLDER / "plan.yaml").read_text(encoding="utf-8"))
    content |= {"words": {"a": 3000}, "corpus": {"vocabulary-size": 60, "valid-fraction": 0.2}, "primary": ["pairs"]}
    content["common"] |= {"max-tokens": 128, "tokens-per-sample": 32, "max-positions": 64}
    shape = {"encoder-layers": 1, "encoder-embed-dim": 32, "encoder-ffn-embed-dim": 48, "encoder-attention-heads": 2}
    content["shapes"] = {"small": shape}
    content["budgets"] = {
        "1e8": {"shape": "small", "seeds": 0, "tasks": "none", "repeats": 1},
        "3e8": {"shape": "small", "seeds": 1, "tasks": "all", "repeats": 1},
    }
    del content["methods"]["control"], content["choices"]["options"]["learning rate"]
    del content["choices"]["options"]["masks"]["30 to 15 %"]
    content["choices"]["budget"] = "1e8"
    content["common"]["lr"] = 3e-3
    prepare = "sentences --train {files}/train.tsv --valid {files}/valid.tsv"
    content["tasks"] = {"pairs": {"prepare": prepare, "labels": "valid.tsv"}}
    content["fine-tuning"] = {"lr": 1e-3, "epochs": 1, "batch-size": 32}
    rank, probes = (content["measurements"][name] for name in ("rank", "probes"))
    rank["command"] = rank["command"].replace("100000", "100")
    probes["command"] = "probe --checkpoint model={checkpoint} --output {results} --tasks {tasks}/pairs/task"
    probes["rows"] = {"frozen pairs": {**probes["rows"]["frozen SST-2"], "set": "task"}}
    content["measurements"] = {"rank": rank, "probes": probes}
    content |= {"intermediate": {"3e8": 2}, "validations": 4, "timing": {"updates": 15, "rounds": 1}}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def test_a_small_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path)
    plan, output = small_plan(tmp_path), tmp_path / "study"
    words = ["--plan", plan, "--text", f"a={tmp_path / 'a.txt'}", "--files", tmp_path, "--output", output]
    words = [str(word) for word in words]
    with pytest.raises(SystemExit, match="run the stage choose first"):
        evidence.main(["pretrain", *words])
    evidence.main(["--jobs", "2", *words])
    chosen = records_of(output)["study"]["chosen"]
    assert set(chosen) == {"MLM", "MAE-LM"} and {len(own) for own in chosen.values()} == {1}
    results = json.loads((output / "results.json").read_bytes())
    assert list(results["table"]["3e8"]) == ["random weights", "MLM", "MAE-LM"]
    for cells in results["table"]["3e8"].values():
        ranks = PLAN.content["measurements"]["rank"]["rows"]
        assert set(cells) == {"loss", "primary", "pairs", *ranks, "frozen pairs"}
        assert 0 <= cells["pairs"]["mean"] <= 100 and 1 <= cells["rank without masks"]["mean"] <= 32
    check_records(output, tmp_path)
    page = (output / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 and "http" not in page
    assert not list(output.glob("runs/*/pairs/*/model")), "fine-tuned checkpoints are deleted"
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.log")}
    evidence.main(words)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.log")} == before, "nothing is done twice"
    check_another_machine(output, words, results)


def records_of(output: Path) -> dict[str, dict[str, Any]]:
    """Name -> record of a study."""
    lines = (output / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return {record["name"]: record for record in map(json.loads, lines)}


def check_records(output: Path, files: Path) -> None:
    """The records are what the predictions and logs say, also of checkpoints inside a pretraining."""
    labels = [line.split("\t")[2] for line in (files / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    kept = records_of(output)
    for method in ("MLM", "MAE-LM"):
        run = f"3e8,_{method},_seed_1"
        record = kept[run]["results"]
        path = output / "runs" / run / "pairs" / "seed_1" / "predictions.tsv"
        predicted = [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        right = [float(one == other) for one, other in zip(predicted, labels, strict=True)]
        assert records.correct_examples(record["pairs/seed_1"]["correct"]).tolist() == right
        assert record["pairs/seed_1"]["accuracy"] == pytest.approx(100 * np.mean(right), abs=0.01)
        half = list(record["pretraining"]["losses"])[1]
        log = output / "runs" / run / "part_1" / "pairs" / "seed_1" / "training.log"
        assert f"_{half}.pt" in log.read_text(encoding="utf-8") and "part_1/pairs/seed_1" in record


def check_another_machine(output: Path, words: list[str], results: dict[str, Any]) -> None:
    """The records alone make the page, and their pretrainings are not done again."""
    kept, found = output.parent / "kept.jsonl", records_of(output)
    shutil.move(output / "records.jsonl", kept)
    shutil.rmtree(output)
    evidence.main(["choose", "pretrain", "evaluate", "page", *words[:2], *words[-2:], "--records", str(kept)])
    assert json.loads((output / "results.json").read_bytes()) == results
    assert not (output / "runs").exists()
    record = next(record for name, record in found.items() if name.startswith("3e8,_MLM"))
    changes: list[tuple[str, Callable[[], Any], str]] = [
        ("evaluate", lambda: record["results"].pop("pairs/seed_1"), "tasks/pairs/task: run the stage prepare first"),
        ("page", lambda: record["options"].update(lr=0.004), "of a pretraining with other options"),
        ("page", lambda: found["study"]["chosen"].pop("MAE-LM"), "lacks the settings of MAE-LM: run the stage choose"),
    ]
    for stage, change, message in changes:
        change()
        kept.write_text("".join(json.dumps(each) + "\n" for each in found.values()), encoding="utf-8")
        with pytest.raises(SystemExit, match=message):
            evidence.main([stage, *words, "--records", str(kept)])
