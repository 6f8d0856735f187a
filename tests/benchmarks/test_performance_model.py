"""The model of a GPU's step: counting instructions, adding up waves, reading a measurement."""

import json

import performance_model
import pytest
from performance_model import CARDS, RESULTS, measured_rate, predict, relative_attention_seconds, waves_seconds
from training_step.store import read_runs, write_runs

KERNEL = {"block": [64, 128, 4, 2], "clocks": 1000, "tensor_clocks": 512, "blocks": 2}
H100 = CARDS["H100"]


def test_a_wave_takes_as_long_whether_it_is_full_or_not():
    turn = 1000 / H100.clock / performance_model.REACHED
    assert waves_seconds(H100, KERNEL, 1, 1) == pytest.approx(2 * turn)
    assert waves_seconds(H100, KERNEL, 264, 3) == pytest.approx(6 * turn)
    assert waves_seconds(H100, KERNEL, 265, 3) == pytest.approx(12 * turn)
    busy = {**KERNEL, "tensor_clocks": 2000}
    assert waves_seconds(H100, busy, 1, 1) == pytest.approx(4 * turn)


def recorded(capability):
    kernels = json.loads((RESULTS / "kernel_compilation.json").read_text())["kernels"]
    return {each["kernel"]: each for each in kernels if each["capability"] == capability and each["dropout"] > 0}


def test_predictions_add_up():
    parts = predict(H100, "maelm_base", recorded(90))
    layer = relative_attention_seconds(H100, recorded(90), 12, 128, 435)
    assert parts["relative attention"] == pytest.approx(12 * layer) and parts["flash attention"] > 0
    modern = predict(H100, "maelm_modern_150m", recorded(90))
    assert modern["relative attention"] == 0 and modern["flash attention"] > parts["flash attention"]
    faster = predict(CARDS["H200"], "maelm_base", recorded(90))
    assert faster["elements"] < parts["elements"] and faster["products"] == parts["products"]
    table = list(performance_model.rows([*recorded(80).values(), *recorded(90).values()], []))
    assert [row["card"] for row in table[:: len(performance_model.BATCHES)]] == list(CARDS)


def test_reads_a_measurement():
    settings = {"size": "base", "precision": "bf16", "masking": 0.15, "length": 512, "sequences": 128}
    run = {
        "settings": settings,
        "machine": {"gpu": "NVIDIA H200"},
        "contenders": {"maelm": {"wall": {"seconds": [0.1]}}},
    }
    assert measured_rate([run], "H200", "maelm_base") == "655"
    assert measured_rate([run], "H100", "maelm_base") == measured_rate([run], "H200", "maelm_modern_150m") == "-"


MACHINE_CODE = """
.L_x_1:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   FFMA R1, R2, R3, R4 ;
        /*0040*/                   MUFU.EX2 R1, R1 ;
        /*0050*/                   IMAD.WIDE R4, R1, 0x4, R2 ;
        /*0060*/                   LDG.E.CONSTANT R1, desc[UR4][R4.64] ;
        /*0070*/              @!P1 BRA `(.L_x_2) ;
        /*0080*/                   EXIT ;
"""


def test_counts_the_longest_loop_by_pipe():
    kernel_compilation = pytest.importorskip("kernel_compilation", reason="needs triton")
    loop = kernel_compilation.longest_loop(MACHINE_CODE)
    assert loop == ["FFMA", "MUFU.EX2", "IMAD.WIDE", "LDG.E.CONSTANT", "BRA"]
    clocks = kernel_compilation.clocks_of_pipes(loop, 90)
    assert clocks == {"issue": 5, "multiply": 5, "transcendental": 8, "memory": 4}
    assert kernel_compilation.clocks_of_pipes(loop, 80)["multiply"] == 6


def test_measurements_stand_beside_predictions_for_their_card(tmp_path):
    runs = read_runs(RESULTS / "pretraining_cpu.json")
    run = next(each for each in runs if (each["settings"]["precision"], each["settings"]["masking"]) == ("bf16", 0.15))
    on_gpu = {**run, "machine": {**run["machine"], "gpu": "NVIDIA H200"}}
    write_runs(tmp_path / "step.json", [run, on_gpu])
    found = performance_model.compare(tmp_path / "step.json")
    predicted = [each["measured"]["name"] for each in found if each["predicted"] is not None]
    assert predicted == ["maelm"] and len(found) == 2 * len(run["contenders"])
    (ours,) = (each for each in found if each["predicted"] is not None)
    assert (ours["predicted"]["card"], ours["predicted"]["size"]) == ("H200", "base")
    assert ours["measured"]["tokens_per_second"] > 0 and ours["machine"]["gpu"] == "NVIDIA H200"
