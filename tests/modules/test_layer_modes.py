"""Compiled and recomputed layers compute what plain ones do; only time and memory differ."""

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import FAMILIES, batch_of, model_of, random_sequences, scheme_of
from torch import Tensor, nn

from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules import layer_modes
from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.context import AttentionContext, Tokens
from fairseq_maelm.modules.attention.layers import LayerConfig
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.attention.triton import operator as triton
from fairseq_maelm.modules.layer_modes import Layer, execute, layers_of
from fairseq_maelm.modules.transformer import TransformerLayer

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}


def losses_and_gradients(model: MaelmModel, seed: int = 7) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch with padding and the gradients of all parameters."""
    net_input, targets = batch_of(random_sequences([23, 19, 26]), [[2, 5, 7], [1, 4], [3, 8, 9, 14]])
    torch.manual_seed(seed)
    model.zero_grad()
    loss = F.cross_entropy(model.train()(**net_input)[0].float(), targets)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


# Recomputing


@pytest.mark.parametrize(
    ("precision", "decoder_attention", "family"),
    [
        ("fp32", "self", "modern"),
        ("bf16", "self_cross", "paper"),
        ("fp32", "cross", "paper"),
        ("bf16", "shared", "modern"),
    ],
)
def test_recomputed_gradients_are_the_same_bit_for_bit_with_dropout(
    precision: str, decoder_attention: str, family: str
) -> None:
    options = {"precision": precision, "decoder_attention": decoder_attention, **DROPOUT, **FAMILIES[family]}
    plain, recomputed = model_of(**options), model_of(**options)
    execute(recomputed, compiles=False, recomputes=True)
    expected_loss, expected = losses_and_gradients(plain)
    loss, gradients = losses_and_gradients(recomputed)
    assert torch.equal(loss, expected_loss)
    assert len(expected) > 15
    for name, gradient in expected.items():
        assert (gradient is None) == (gradients[name] is None)
        assert gradient is None or torch.equal(gradients[name], gradient), name
    # Dropout is there to be repeated: another seed gives another loss.
    assert not torch.equal(losses_and_gradients(plain, seed=8)[0], expected_loss)


def kept_bytes(model: MaelmModel) -> int:
    """What the forward pass of a batch keeps for the backward pass, weights apart."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    net_input, _ = batch_of(random_sequences([60] * 4), [[2, 5, 7]] * 4)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model.train()(**net_input)[0]
    assert logits.requires_grad and len(kept) > 10
    return sum(kept.values())


def test_recomputing_keeps_less() -> None:
    size = {"encoder_layers": 6, "decoder_layers": 4, **DROPOUT}
    plain, recomputed = model_of(**size), model_of(**size)
    execute(recomputed, compiles=False, recomputes=True)
    # Of each layer its input alone; embeddings and the head keep what they kept.
    assert kept_bytes(recomputed) < 0.2 * kept_bytes(plain)


def test_nothing_is_recomputed_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        layer_modes, "checkpoint", lambda call, *others, use_reentrant: calls.append(1) or call(*others)
    )
    model = model_of()
    execute(model, compiles=False, recomputes=True)
    net_input, _ = batch_of(random_sequences([23]), [[2, 5]])
    model.eval()(**net_input)
    with torch.no_grad():
        model.train()(**net_input)
    assert not calls
    model(**net_input)
    assert len(calls) == 4


# Compiling


@pytest.mark.parametrize("family", FAMILIES)
def test_large_states_keep_less_and_give_the_same_gradients(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"decoder_attention": "shared", **DROPOUT, **FAMILIES[family]}
    expected_loss, expected = losses_and_gradients(model_of(**options))
    plain = kept_bytes(model_of(**options))
    monkeypatch.setattr(layer_modes, "_LARGE", 1)
    loss, gradients = losses_and_gradients(model_of(**options))
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(gradients[name], gradient) for name, gradient in expected.items())
    assert kept_bytes(model_of(**options)) < 0.92 * plain


