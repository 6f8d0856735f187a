"""The running average of the weights: ``--store-ema`` in training, and ``maelm export --averaged-weights``."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema import build_ema

from end_to_end.small import BEST, LAST, NARROW, results, training
from end_to_end.test_finetuning import HEAD, prepare_task, topic_of_a_sentence
from end_to_end.toy import TINY_TRAINING, TOPICS, run
from fairseq_maelm import MaelmModel

DECAY, UPDATES = 0.7, 6
EMA = ["--store-ema", "--ema-decay", DECAY]


def averaging(data: Path, save_dir: Path, *options: Any, number: int = UPDATES) -> list[Any]:
    """The command of a pretraining that saves after each update."""
    return training(data, save_dir, *NARROW, *EMA, "--max-update", number, "--save-interval-updates", 1, *options)


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    run(averaging(data, folder))
    assert results(folder / LAST)["updates"] == UPDATES
    return folder


def weights(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path)["model"]
    return state


def average(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path)["extra_state"]["ema"]
    return state


def by_hand(folder: Path, first: int = 1, last: int = UPDATES, every: int = 1) -> dict[str, torch.Tensor]:
    """The running average of the weights that a run has saved, in double precision, beginning with update ``first``."""
    saved = [weights(folder / f"checkpoint_1_{update}.pt") for update in range(1, last + 1)]
    result = {name: tensor.double() for name, tensor in saved[first - 1].items()}
    for number, state in enumerate(saved[first:], first + 1):
        if number % every == 0:
            for name, tensor in state.items():
                result[name] = result[name] * DECAY + tensor.double() * (1 - DECAY)
    return result


def assert_average(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], raw: dict[str, torch.Tensor]
) -> None:
    assert actual.keys() == expected.keys() == raw.keys()
    for name, tensor in actual.items():
        assert tensor.dtype == raw[name].dtype
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-7, msg=name)
        else:
            assert torch.equal(tensor, raw[name]), name
    # It is not a copy of the weights.
    name = "encoder.embed_tokens.weight"
    assert (actual[name] - raw[name]).abs().max() > 1e-4


def export(checkpoint: Path, folder: Path, *options: Any, **settings: Any) -> Any:
    """``maelm export`` of the averaged weights as a checkpoint."""
    words = ["maelm", "export", "--format", "fairseq", "--averaged-weights", "--checkpoint", checkpoint]
    return run([*words, "--output", folder, *options], **settings)


def test_the_written_weights_are_the_average_of_those_saved(pretrained, tmp_path):
    written = tmp_path / "average" / BEST
    assert export(pretrained / LAST, written.parent).strip().endswith(str(written))
    assert {"dict.txt", "sentencepiece.bpe.model"} <= {path.name for path in written.parent.iterdir()}
    raw = weights(pretrained / LAST)
    assert {tensor.dtype for tensor in raw.values()} == {torch.float32, torch.int64}
    assert_average(weights(written), by_hand(pretrained), raw)


def test_every_second_update_in_single_precision(data, tmp_path):
    """The average is made when it is first asked for: at the first update that goes into it, or at a save."""
    run(averaging(data, tmp_path, "--ema-fp32", "--ema-update-freq", 2))
    assert_average(average(tmp_path / LAST), by_hand(tmp_path, every=2), weights(tmp_path / LAST))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_in_single_precision_loads_nothing(dtype, monkeypatch):
    """The average in the model's own precision is copied in place; weights with two names are averaged once."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)).to(dtype)
    model[2].weight = model[0].weight
    ema = build_ema(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=True), device=None)
    before = model[0].weight.detach().float().clone()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    model[1].num_batches_tracked.add_(5)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", pytest.fail)
    ema.step(model, 1)
    expected = before * DECAY + model[0].weight.detach().float() * (1 - DECAY)
    torch.testing.assert_close(ema.fp32_params["0.weight"], expected)
    own = ema.get_model().state_dict()
    assert all(torch.equal(tensor, ema.fp32_params[name].to(tensor.dtype)) for name, tensor in own.items())
    assert own["0.weight"].dtype == dtype and own["1.num_batches_tracked"] == 5


def test_a_run_without_average_is_continued_with_one(data, tmp_path):
    run([word for word in averaging(data, tmp_path, number=3) if word not in EMA])
    output = run(averaging(data, tmp_path))
    assert "the running average of the weights starts with this run" in output
    assert_average(average(tmp_path / LAST), by_hand(tmp_path, first=4), weights(tmp_path / LAST))


def test_fine_tuning_from_an_average_and_with_one(toy_data, pretrained, tmp_path):
    """Stock sentence_prediction: the new average is of this run alone, and keeps the head."""
    topics = prepare_task(tmp_path, toy_data, topic_of_a_sentence)
    start, folder = tmp_path / "start" / BEST, tmp_path / "run"
    export(pretrained / LAST, start.parent)
    words = ["fairseq-train", topics, *TINY_TRAINING, *NARROW, "--task", "sentence_prediction"]
    words += ["--criterion", "sentence_prediction", "--num-classes", 4, "--init-token", 0, "--separator-token", 2]
    words += ["--save-dir", folder, *EMA, "--max-update", UPDATES, "--save-interval-updates", 1, "--disable-validation"]
    words = [word for word in words if word not in ("--tokens-per-sample", "64")]
    # Also from the checkpoint that holds pretraining's average, which is not this run's.
    for model in (pretrained / LAST, start):
        run([*words, "--finetune-from-model", model, *(["--no-save"] if model != start else [])])
    written = tmp_path / "average" / BEST
    export(folder / LAST, written.parent)
    raw = weights(folder / LAST)
    assert any(name.startswith(f"classification_heads.{HEAD}") for name in raw)
    assert_average(weights(written), by_hand(folder), raw)

    # The save folder is enough: with the data moved away, its checkpoints are exported and used.
    shutil.move(topics, tmp_path / "elsewhere")
    hub = MaelmModel.from_pretrained(str(folder), LAST)
    assert set(TOPICS) == set(hub.labels.names)
    hub = MaelmModel.from_pretrained(str(written.parent))
    tokens = hub.encode("The sailor takes the rope to the harbour.")
    assert hub.predict(HEAD, tokens).shape[-1] == 4
