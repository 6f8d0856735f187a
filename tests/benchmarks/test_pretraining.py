"""The comparison of training steps: its arithmetic, its tables, its files, and a small run with everything real."""

import json
from dataclasses import replace
from typing import Any

import pretraining
import pytest
import torch
from benchmark_data import prepared_data
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training_step import store
from training_step.contenders import CONTENDERS, fairseq_options, split_name
from training_step.cost import model_shape, shape_flops, step_flops, step_products
from training_step.fairseq_data import full_batches
from training_step.fairseq_session import FairseqSession, configuration, ours_defaults
from training_step.metrics import Spread, datasheet_peak, evaluate, ratio, summarize
from training_step.products import BareProducts
from training_step.report import report
from training_step.settings import Settings

from fairseq_maelm.architecture.config import complete_config
from fairseq_maelm.architecture.encoder_options import SIZES as ARCHITECTURES
from fairseq_maelm.models.flops import ModelShape

SETTINGS = Settings("tiny", 2, 32, 64, 4, 1, 16, 2, 0.25, 0.1, "fp32", "cpu", 1, 0)
SIZES = {"vocabulary": 50, "visible": 12, "predicted": 4}


def both(*values: float) -> list[dict[str, float]]:
    """Wall-clock times, and processor times twice as long."""
    return [{"wall": value, "processor": 2 * value} for value in values]


def run_of(contenders: dict[str, list[float]], settings: Settings = SETTINGS, **changes: Any) -> dict[str, Any]:
    """What is kept of a side-by-side run of these times for a step, all products taking a millisecond each."""
    shapes = {shape for name in contenders for shape in step_products(name, settings, SIZES)}
    rounds = max(map(len, contenders.values()))
    results = {
        name: {"sizes": SIZES, "prepared": both(*times), "loaded": both(*(time + 1 for time in times)), "memory": 10**9}
        for name, times in contenders.items()
    }
    for result in results.values():
        result["profile"] = {"encoder forward": 0.25, "total": 1.0}
    run = {
        "settings": settings.as_dict(),
        "references": ["roberta"],
        "date": "2026-01-02 03:04:05",
        "load_before_and_after": [0.1, 0.2],
        "machine": {"processor": "a processor", "cores": 2, "versions": {"torch": "2.9"}},
        "steps": {"steps": 1},
        "contenders": results,
        "products": {
            "shapes": [list(shape) for shape in sorted(shapes)],
            "repeats": [[{"seconds": both(1e-3)[0]} for _ in shapes]] * rounds,
        },
        **changes,
    }
    return summarize(run)


def test_ratio_pairs_the_rounds():
    # The machine was twice as slow in the second round, for both.
    assert ratio([1.0, 2.0, 1.0], [1.5, 3.0, 1.2]) == Spread(1.5, 1.2, 1.5)
    for times in ([], [1.0]):
        with pytest.raises(ValueError, match="cannot be paired"):
            ratio(times, [1.0, 2.0])


def test_metrics_of_a_run_worked_by_hand():
    run = run_of({"maelm": [1.0, 4.0, 2.0], "roberta": [2.0, 6.0, 3.0]})
    ours, theirs = evaluate(run)
    assert (ours["name"], theirs["name"]) == ("maelm", "roberta")
    # 2 sequences of 16 tokens a step; the median step takes 2 s, with data a second more.
    assert ours["tokens_per_second"] == 16.0
    assert ours["tokens_per_second_with_data"] == pytest.approx(32 / 3)
    assert ours["ratios"] == {"roberta": Spread(1.5, 1.5, 2.0)}
    assert theirs["ratios"]["roberta"] == Spread(1.0, 1.0, 1.0)
    occurrences = step_products("maelm", SETTINGS, SIZES)
    assert ours["over_bare"] == pytest.approx(2.0 / (1e-3 * sum(occurrences.values())))
    # All shapes took a millisecond, so the largest of the run has the best rate.
    shapes = {shape for name in ("maelm", "roberta") for shape in step_products(name, SETTINGS, SIZES)}
    peak = max(map(shape_flops, shapes)) / 1e-3
    assert ours["utilization"] == pytest.approx(step_flops("maelm", SETTINGS, SIZES) / 2.0 / peak)
    assert evaluate(run, "processor")[0]["tokens_per_second"] == 8.0
    kept = run["contenders"]["maelm"]
    assert kept["rounds"] == 3 and kept["wall"]["seconds"] == (2.0, 1.0, 4.0)
    assert kept["processor"]["loaded_seconds"] == (6.0, 4.0, 10.0)
    assert "products" not in run and "prepared" not in kept, "no round is kept"


