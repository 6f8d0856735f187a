"""``--attention`` changes how the model computes and nothing else: not its results, and not who can load it."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from support import dictionary_of, model_config, model_of

from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig


@pytest.mark.parametrize("backend", ["auto", "plain", "cpu"])
def test_the_backend_reaches_every_layer(backend):
    model = model_of(attention=backend, decoder_attention="self_cross")
    layers = [*model.encoder.layers, *model.decoder.layers]
    backends = [layer.self_attn.backend for layer in layers] + [
        layer.cross_attn.backend for layer in model.decoder.layers
    ]
    assert len(backends) == 6 and set(backends) == {BACKENDS[backend]}


def task() -> MaelmTask:
    defaults = {name: field.default for name, field in MaelmTaskConfig.__dataclass_fields__.items()}
    return MaelmTask(SimpleNamespace(**{**defaults, "data": "", "seed": 1, "tokens_per_sample": 64}), dictionary_of(40))


def configuration(backend):
    config = vars(model_config(attention=backend, dropout=0.1))
    return OmegaConf.create({**config, "_name": "maelm_tiny"})


@pytest.mark.parametrize(("saved", "loaded"), [("triton", "auto"), ("cpu", "auto"), ("plain", "plain")])
def test_a_checkpoint_binds_no_machine(saved, loaded):
    model = task().build_model(configuration(saved), from_checkpoint=True)
    assert {layer.self_attn.backend for layer in model.encoder.layers} == {BACKENDS[loaded]}
