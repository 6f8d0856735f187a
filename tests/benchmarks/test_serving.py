"""The comparison of encoders on a CPU: its arithmetic, its table, and a small run of every contender."""

import json
from pathlib import Path

import pytest
import serving
from interop.export.checkpoints import train_vocabulary


def measurement(contender: str, batch: int, length: int, *walls: float) -> list[dict[str, object]]:
    case = {"contender": contender, "batch": batch, "length": length}
    return [{**case, "round": number, "wall": wall, "processor": 2 * wall} for number, wall in enumerate(walls)]


def test_tokens_per_second_are_of_the_median_round() -> None:
    results = [*measurement("hub", 2, 10, 0.1, 0.2, 9.0), *measurement("onnx", 2, 10, 0.05, 0.05, 0.1)]
    assert serving.speeds(results, "wall") == {("hub", 2, 10): 100.0, ("onnx", 2, 10): 400.0}
    assert serving.speeds(results, "processor")[("hub", 2, 10)] == 50.0
    lines = serving.table(results).split("\n")
    assert lines[0] == "| | 2 x 10 |" and lines[2] == "| hub interface | 100 (1.00) |"
    assert lines[3] == "| onnxruntime, single precision | 400 (4.00) |"


def test_ratios_are_taken_within_rounds() -> None:
    results = [*measurement("hub", 2, 10, 0.1, 0.2, 9.0), *measurement("onnx", 2, 10, 0.05, 0.05, 9.0)]
    assert serving.ratios(results, "wall") == {("hub", 2, 10): 1.0, ("onnx", 2, 10): 2.0}
    kept = serving.summary(results)
    assert (kept[1]["rounds"], kept[1]["wall"], kept[1]["wall_ratio"]) == (3, (0.05, 0.05, 9.0), 2.0)


def test_a_measurement_counts_calls() -> None:
    calls: list[int] = []
    taken = serving.measure(lambda: calls.append(1), 0.0)
    assert len(calls) == 1 and taken["wall"] > 0.0
    many: list[int] = []
    taken = serving.measure(lambda: many.append(1), 0.01)
    assert len(many) >= 2 and taken["wall"] * (len(many) - 1) >= 0.01


@pytest.mark.exhaustive
def test_contenders_are_measured_in_turn(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("onnxruntime")
    contenders = ["hub", "onnx"]
    pytest.importorskip("onnxscript")
    data = train_vocabulary(tmp_path / "data")
    output = tmp_path / "serving.json"
    words = ["--data", data, "--output", output, "--size", "maelm_tiny", "--rounds", 2, "--seconds", 0.01]
    serving.main(
        [str(word) for word in [*words, "--threads", 1, "--batches", 1, 2, "--lengths", 5, "--contenders", *contenders]]
    )
    content = json.loads(output.read_text())
    assert len(content["measurements"]) == 2 * len(contenders)
    assert all(each["rounds"] == 2 for each in content["measurements"])
    assert {each["contender"] for each in content["measurements"]} == set(contenders)
    assert all(each["wall"][1] > 0 for each in content["measurements"]) and content["machine"]["threads"] == 1
    table = output.with_suffix(".md").read_text()
    assert all(serving.CONTENDERS[name] in table for name in contenders)