def test_datasheet_rate_is_for_tensor_cores():
    machine = {"gpu": "NVIDIA H200"}
    assert datasheet_peak(machine, "bf16") == datasheet_peak({"gpu": "NVIDIA H100 80GB HBM3"}, "fp16") == 989e12
    assert datasheet_peak(machine, "fp32") is None
    assert datasheet_peak({}, "bf16") is None


@pytest.mark.parametrize("name", CONTENDERS)
def test_bare_products_do_the_flops_of_the_step(name):
    occurrences = step_products(name, SETTINGS, SIZES)
    total = sum(count * shape_flops(shape) for shape, count in occurrences.items())
    assert total == pytest.approx(step_flops(name, SETTINGS, SIZES), rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 6, 4, 3), (5, 6, 4, 3)])
def test_bare_products_are_three_of_a_size(shape):
    with FlopCounterMode(display=False) as counter:
        seconds = BareProducts("cpu", "fp32", iterations=2).seconds(shape)
    # Once to warm up, twice timed.
    assert counter.get_total_flops() == 3 * shape_flops(shape)
    assert set(seconds) == {"wall", "processor"}


def test_tables_name_everyone_and_what_failed():
    run = run_of({"maelm": [1.0], "roberta": [2.0]})
    run["contenders"]["authors"] = {"error": "ValueError: no such folder"}
    text = report([run], "wall")
    assert "| MAE-LM, ours " in text and "2.00 (2.00-2.00)" in text
    assert "MAE-LM, authors' code failed: ValueError: no such folder" in text
    assert "datasheet" not in text, "no column without metrics"
    assert "250.0" in text, "milliseconds of the encoder"
    assert "processor time" not in text
    assert "processor time" in report([run], "processor")


def test_results_are_kept_and_resumed(tmp_path):
    first = run_of({"maelm": [1.0]})
    path = tmp_path / "new" / "result.json"
    assert store.read_runs(path) == []
    store.write_runs(path, [first])
    (read,) = store.read_runs(path)
    assert evaluate(read) == evaluate(first) and max(map(len, path.read_text().splitlines())) < 320
    first = json.loads(json.dumps(first))
    assert store.is_measured([first], SETTINGS.as_dict(), ("maelm",))
    assert not store.is_measured([first], SETTINGS.as_dict(), ("maelm", "roberta"))
    assert not store.is_measured([first], replace(SETTINGS, sequences=4).as_dict(), ("maelm",))
    first["contenders"]["maelm"] = {"error": "failed"}
    assert not store.is_measured([first], SETTINGS.as_dict(), ("maelm",))
    path.write_text("[]")
    with pytest.raises(ValueError, match="not a result of this version of the benchmark"):
        store.read_runs(path)


def test_options_say_what_is_compared():
    options = {name: fairseq_options(name, SETTINGS, "DATA") for name in ("maelm", "mlm", "roberta", "authors")}
    for words in options.values():
        asked = dict(zip(words, words[1:]))
        assert asked["--dropout"] == asked["--attention-dropout"] == "0.1"
        assert asked["--mask-prob"] == "0.25" and asked["--tokens-per-sample"] == "16"
        assert asked["--sample-break-mode"] == "none" and asked["--encoder-embed-dim"] == "32"
    assert options["mlm"][-4:] == ["--masked-input", "kept", "--decoder-layers", "0"]
    assert split_name("maelm+compile") == (CONTENDERS["maelm"], ["compile"])


@pytest.mark.parametrize("name", ["maelm", "mlm", "modern+cross+local", "maelm+shared"])
def test_our_models_are_those_whose_cost_is_counted(name):
    contender, changes = split_name(name)
    words = FairseqSession(contender, SETTINGS, "DATA", None, [], changes).words
    config = configuration([*words, *ours_defaults(words, "fp32")]).model
    complete_config(config)
    shape = ModelShape.from_config(config, 50)
    assert shape == model_shape(name, SETTINGS, 50)
    assert config.positions == ("rotary" if shape.encoder.gated else "absolute")


