"""Studies of rows: ablations whose rows are what they say, their tables, and a small one that runs."""

import csv
import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.toy import ROOT, TOPICS, run, sentence
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_maelm.files import atomic
from fairseq_maelm.sweep import folder as store

ABLATIONS = ROOT / "examples" / "ablations" / "plan.yaml"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package.
    patch.syspath_prepend(ROOT / "examples")
    import rows as study_of_rows
    import study

    table = study_of_rows.Plan(ABLATIONS, {}).report

TINY = ["arch=maelm_tiny", "tokens-per-sample=64", "max-positions=64", "max-tokens=512", "update-freq=1"]
PREDICTS_ALL = "causal_cross"


def arguments(data: Path, output: Path, *more: Any, changes: Sequence[str] = TINY) -> Any:
    """The command line of a small study."""
    return study_of_rows.parse([str(word) for word in (ABLATIONS, data, output, "--set", *changes, *more)])


def size(arch: str, *changes: str) -> Any:
    """The plan of the ablations at a size."""
    return study_of_rows.Plan(ABLATIONS, {"arch": arch, **dict(change.split("=") for change in changes)}).content


def pretraining(args: Any, row: str) -> list[str]:
    """The command of a row's pretraining."""
    (job,) = (job for job in args.jobs if job.name == f"runs/{row}/pretraining")
    words: list[str] = job.process("").words
    return words


ROWS = study_of_rows.Plan(ABLATIONS, {}).rows


# Rows


