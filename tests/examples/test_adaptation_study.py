"""The study of adaptation with and without <mask>: its commands, how it chooses rates, and its tables."""

import json
from pathlib import Path
from typing import Any

import pytest
from end_to_end.toy import ROOT

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.studies.plan import Places

PLAN = ROOT / "examples" / "adaptation" / "study.yaml"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package.
    patch.syspath_prepend(ROOT / "examples")
    import rows

    study = rows.Plan(PLAN, {}).report

FILES = ("checkpoint", "treebank", "blimp", "papers", "papers-valid", "spoken", "spoken-valid")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The arguments for three rows and a task."""
    for name in ("dict.txt", "sentencepiece.bpe.model", *FILES):
        (tmp_path / name).touch()
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"text": "a", "label": "b"}\n' * 1700)
    given = [f"{name}={tmp_path / name}" for name in FILES]
    asked = ["--rows", "before", "papers-1M-mae-lm", "papers-1M-half", "--tasks", f"scicite={tmp_path}"]
    return [str(PLAN), str(tmp_path), str(tmp_path / "o"), "--dry-run", *asked, "--set", *given]


@pytest.fixture
def commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The commands of these rows."""
    rows.main(words)
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]


def test_fine_tuning_waits_for_the_task_and_for_the_rates_of_other_rows(words: list[str]) -> None:
    jobs = {job.name: job for job in rows.parse(words).steps.jobs()}
    waits = [{job.name for job in group} for group in jobs["tuned/papers-1M-half_scicite_2"].after]
    choice = {f"tuned/{row}_scicite_at_{rate}" for row in ("before", "papers-1M-mae-lm") for rate in ("3e-4", "1e-3")}
    assert waits == [{"runs/papers-1M-half_2"}, {"runs/prepare_scicite"}, choice]


def test_everything_is_measured_before_and_after(commands: list[str]) -> None:
    def count(*parts: str) -> int:
        return sum(all(part in command for part in parts) for command in commands)

    assert count("maelm pretrain", "max-update=488") == 6
    assert count("maelm pretrain", "encoder-mask-fraction=0.5", "lr=5e-4") == 3
    assert not count("maelm pretrain", "--objective mlm")
    # Of three rows and three seeds: three texts, and one of each kind of measurement.
    assert count("fairseq-validate", "--leave-unmasked-prob 0") == 27
    assert [count(f"maelm {name}") for name in ("score", "analyze", "probe", "predict")] == [9] * 4
    # Two rates for each way to mask, then three seeds of each row.
    assert count("maelm finetune", "-- --no-save") == 4
    assert count("maelm finetune", "--disable-validation") == 9
    # 19,200 examples of 1,700.
    assert count("maelm finetune", "--epochs 12") == 13


def test_examples_of_a_tagging_file_end_at_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("a O\nb O\n\nc O\n\n\nd O\n")
    known = {"folder": tmp_path, "kind": "conll", "fine-tuning-examples": 7}
    assert study.PLACES["epochs"](Places(known, {})) == 3


def test_fine_tuned_models_are_removed_when_they_have_a_score(tmp_path: Path) -> None:
    texts = rows.Plan(PLAN, {}).content["texts"]
    known = {"output": tmp_path, "row": "a", "task": "b", "seed": 1, **texts}
    for name in ("tuned/a_b_1", "scores"):
        (tmp_path / name).mkdir(parents=True)
    study.tidy(Places(known, {}))
    assert (tmp_path / "tuned" / "a_b_1").exists()
    write_json(tmp_path / "scores" / "a_b_1.json", {"f1": 50})
    study.tidy(Places(known, {}))
    assert not (tmp_path / "tuned" / "a_b_1").exists()


def test_the_rate_with_the_highest_score_is_chosen(tmp_path: Path) -> None:
    methods = {"half": {"rates-of": "papers-1M-mae-lm"}}
    known = {"output": tmp_path, "method": "half", "task": "a", "fine-tuning-rates": "1e-3 2e-3 4e-3"}
    places = {**known, "plan": {"methods": methods}}
    assert study.PLACES["chosen-fine-tuning-rate"](places) == "1e-3"
    own = {"step": "choice", "row": "papers-1M-mae-lm", "task": "a"}
    results = {"1e-3": {"dev": 60}, "2e-3": {"dev": 70}, "4e-3": {"failed": "diverged"}}
    runs: dict[str, Any] = {rate: {**own, "fine-tuning-rate": rate} for rate in results}
    write_json(tmp_path / "settings.json", {"runs": {**runs, "b": {**own, "task": "b", "fine-tuning-rate": "9"}}})
    write_json(tmp_path / "b.json", {"dev": 99})
    for rate, result in results.items():
        write_json(tmp_path / f"{rate}.json", result)
    assert study.PLACES["chosen-fine-tuning-rate"](places) == "2e-3"


def test_tables_are_made_from_records(tmp_path: Path) -> None:
    lines = [
        "row,seed,what,value",
        "before,1,BLiMP,60",
        "a,1,BLiMP,61",
        "a,2,BLiMP,63",
        "a,3,BLiMP,65",
        "a,1e-3,bits,6",
    ]
    (tmp_path / "study.csv").write_text("\n".join(lines) + "\n")
    table = study.tables(study.read(tmp_path / "study.csv"))
    # Student's t for two degrees of freedom is 4.303, the standard error 2 / sqrt(3).
    assert "60" in table and "63 (58.03 to 67.97)" in table
    assert [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]] == ["a", "bits", "1e-3", "6"]


def test_what_masks_have_of_their_own(tmp_path: Path) -> None:
    ranks = [("whole", "real", 40), ("masked", "all", 45), ("masked", "mask", 9), ("masked", "real", 41)]
    model = {
        "ranks": [{"condition": first, "token_set": second, "effective_rank": rank} for first, second, rank in ranks],
        "subspace": [
            {"reference": reference, "mask_energy_outside": share, "mask_dimensions": count}
            for reference, share, count in (("masked", 0.5, 7), ("whole", 0.25, 3))
        ],
    }
    (tmp_path / "a_analysis").mkdir()
    (tmp_path / "a_analysis" / "results.json").write_text(json.dumps([model]))

    assert study.rank(Places({"results": tmp_path / "a"}, {}), tmp_path) == {
        "rank, no masks": 40, "rank, with masks": 45, "rank, masks": 9, "energy of masks outside": 25,
        "directions of masks alone": 3,
    }  # fmt: skip
