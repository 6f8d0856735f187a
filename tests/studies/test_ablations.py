"""Ablations: rows that are what they say, the paper's numbers, the tables, and a small study."""

import csv
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.process_server import programs
from end_to_end.toy import ROOT, TOPICS, run, sentence
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_maelm.files.atomic import write_json

PROGRAM = ROOT / "studies" / "ablations" / "ablations.py"
with pytest.MonkeyPatch.context() as patch:
    # Modules of studies are in no package.
    patch.syspath_prepend(PROGRAM.parent)
    import ablations
    import table_2
    from variants import ROWS, row_options, same_rows

TINY = ["--arch", "maelm_tiny", "--option", "tokens-per-sample=64", "max-positions=64", "max-tokens=512"]
PREDICTS_ALL = "causal_cross"


def pretraining(data: Path, output: Path, *more: str) -> list[str]:
    """The command of the pretraining of the only row."""
    args = ablations.parse([str(data), str(output), *TINY, "update-freq=4", *more])
    (row,) = args.rows
    return list(ablations.pretraining_program(args, row).words)


def train_as(data: Path, name: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What fairseq-train builds from a row's command line: the model, and the first batch."""
    words = pretraining(data, folder, "--rows", name)[1:]
    place = words.index("--user-dir")
    del words[place : place + 2]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    torch.manual_seed(1)
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    task.load_dataset("train", combine=True)
    dataset = task.datasets["train"]
    batches = dataset.batch_by_size(dataset.ordered_indices(), config.dataset.max_tokens)
    return model, dataset.collater([dataset[int(index)] for index in batches[-1]])


def content(value: Any) -> str:
    """A digest of nested tensors and values."""
    if torch.is_tensor(value):
        value = [list(value.shape), str(value.dtype), hashlib.sha256(value.numpy().tobytes()).hexdigest()]
    if isinstance(value, dict):
        value = {name: content(each) for name, each in value.items()}
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@pytest.fixture(scope="module")
def built(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every row as fairseq-train builds it."""
    folder = tmp_path_factory.mktemp("rows")
    return {name: train_as(toy_data, name, folder / name) for name in ROWS}


def test_rows_differ_in_effect(built: dict[str, Any]) -> None:
    """In what the encoder gets, in the parameters, or in what the decoder does with them; only known twins agree."""
    found: dict[str, list[str]] = {}
    for name, (model, batch) in built.items():
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        effect = content([content(batch["net_input"]), shapes, content(model.get_extra_state())])
        found.setdefault(effect, []).append(name)
    twins = {name: names[0] for names in found.values() for name in names[1:]}
    assert twins == same_rows({"arch": "maelm_tiny"})


def test_rows_get_equal_data_order_and_masks(built: dict[str, Any]) -> None:
    _, reference = built["maelm"]
    for name, (_, batch) in built.items():
        assert torch.equal(batch["id"], reference["id"])
        if name != PREDICTS_ALL:
            slots, expected = (each["net_input"]["layout"]["predicted_slots"] for each in (batch, reference))
            assert torch.equal(batch["target"], reference["target"]) and torch.equal(slots, expected)


def test_twins_are_run_only_if_they_are_named(toy_data: Path, tmp_path: Path) -> None:
    args = ablations.parse([str(toy_data), str(tmp_path), *TINY])
    depths = {f"decoder_{layers}" for layers in ("1_layer", "2_layers", "4_layers", "6_layers")}
    assert set(ROWS) - set(args.rows) == {"delta_1", *depths}, "of two layers, one is all of these"
    assert same_rows({"arch": "maelm_base"}) == {"decoder_4_layers": "maelm", "delta_1": "mlm_decoder"}
    assert same_rows({"arch": "maelm_small"})["decoder_1_layer"] == "decoder_2_layers"


def test_paper_numbers() -> None:
    """As printed in Table 2."""
    printed = [row.paper for row in ROWS.values() if row.group != "Figure 4" and row.paper is not None]
    assert printed == [86.1, 85.2, 85.1, 85.9, 85.1, 86.0, 86.1, 85.4, 85.5, 86.0, 85.8, 84.8, 85.8, 85.5]


@pytest.mark.parametrize(
    ("common", "layers", "narrow", "wide"),
    [
        ({"arch": "maelm_base"}, [2, 6, 1, None, 12], (512, 2048, 8), (1024, 4096, 16)),
        ({"arch": "maelm_large_plus_plus"}, [None, 12, 2, 8, 24], (704, 2816, 11), (1344, 5376, 21)),
        ({"arch": "maelm_tiny", "encoder-layers": 12}, [2, 6, None, 4, 12], (88, 352, 1), (168, 672, 3)),
    ],
)
def test_decoders_of_any_size(common: dict[str, Any], layers: list[Any], narrow: Any, wide: Any) -> None:
    """Of the encoder's depth and width the same part as in the paper; no option where that is the size's own."""
    depths = [name for name, row in ROWS.items() if row.depth]
    assert [row_options(name, common).get("decoder-layers") for name in depths] == layers
    fields = ("decoder-embed-dim", "decoder-ffn-embed-dim", "decoder-attention-heads")
    for name, expected in (("decoder_512_wide", narrow), ("decoder_1024_wide", wide)):
        assert tuple(row_options(name, common)[field] for field in fields) == expected


def test_tables_beside_the_paper(tmp_path: Path) -> None:
    """One row failed, one lost a seed, one is not finished."""
    names, metrics, seeds = ["maelm", "mlm", "mlm_decoder", "reset", "delta_0.5"], {"A": "mcc", "SQuAD": "exact"}, 3
    runs = {f"runs/mlm/A/seed_{seed + 1}": {"seed": seed + 1} for seed in range(seeds)}
    files: dict[str, Any] = {"runs/mlm/pretraining": {"failed": "diverged | nan"}}
    files["settings"] = {
        "models": dict.fromkeys(names, {}), "tasks": {name: {"metric": each} for name, each in metrics.items()},
        "runs": runs,
    }  # fmt: skip
    for name, *scores in (
        ("maelm", [60.0, 70.0, 50.0], [40.0]), ("mlm_decoder", [None, 50.0, 52.0], []), ("delta_0.5", [55.0], []),
    ):  # fmt: skip
        files[f"runs/{name}/pretraining"] = {"loss": 9.25, "updates_per_second": 1.5}
        for task, own in zip(metrics, scores):
            for seed, score in enumerate(own):
                result = {"failed": "exit status 1"} if score is None else {"score": score}
                files[f"runs/{name}/{task}/seed_{seed + 1}"] = result
    for file, result in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        write_json(tmp_path / f"{file}.json", result)

    first, second, _ = table_2.write(tmp_path).split("\n\n", 2)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    lines = {own[2]: own[3:] for own in cells}
    # Answers to questions are not in the average.
    assert lines["maelm"] == ["86.1", "+0.0", "60.0", "40.0 (2 not run)", "60.0", "+0.0", "9.250", "1.50", ""]
    assert lines["mlm_decoder"][:3] == ["85.1", "-1.0", "51.0 (1 failed)"] and lines["mlm_decoder"][4] == "–"
    assert lines["mlm"][2] == "– (3 not run)" and lines["mlm"][-1] == "failed: diverged / nan"
    assert lines["reset"][-1] == "not finished"
    assert second.startswith("Figure 4")
    assert (tmp_path / "table.md").read_text(encoding="utf-8").startswith(first)
    written = {line["row"]: line for line in csv.DictReader((tmp_path / "table.csv").read_text("utf-8").splitlines())}
    ends = ("A_median", "A_lowest", "A_highest", "A_scores", "average", "paper_glue")
    assert list(written) == names
    assert [written["maelm"][name] for name in ends] == ["60.0", "50.0", "70.0", "60 70 50", "60.0", "86.1"]
    # The end of Figure 4 is the row that computes the same; tasks of questions are drawn by themselves.
    series = csv.DictReader((tmp_path / "figure_4.csv").read_text("utf-8").splitlines())
    points = [(line["row"], line["delta"], line["SQuAD_median"]) for line in series]
    assert points == [("maelm", "0.0", "40.0"), ("delta_0.5", "0.5", ""), ("delta_1", "1.0", "")]
    assert (tmp_path / "figure_4.png").read_bytes().startswith(b"\x89PNG")


def test_update_is_the_same_on_several_gpus(toy_data: Path, tmp_path: Path, capsys: Any) -> None:
    words = pretraining(toy_data, tmp_path, "--rows", "maelm", "--gpus", "0,1", "2,3", "--dry-run")
    assert words[words.index("--update-freq") + 1] == words[words.index("--distributed-world-size") + 1] == "2"
    with pytest.raises(SystemExit):
        pretraining(toy_data, tmp_path, "--rows", "maelm", "--gpus", "0,1,2", "--dry-run")
    assert "must be a multiple of the 3 GPUs" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "prefix"), [("1.1", ""), ("2.0", "best_")])
def test_scores_of_questions(version: str, prefix: str, toy_data: Path, tmp_path: Path) -> None:
    """EM unless F1 is asked for, in SQuAD 2.0 with the best threshold, as the paper's Figure 4 is."""
    (tmp_path / "train.npz").touch()
    (tmp_path / "valid.json").write_text(json.dumps({"version": version}))
    log, scores = tmp_path / "log", {f"valid_{prefix}exact": 40, f"valid_{prefix}f1": 50, "valid_num_updates": 9}
    log.write_text(f"2026-01-01 00:00:00 | INFO | valid | {json.dumps(scores)}\n")
    for metrics, score in (([], 40.0), (["--metrics", "SQuAD=answer_f1"], 50.0)):
        args = ablations.parse([str(toy_data), str(tmp_path / "study"), "--tasks", f"SQuAD={tmp_path}", *metrics])
        assert ablations.fine_tuning_program(args, "maelm", "SQuAD", 2).result(log)["score"] == score


@pytest.mark.slow
def test_a_small_study_that_grows(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(programs() / "python"))
    generator = random.Random(5)
    topics = [generator.choice(sorted(TOPICS)) for _ in range(72)]
    lines = [f"{sentence(topic, generator)}\t{topic}\n" for topic in topics]
    for name, part in (("train", lines[:48]), ("valid", lines[48:])):
        (tmp_path / f"{name}.tsv").write_text("".join(part), encoding="utf-8")
    files = ["--train", tmp_path / "train.tsv", "--valid", tmp_path / "valid.tsv"]
    run(["maelm", "prepare", "sentences", "--vocabulary", toy_data, *files, "--output", tmp_path / "task"])

    output = tmp_path / "study"
    command = [str(toy_data), str(output), *TINY, "update-freq=1", "--updates", "2"]
    ablations.main([*command, "--rows", "maelm"])
    marker = output / "runs" / "maelm" / "pretraining.json"
    loss = json.loads(marker.read_bytes())["loss"]
    # As if it had been interrupted before its end.
    marker.unlink()
    task = ["--tasks", f"topics={tmp_path / 'task'}", "--seeds", "1", "--fine-tuning", "epochs=1"]
    with pytest.raises(SystemExit, match="fine-tuning epochs: 3 then, 1 now"):
        ablations.main([*command, *task])
    whole = [*command, "--rows", "maelm", "mlm", *task[:-2]]
    ablations.main(whole)
    results = {result.name: result for result in table_2.collect(output)}
    assert list(results) == ["maelm", "mlm"] and all(result.state == "" for result in results.values())
    assert results["maelm"].loss == loss != results["mlm"].loss and 6 < loss < 10
    assert marker.with_suffix(".log").read_text(encoding="utf-8").count("$ fairseq-train") == 2, "it went on"
    # A whole number of the 24 sentences; fairseq writes three digits.
    assert all(abs(result.average * 0.24 - round(result.average * 0.24)) < 0.02 for result in results.values())
    assert (output / "table.md").read_text(encoding="utf-8").count("86.1") == 1

    marked = {path: path.stat().st_mtime_ns for path in (output / "runs").rglob("*.json") if path.name != "run.json"}
    assert len(marked) == 4
    ablations.main(whole)
    assert {path: path.stat().st_mtime_ns for path in marked} == marked
