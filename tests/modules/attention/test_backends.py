"""Which way of computing attention is chosen, and what the ways are promised."""

from types import SimpleNamespace

import pytest
import torch
from attention_problem import context_of

from fairseq_maelm.architecture.checks import check_backend
from fairseq_maelm.modules.attention import cpu, sdpa
from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.context import AttentionContext, Tokens, plain_attention
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.attention.triton import operator as triton


def relative_bias(requires_grad=True, **others):
    return context_of(torch.zeros(2, 15, requires_grad=requires_grad), torch.arange(4)[None], **others)


class Computed(Exception):
    """Raised by what a choice ended at."""


@pytest.fixture
def choose_backend(monkeypatch):
    """Says which way of computing a backend takes for a query."""

    def stop_at(name):
        def attend(*arguments):
            raise Computed(name)

        return attend

    def choose(query, bias, dropout, backend="auto", key=None):
        with monkeypatch.context() as patched:
            for name, module in (("cpu", cpu), ("sdpa", sdpa)):
                patched.setattr(module, "attend", stop_at(name))
            patched.setattr(triton, "relative_attention", stop_at("triton"))
            patched.setattr(triton, "_arguments", lambda *of_query: ())
            with pytest.raises(Computed) as stopped:
                BACKENDS[backend].attend(query, key, None, bias, dropout)
        return str(stopped.value)

    return choose


def test_choice_on_a_cpu(choose_backend):
    query = torch.zeros(2, 2, 4, 8)
    assert choose_backend(query, context_of(), 0.0) == "sdpa"
    assert choose_backend(query, context_of(), 0.1) == "cpu"
    assert choose_backend(query, relative_bias(), 0.0) == "cpu"
    assert choose_backend(query, relative_bias(requires_grad=False), 0.0) == "sdpa"
    with torch.no_grad():
        assert choose_backend(query, relative_bias(), 0.0, key=torch.zeros(2, 2, 40, 8)) == "sdpa"


def test_other_backends_choose_nothing():
    for name, module in (("sdpa", sdpa), ("cpu", cpu)):
        assert BACKENDS[name].attend is module.attend
    assert BACKENDS["plain"].attend is plain_attention
    query = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(ValueError, match="--attention cpu cannot run on cuda"):
        cpu.attend(query, None, None, relative_bias(), 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["none", "rotary", "window"])
def test_choice_without_relative_bias_on_a_cpu(choose_backend, dtype, training, kind):
    """torch's fused kernel goes back slowly in bfloat16, whatever is added to the logits."""
    query, positions = torch.empty(1, 1, 64, 2, dtype=dtype, requires_grad=training), torch.arange(64)[None]
    biases = {
        "none": context_of(),
        "rotary": AttentionContext(Tokens(positions, rotations(positions, [100], 2, query))),
        "window": context_of(positions=positions, window=8),
    }
    chosen = "cpu" if training and dtype is torch.bfloat16 else "sdpa"
    assert choose_backend(query, biases[kind], 0.0, key=query) == chosen
    assert choose_backend(query, biases[kind], 0.1, key=query) == "cpu"


def test_choice_on_a_gpu(monkeypatch, choose_backend):
    query = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, shape=(2, 2, 4, 8))
    monkeypatch.setattr(triton, "unavailable_because", lambda query: None)
    for backend in ("auto", "triton"):
        assert choose_backend(query, relative_bias(), 0.1, backend) == "triton"
        assert choose_backend(query, relative_bias(lengths=torch.ones(2)), 0.1, backend) == "triton"
        # The decoder has no relative bias, and torch's kernels are the best for it.
        assert choose_backend(query, context_of(lengths=torch.ones(2)), 0.1, backend) == "sdpa"
        assert choose_backend(query, context_of(), 0.1, backend) == "sdpa"
        assert choose_backend(query, relative_bias(causal=True), 0.0, backend) == "sdpa"
    monkeypatch.setattr(triton, "unavailable_because", lambda query: "too old")
    assert choose_backend(query, relative_bias(), 0.1) == "sdpa"
    with pytest.raises(ValueError, match="--attention triton cannot run: too old. Use --attention auto"):
        choose_backend(query, relative_bias(), 0.1, "triton")


def test_impossible_backends(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs a CUDA GPU"):
        check_backend("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton, "INSTALLED", False)
    with pytest.raises(ValueError, match="needs the package triton"):
        check_backend("triton")
    for name, backend in BACKENDS.items():
        if backend.device != "cuda":
            check_backend(name)