def test_modern_size_is_that_of_the_architecture():
    settings = pretraining.base_settings(pretraining.arguments_of(["--list", "--size", "modern"]))
    numbers = ARCHITECTURES["maelm_modern_150m"]
    for name in ("modern", "modernbert"):
        encoder = model_shape(name, settings, 50).encoder
        assert encoder.gated and encoder.ffn_embed_dim == numbers["encoder_ffn_embed_dim"]
        assert (encoder.layers, encoder.embed_dim) == (numbers["encoder_layers"], numbers["encoder_embed_dim"])
        assert encoder.attention_heads == numbers["encoder_attention_heads"]
    assert settings.decoder_layers == 4, "a separate decoder, for comparisons; that of the architecture is shared"


def test_only_full_sequences_make_batches():
    class Blocks:
        lengths = [16, 16, 16, 9, 16, 16]

        def __len__(self) -> int:
            return len(self.lengths)

        def num_tokens(self, index: int) -> int:
            return self.lengths[index]

    assert full_batches(Blocks(), SETTINGS) == [[0, 1], [2, 4]]
    with pytest.raises(ValueError, match="5 sequences of 16 tokens, fewer than a batch of 8"):
        full_batches(Blocks(), replace(SETTINGS, sequences=8))


@pytest.mark.slow
def test_hugging_face_model_multiplies_what_the_cost_model_says():
    pytest.importorskip("transformers")
    from training_step.huggingface_session import build_model

    model = build_model(SETTINGS, vocabulary=50, pad=1, local=False).train()
    tokens = torch.randint(4, 50, (2, 16))
    labels = torch.full_like(tokens, -100)
    labels[:, :4] = tokens[:, :4]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=tokens, labels=labels).loss.backward()
    expected = step_flops("modernbert", SETTINGS, {**SIZES, "visible": 16})
    assert counter.get_total_flops() == expected
    assert set(model.config.layer_types) == {"full_attention"} and model.config._attn_implementation == "sdpa"
    local = build_model(SETTINGS, vocabulary=50, pad=1, local=True).config
    assert set(local.layer_types) == {"full_attention", "sliding_attention"} and local.local_attention == 128


@pytest.mark.slow
def test_small_run_with_everything_real(tmp_path, capsys):
    pytest.importorskip("transformers")
    data, output = prepared_data(tmp_path / "data"), tmp_path / "results" / "small.json"
    (tmp_path / "empty").mkdir()
    words = ["--data", str(data), "--output", str(output), "--size", "tiny", "--layers", "1", "--length", "32"]
    words += ["--batch", "2", "--masking", "0.4", "--repeats", "1", "--threads", "1"]
    words += ["--contenders", "modern+cross+local,modernbert+local,authors"]
    pretraining.main([*words, "--authors-code", str(tmp_path / "empty"), "--references", "modernbert+local"])
    (run,) = json.loads(output.read_text())["runs"]
    ours, modernbert = (run["contenders"][name] for name in ("modern+cross+local", "modernbert+local"))
    assert ours["sizes"]["visible"] == pytest.approx(0.6 * 32, abs=0.85)
    assert modernbert["sizes"]["visible"] == 32
    assert ours["wall"]["ratios"]["modernbert+local"][0] > 0
    for measured in (ours, modernbert):
        assert measured["sizes"]["predicted"] == pytest.approx(0.4 * 32, abs=1)
        assert measured["sizes"]["vocabulary"] == 65
        stages = measured["profile"]
        assert 0 < stages["encoder forward"] < stages["total"] and stages["optimizer"] > 0
        assert stages["total"] == pytest.approx(sum(stages.values()) - stages["total"], rel=1e-3)
        assert measured["memory"] > 10**8
    assert "give a copy of the authors' repository" in run["contenders"]["authors"]["error"]
    shown = capsys.readouterr().out
    assert "| MAE-LM, modern, ours" in shown and "authors' code failed" in shown
    assert output.with_suffix(".md").read_text().strip() == shown.strip()
    assert str(tmp_path / "data") not in output.read_text(), "results hold no path of this machine"
    # What is there is not measured again.
    pretraining.main([*words, "--contenders", "modern+cross+local", "--resume"])
    assert len(json.loads(output.read_text())["runs"]) == 1