def test_nothing_is_compiled_on_a_cpu_or_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Layer] = []
    monkeypatch.setattr(Layer, "compile", lambda layer, **options: compiled.append(layer))
    model = model_of()
    execute(model, compiles=True, recomputes=False)
    net_input, _ = batch_of(random_sequences([23]), [[2, 5]])
    model.train()(**net_input)
    assert not compiled
    monkeypatch.setattr(layer_modes, "worth_compiling", lambda states: True)
    model.eval()(**net_input)
    assert not compiled
    model.train()(**net_input)
    assert compiled == list(layers_of(model)) and len(compiled) == 4


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace what a GPU would be given: the kernels' operators, flash attention, torch's dropout; make no code."""
    launch = pytest.importorskip("fairseq_maelm.modules.attention.triton.launch")

    def forward(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
        output, log_sums = triton._outputs_like(query)
        return output.copy_(query.transpose(1, 2)), log_sums.zero_()

    def backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, table: Tensor, *others: Any) -> Any:
        return torch.stack([gradient] * 3, dim=2), torch.ones_like(table)

    def attend_between(boundaries: Tensor, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value) + 0 * boundaries.sum()

    monkeypatch.setattr(launch, "forward", forward)
    monkeypatch.setattr(launch, "backward", backward)
    monkeypatch.setattr(triton, "unavailable_because", lambda query: None)
    monkeypatch.setattr(sdpa, "attend_between", attend_between)
    monkeypatch.setattr(sdpa, "_has_flash", lambda query: True)
    monkeypatch.setattr(layer_modes, "worth_compiling", lambda states: True)
    monkeypatch.setattr(Layer, "compile", lambda layer, **o: nn.Module.compile(layer, backend="aot_eager", **o))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def output_and_gradients(layer: Layer) -> list[Tensor]:
    """The output for random states with a relative bias and rotary positions, and all gradients."""
    torch.manual_seed(1)
    states, of_distance = torch.randn(2, 5, 16, requires_grad=True), torch.randn(2, 9, requires_grad=True)
    positions = torch.arange(5)[None]
    layer.zero_grad()
    tokens = Tokens(positions, rotations(positions, [100], 8, states))
    output = layer.train()(states, AttentionContext(tokens, relative_bias=of_distance))
    (output * torch.arange(output.numel()).view_as(output).sin()).sum().backward()
    return [output.detach(), *(each.grad.clone() for each in (states, of_distance, *layer.parameters()))]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_compiled_layer_is_the_plain_one() -> None:
    sizes = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}
    layer = TransformerLayer(LayerConfig(**sizes, modern=True, rotary_bases=(100,)), number=1)
    names = list(layer.state_dict())
    expected = output_and_gradients(layer)
    layer.compiles = layer.recomputes = True
    results = output_and_gradients(layer)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert len(results) == len(expected) > 8
    for result, plain in zip(results, expected):
        torch.testing.assert_close(result, plain, rtol=1e-5, atol=1e-5)
    assert list(layer.state_dict()) == names
    # What copies models (an average of weights, for one) does not trip over compiled code.
    torch.testing.assert_close(output_and_gradients(copy.deepcopy(layer))[0], expected[0])


ALL_SHAPES = ([40] * 4, [40, 38, 37, 40], [23] * 7, [60, 59], [33])


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        # Encoder, decoder, and its last layer, which has queries at masked positions alone.
        pytest.param({}, 3, marks=pytest.mark.exhaustive),
        pytest.param({"decoder_layers": 0}, 2, marks=pytest.mark.exhaustive),
        ({"decoder_attention": "shared", "encoder_layers": 2, "decoder_layers": 2}, 2),
        pytest.param({"decoder_attention": "self_cross"}, 3, marks=pytest.mark.exhaustive),
        # The first layer of a stack lacks a LayerNorm; every third has another rotary base.
        pytest.param(
            {**FAMILIES["modern"], "decoder_attention": "shared", "encoder_layers": 4, "decoder_layers": 2},
            4,
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_each_kind_of_layer_is_one_graph_whatever_the_shapes(changes: dict[str, Any], kinds: int) -> None:
    options = {"attention": "triton", "encoder_layers": 3, "precision": "bf16", **DROPOUT, **changes}
    model = model_of(**options).train()
    execute(model, compiles=True, recomputes=False)
    numbers = torch._dynamo.utils.counters
    for lengths, spare in itertools.product(ALL_SHAPES, (None, (60, 10))):
        masks = [list(range(1, length - 1, 6)) for length in lengths]
        kept = None if changes.get("decoder_layers", 1) else model.mask_index
        net_input, targets = batch_of(random_sequences(list(lengths)), masks, kept, spare=spare)
        model(**net_input, target=targets)[0].backward()
        assert not numbers["graph_break"]
        assert numbers["stats"]["unique_graphs"] == kinds <= 6, lengths
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("changes", [{}, {"decoder_attention": "shared"}], ids=str)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_blocks_of_equal_length_are_compiled_once_in_50_updates(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though graphs are made for a shape each, and whatever special tokens the blocks hold."""
    monkeypatch.setattr(Layer, "compile", lambda layer, **o: nn.Module.compile(layer, backend="eager", dynamic=False))
    generator = np.random.default_rng(0)
    blocks = SimpleNamespace(
        sizes=np.full(200, 24), read=lambda indices, pad, width: (generator.integers(0, 39, (4, 24)), np.full(4, 24))
    )
    scheme = scheme_of(mask_prob=0.3, protected=np.arange(40) < 4)
    dataset = MaskedBlockDataset(blocks, scheme, Symbols(1, 39), EncoderView(), seed=1)
    model = model_of(attention="triton", **DROPOUT, **changes).train()
    execute(model, compiles=True, recomputes=False)
    stats = torch._dynamo.utils.counters["stats"]
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=4)
    graphs = []
    for sample in map(dataset.collater, batches):
        model(**sample["net_input"], target=sample["target"])[0].backward()
        graphs.append(stats["unique_graphs"])
    assert len(graphs) == 50 and set(graphs) == {graphs[0]} and 2 <= graphs[0] <= 3


@pytest.mark.usefixtures("as_on_a_gpu")
def test_single_sequences_are_compiled_where_all_batches_are_single() -> None:
    model = model_of(attention="triton", decoder_layers=1).train()
    execute(model, compiles=True, recomputes=False)
    for length in (33, 40, 20):
        net_input, targets = batch_of(random_sequences([length]), [[2, 5, 7]])
        model(**net_input, target=targets)[0].backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
