"""Where a training step's time goes: names of kernels, arithmetic, and a small run of all contenders."""

import json

import pytest
import step_breakdown
from benchmark_data import prepared_data


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::_softmax_backward_data", "softmax"),
        ("aten::random_", "dropout"),
        ("aten::addcmul", "dropout"),
        ("aten::ge", "dropout"),
        ("aten::gelu_backward", "GELU"),
        ("aten::native_layer_norm_backward", "layer norm"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::linalg_vector_norm", "gradient norm"),
        ("aten::index_select", "embeddings"),
        ("aten::copy_", "copies"),
        ("aten::mul_", "sums and products of elements"),
        ("aten::expand", "other"),
        ("aten::view", "other"),
    ],
)
def test_kernels_have_groups(kernel: str, group: str) -> None:
    assert step_breakdown.group_of(kernel) == group


def test_seconds_are_added_up_by_group() -> None:
    assert step_breakdown.grouped([("aten::mm", 2.0), ("aten::bmm", 1.0), ("aten::view", 0.5)]) == {
        "matrix products": 3.0,
        "other": 0.5,
    }


def test_shares_are_medians_of_the_rounds_own_ratios() -> None:
    rounds = [
        {"matrix products": 2.0, "total": 3.0, "bare": 1.0},
        {"matrix products": 22.0, "total": 24.0, "bare": 20.0},
        {"matrix products": 1.5, "GELU": 0.5, "total": 2.0, "bare": 1.0},
    ]
    found = step_breakdown.shares(rounds)
    assert found["matrix products"] == (1.5, 1.1, 2.0)
    assert (found["GELU"][0], found["total"][0]) == (0.0, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "contenders"),
    [
        ([], {"maelm", "mlm", "roberta"}),
        (["--contenders", "modern", "modernbert", "--precision", "bf16"], {"modern", "modernbert"}),
    ],
)
def test_small_run(options: list[str], contenders: set[str], tmp_path, capsys) -> None:
    if "modernbert" in contenders:
        pytest.importorskip("transformers")
    output = tmp_path / "breakdown.json"
    words = ["--data", str(prepared_data(tmp_path / "data")), "--output", str(output), "--size", "tiny"]
    step_breakdown.main([*words, "--length", "32", "--batch", "2", "--rounds", "1", "--threads", "1", *options])
    content = json.loads(output.read_text())
    assert content["rounds"] == 1 and set(content["shares"]) == contenders
    for shares in content["shares"].values():
        medians = {group: median for group, (median, _, _) in shares.items()}
        assert sum(medians.values()) == pytest.approx(2 * medians["total"], rel=1e-4)
        assert all(medians[group] > 0 for group in ("matrix products", "layer norm", "GELU", "dropout", "optimizer"))
    shown = capsys.readouterr().out
    assert shown == output.with_suffix(".md").read_text() and "| matrix products " in shown