def train_as(data: Path, name: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """What fairseq-train builds from a row's command line: task, model, and the first batch."""
    words = pretraining(arguments(data, folder, "--rows", name), name)[1:]
    place = words.index("--user-dir")
    del words[place : place + 2]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    torch.manual_seed(1)
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    task.load_dataset("train", combine=True)
    dataset = task.datasets["train"]
    batches = dataset.batch_by_size(dataset.ordered_indices(), config.dataset.max_tokens)
    return task, model, dataset.collater([dataset[int(index)] for index in batches[-1]])


def content(value: Any) -> str:
    """A digest of nested tensors and values."""
    if torch.is_tensor(value):
        value = [list(value.shape), str(value.dtype), hashlib.sha256(value.numpy().tobytes()).hexdigest()]
    if isinstance(value, dict):
        value = {name: content(each) for name, each in value.items()}
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@pytest.fixture(scope="module")
def built(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Every row as fairseq-train builds it."""
    folder = tmp_path_factory.mktemp("rows")
    return {name: train_as(toy_data, name, folder / name) for name in ROWS}


def test_rows_differ_in_effect(built: dict[str, Any]) -> None:
    """In what the encoder gets, in the parameters, or in what the decoder does with them; only named twins agree."""
    found: dict[str, list[str]] = {}
    for name, (_, model, batch) in built.items():
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        found.setdefault(content([content(batch["net_input"]), shapes, content(model.get_extra_state())]), []).append(
            name
        )
    twins = {name: names[0] for names in found.values() for name in names[1:]}
    assert twins == study.same_rows(size("maelm_tiny"))


def test_rows_get_equal_data_order_and_masks(built: dict[str, Any]) -> None:
    _, _, reference = built["maelm"]
    for name, (_, _, batch) in built.items():
        assert torch.equal(batch["id"], reference["id"])
        if name != PREDICTS_ALL:
            assert torch.equal(batch["target"], reference["target"])
            assert torch.equal(
                batch["net_input"]["layout"]["predicted_slots"], reference["net_input"]["layout"]["predicted_slots"]
            )


def test_rows_that_are_run_unless_others_are_named(toy_data: Path, tmp_path: Path) -> None:
    args = arguments(toy_data, tmp_path / "study")
    depths = {f"decoder_{layers}" for layers in ("1_layer", "2_layers", "4_layers", "6_layers")}
    assert set(ROWS) - set(args.rows) == {"delta_1", *depths}, "of two layers, one is all of these"
    for arch, same in (("maelm_base", "decoder_4_layers"), ("maelm_large_plus_plus", "decoder_2_layers")):
        assert study.same_rows(size(arch)) == {same: "maelm", "delta_1": "mlm_decoder"}
    assert study.same_rows(size("maelm_small"))["decoder_1_layer"] == "decoder_2_layers"


def test_paper_numbers() -> None:
    """As printed in Table 2."""
    printed = [row["paper"] for row in ROWS.values() if row["group"] != "Figure 4" and "paper" in row]
    assert printed == [86.1, 85.2, 85.1, 85.9, 85.1, 86.0, 86.1, 85.4, 85.5, 86.0, 85.8, 84.8, 85.8, 85.5]


@pytest.mark.parametrize(
    ("arch", "more", "layers", "narrow", "wide"),
    [
        ("maelm_base", [], [2, 6, 1, None, 12], (512, 2048, 8), (1024, 4096, 16)),
        ("maelm_small", [], [1, 3, 1, None, 6], (256, 1024, 4), (512, 2048, 8)),
        ("maelm_large_plus_plus", [], [None, 12, 2, 8, 24], (704, 2816, 11), (1344, 5376, 21)),
        ("maelm_tiny", ["encoder-layers=12"], [2, 6, None, 4, 12], (88, 352, 1), (168, 672, 3)),
        ("maelm_tiny", ["encoder-embed-dim=768", "encoder-attention-heads=12"], [None, None, None, None, 2],
         (512, 341, 8), (1024, 683, 16)),
    ],
)  # fmt: skip
def test_decoders_of_any_size(
    arch: str, more: list[str], layers: list[int | None], narrow: tuple[int, ...], wide: tuple[int, ...]
) -> None:
    """Of the encoder's depth and width the same part as in the paper; no option where that is the size's own."""
    plan = size(arch, *more)
    depths = [name for name in ROWS if name.endswith(("_layer", "_layers"))]
    assert [study.row_options(plan, name).get("decoder-layers") for name in depths] == layers
    for name, expected in (("decoder_512_wide", narrow), ("decoder_1024_wide", wide)):
        options = study.row_options(plan, name)
        fields = ("decoder-embed-dim", "decoder-ffn-embed-dim", "decoder-attention-heads")
        assert tuple(options[field] for field in fields) == expected


# The table


def write_study(folder: Path) -> None:
    """A study of five rows and three tasks with three seeds; one row failed, one lost a seed, one is not finished."""
    seeds = [11, 2, 13]
    names = ["maelm", "mlm", "mlm_decoder", "reset", "delta_0.5"]
    tasks_ = {"A": {}, "B": {}, "SQuAD": {"metric": "exact"}}
    runs = {f"runs/mlm/A/seed_{seed}": {"step": "fine-tuning", "seed": str(seed)} for seed in seeds}
    runs["runs/mlm/pretraining"] = {"step": "pretraining"}
    files: dict[str, Any] = {"settings": {"rows": dict.fromkeys(names, []), "tasks": tasks_, "seeds": 3, "runs": runs}}
    files["runs/mlm/pretraining"] = {"failed": "diverged | nan"}
    for name, *scores in (
        ("maelm", [80.0, 90.0, 81.0], [60.0, 70.0, 50.0], [40.0]),
        ("mlm_decoder", [70.0, 71.0, 72.0], [None, 50.0, 52.0], []),
        ("delta_0.5", [75.0, 76.0, 77.0], [55.0], []),
    ):
        files[f"runs/{name}/pretraining"] = {"loss": 9.25, "updates_per_second": 1.5}
        for task, own in zip(tasks_, scores):
            for seed, score in zip(seeds, own):
                result = {"failed": "exit status 1"} if score is None else {"score": score}
                files[f"runs/{name}/{task}/seed_{seed}"] = result
    for file, result in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(folder / f"{file}.json", result)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_beside_the_paper(tmp_path: Path) -> None:
    write_study(tmp_path)
    first, second, _ = table.write(tmp_path).split("\n\n", 2)
    lines = {cells(line)[2]: cells(line) for line in first.splitlines()}
    paper = ["Original", "MAE-LM", "maelm", "86.1", "+0.0"]
    # Answers to questions are not in the average.
    assert lines["maelm"] == [*paper, "81.0", "60.0", "40.0 (2 not run)", "70.5", "+0.0", "9.250", "1.50", ""]
    assert lines["mlm_decoder"][3:7] == ["85.1", "-1.0", "71.0", "51.0 (1 failed)"] and lines["mlm_decoder"][8] == "–"
    assert lines["delta_0.5"][3:7] == ["–", "–", "76.0", "55.0 (2 not run)"]
    assert lines["mlm"][5] == "– (3 not run)" and lines["mlm"][8:] == ["–", "–", "–", "–", "failed: diverged / nan"]
    assert lines["reset"][-1] == "not finished"
    assert second.startswith("Figure 4")
    assert (tmp_path / "table.md").read_text(encoding="utf-8").startswith(first)
    with open(tmp_path / "table.csv", encoding="utf-8") as stream:
        written = {line["row"]: line for line in csv.DictReader(stream)}
    assert list(written) == ["maelm", "mlm", "mlm_decoder", "reset", "delta_0.5"]
    ends = ("A_median", "A_lowest", "A_highest", "A_scores", "average", "paper_glue")
    assert [written["maelm"][name] for name in ends] == ["81.0", "80.0", "90.0", "80 90 81", "70.5", "86.1"]
    assert [written["mlm_decoder"][name] for name in ("B_scores", "B_failed", "average")] == ["50 52", "1", ""]
    # The end of Figure 4 is the row that computes the same; tasks of questions are drawn by themselves.
    with open(tmp_path / "figure_4.csv", encoding="utf-8") as stream:
        series = [(line["row"], line["delta"], line["SQuAD_median"]) for line in csv.DictReader(stream)]
    assert series == [("maelm", "0.0", "40.0"), ("delta_0.5", "0.5", ""), ("delta_1", "1.0", "")]
    assert (tmp_path / "figure_4.png").read_bytes().startswith(b"\x89PNG")


def log_line(kind: str, **metrics: Any) -> str:
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(metrics)}\n"


def test_results_are_read_from_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [log_line("train_inner", ups=speed) for speed in ("1.0", "3.0", "2.0", "0")]
    lines += [log_line("valid", valid_loss=loss, valid_accuracy=score) for loss, score in (("9", "50"), ("8.5", "40"))]
    log.write_text("".join([*lines, "no record\n", '| INFO | valid | {"cut off']), encoding="utf-8")
    assert study.last_loss(log) == {"loss": 8.5, "updates_per_second": 2.0}
    log.write_text(log_line("valid", valid_loss="8") + log_line("valid", valid_loss="nan"), encoding="utf-8")
    with pytest.raises(ValueError, match="diverged"):
        study.last_loss(log)


# Commands


def test_commands_for_gpus(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    changes = [*TINY[:-1], "update-freq=4"]
    args = arguments(toy_data, tmp_path / "study", "--gpus", "0,1", "2,3", "--rows", "maelm", changes=changes)
    (job,) = args.jobs
    assert job.resumes
    process = job.process("2,3")
    assert process.environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    for name, value in (("--distributed-world-size", "2"), ("--update-freq", "2")):
        assert process.words[process.words.index(name) + 1] == value
    assert "--fp16" in process.words and "--cpu" not in process.words
    assert "--fp16-no-flatten-grads" not in process.words
    args = arguments(toy_data, tmp_path / "muon", "--gpus", "0", "--rows", "maelm", changes=[*TINY, "optimizer=muon"])
    assert "--fp16-no-flatten-grads" in args.jobs[0].process("0").words, "Muon needs the shapes of the weights"


@pytest.mark.parametrize(("version", "prefix"), [("1.1", ""), ("2.0", "best_")])
def test_questions_are_fine_tuned_by_their_own_recipe(
    version: str, prefix: str, toy_data: Path, tmp_path: Path
) -> None:
    """SQuAD is scored by EM unless F1 is asked for, in 2.0 with the best threshold, as the paper's Figure 4 is."""
    (tmp_path / "train.npz").touch()
    (tmp_path / "valid.json").write_text(json.dumps({"version": version}))
    task = ["--rows", "maelm", "--tasks", f"SQuAD={tmp_path}"]
    log = tmp_path / "log"
    log.write_text(log_line("valid", **{f"valid_{prefix}exact": 40, f"valid_{prefix}f1": 50, "valid_num_updates": 9}))
    for metrics, score in (([], 40.0), (["--metrics", "SQuAD=answer_f1"], 50.0)):
        _, _, second, *_ = arguments(toy_data, tmp_path / "study", *task, *metrics).jobs
        assert second.result(log)["score"] == score
    words = second.process("0").words
    assert words[:3] == ["maelm", "finetune", str(tmp_path)]
    for name, value in (("--seed", "2"), ("--epochs", "3"), ("--gpus", "0")):
        assert words[words.index(name) + 1] == value
    assert second.process("0,1").environment == {"CUDA_VISIBLE_DEVICES": "0"}, "one GPU is enough"
    with pytest.raises(SystemExit):
        arguments(toy_data, tmp_path / "study", *task, "--metrics", "SQuAD=mcc")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rows", "bert"], "there is no row bert"),
        (["--tasks", "A=no/such/folder"], "there is no train.npz or label/dict.txt or input0/train.idx"),
        (["--tasks", "folder"], "must be NAME=VALUE"),
        (["--tasks", "A=x", "A=y"], "same name"),
        (["--metrics", "A=mcc"], "A=...: there is no task of this name"),
        (["--seeds", "0"], "must be at least 1, not 0"),
        (["--set", "fine-tuning"], "must be NAME=VALUE"),
        (["--set", "nothing.lr=1"], "there is no such setting"),
        (["--gpus", "0,1"], "must be a multiple of the 2 GPUs"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(
    more: list[str], message: str, toy_data: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(SystemExit):
        arguments(toy_data, tmp_path / "study", *more)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


# All of it


def make_task(data: Path, folder: Path) -> Path:
    """Prepare the classification of toy sentences by topic."""
    generator = random.Random(5)
    topics = [generator.choice(sorted(TOPICS)) for _ in range(72)]
    lines = [f"{sentence(topic, generator)}\t{topic}\n" for topic in topics]
    for name, part in (("train", lines[:48]), ("valid", lines[48:])):
        (folder / f"{name}.tsv").write_text("".join(part), encoding="utf-8")
    tables = ["--train", folder / "train.tsv", "--valid", folder / "valid.tsv"]
    run(["maelm", "prepare", "sentences", "--vocabulary", data, *tables, "--output", folder / "task"])
    return folder / "task"


@pytest.mark.slow
def test_a_small_study_that_grows(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    task, output = make_task(toy_data, tmp_path), tmp_path / "study"
    common = [ABLATIONS, toy_data, output, "--set", *TINY, "updates=2", "seeds=1", "fine-tuning.epochs=1"]
    common = [str(word) for word in common]
    study_of_rows.main([*common, "--rows", "maelm"])
    whole = [*common, "--rows", "maelm", "mlm", "--tasks", f"topics={task}"]
    study_of_rows.main(whole)
    results = {result.name: result for result in table.collect(output)}
    assert list(results) == ["maelm", "mlm"]
    assert all(result.state == "" and 6 < result.loss < 10 for result in results.values())
    assert results["maelm"].loss != results["mlm"].loss
    # A whole number of the 24 sentences; fairseq writes three digits.
    assert all(abs(result.average * 0.24 - round(result.average * 0.24)) < 0.02 for result in results.values())
    assert (output / "table.md").read_text(encoding="utf-8").count("86.1") == 1

    marked = {path: path.stat().st_mtime_ns for path in output.rglob("*.json") if path.name != store.SETTINGS}
    assert len(marked) == 4
    capsys.readouterr()
    study_of_rows.main(whole)
    assert "4 of 4 runs done earlier" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in marked} == marked
    with pytest.raises(SystemExit, match=r"other settings \(plan common lr"):
        study_of_rows.main([*common, "lr=1e-3", "--rows", "maelm"])
