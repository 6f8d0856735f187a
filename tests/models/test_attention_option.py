"""``--attention`` changes how the model computes and nothing else: not its results, and not who can load it."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from support import batch_of, dictionary_of, model_config, model_of, random_sequences

from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig

LENGTHS = [13, 30, 7, 2]
MASKED = [[0, 3, 4, 12], [1, 2, 28], [6], [1]]


def loss_and_gradients(**changes):
    model = model_of(**changes).double()
    net_input, targets = batch_of(random_sequences(LENGTHS), MASKED)
    logits, _ = model(**net_input)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("changes", [{}, {"relative_buckets": "none"}, {"decoder_attention": "self_cross"}])
@pytest.mark.parametrize("backend", ["auto", "sdpa", "cpu"])
def test_all_backends_train_the_same(backend, changes):
    loss, gradients = loss_and_gradients(attention=backend, **changes)
    expected_loss, expected = loss_and_gradients(attention="plain", **changes)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-10, atol=1e-10)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        difference = (gradient - expected[name]).norm() / expected[name].norm().clamp_min(1e-6)
        assert difference < 1e-9, f"{name}: {difference:.1e}"


@pytest.mark.parametrize("backend", ["auto", "plain", "cpu"])
def test_the_backend_reaches_every_layer(backend):
    model = model_of(attention=backend, decoder_attention="self_cross")
    layers = [*model.encoder.layers, *model.decoder.layers]
    backends = [layer.self_attn.backend_name for layer in layers] + [
        layer.cross_attn.backend_name for layer in model.decoder.layers
    ]
    assert len(backends) == 6 and set(backends) == {backend}


def test_dropout_follows_the_seed_alone():
    """The same seed gives the same step, bit for bit; another gives another."""
    net_input, targets = batch_of(random_sequences(LENGTHS), MASKED)
    model = model_of(dropout=0.1, attention_dropout=0.1).train()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(F.cross_entropy(model(**net_input)[0], targets).item())
    assert losses[0] == losses[1] != losses[2]


def task() -> MaelmTask:
    defaults = {name: field.default for name, field in MaelmTaskConfig.__dataclass_fields__.items()}
    return MaelmTask(SimpleNamespace(**{**defaults, "data": "", "seed": 1, "tokens_per_sample": 64}), dictionary_of(40))


def configuration(backend):
    config = vars(model_config(attention=backend, dropout=0.1))
    return OmegaConf.create({**config, "_name": "maelm_tiny"})


def test_training_refuses_a_path_that_cannot_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--attention triton needs a CUDA GPU"):
        MaelmModel.build_model(configuration("triton"), task())


@pytest.mark.parametrize(("saved", "loaded"), [("triton", "auto"), ("cpu", "auto"), ("plain", "plain")])
def test_a_checkpoint_binds_no_machine(saved, loaded):
    model = task().build_model(configuration(saved), from_checkpoint=True)
    assert {layer.self_attn.backend_name for layer in model.encoder.layers} == {loaded}
