"""Leaving padding out, and the last layer at first tokens alone, change speed and nothing else."""

from typing import Any, Optional

import pytest
import torch
from support import model_of, random_sequences
from torch import Tensor

from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.attention import packing as packing_module
from fairseq_maelm.modules.attention.packing import packing_of

LENGTHS = [3, 17, 1, 9, 30]


def batch(lengths: list[int] = LENGTHS) -> Tensor:
    """Tokens <int64>[B, S] of sequences of these lengths, padded."""
    tokens = torch.ones(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(tokens, lengths):
        row[:length] = torch.from_numpy(random_sequences([max(length, 2)], seed=length)[0][:length])
    return tokens


def model(heads: bool = True, **changes: Any) -> MaelmModel:
    made = model_of(**changes)
    if heads:
        made.register_classification_head("sentence", 3)
        made.register_token_head("token", 2)
    return made


def outputs(
    monkeypatch: pytest.MonkeyPatch, made: MaelmModel, tokens: Tensor, leave_out: bool, head: Optional[str] = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Result at the tokens, and the gradients of all parameters for one random weighting of it."""
    with monkeypatch.context() as patched:
        patched.setattr(packing_module, "_WORTHWHILE_TOKENS", 1 if leave_out else 1000)
        made.zero_grad(set_to_none=True)
        result = made(tokens, features_only=True, classification_head_name=head)[0]
        if result.dim() == 3:
            result = result[tokens != made.encoder.padding_idx]
        torch.manual_seed(7)
        (result * torch.randn_like(result)).sum().backward()
    gradients = {name: each.grad.clone() for name, each in made.named_parameters() if each.grad is not None}
    return result.detach(), gradients


def assert_same(first: tuple[Tensor, dict[str, Tensor]], second: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(first[0], second[0], atol=1e-5, rtol=1e-5)
    assert first[1].keys() == second[1].keys()
    for name, gradient in first[1].items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(gradient / scale, second[1][name] / scale, atol=1e-5, rtol=1e-5, msg=name)


def test_a_packing_says_where_tokens_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "_WORTHWHILE_TOKENS", 1)
    padding = torch.tensor([[False, False, True], [False, True, True], [False, False, False]])
    packing = packing_of(padding)
    assert packing is not None
    assert packing.slots.tolist() == [0, 1, 3, 6, 7, 8]
    assert packing.lengths == (2, 1, 3) and packing.first.tolist() == [0, 2, 3]
    values = torch.arange(9.0).view(3, 3)
    assert packing.pack(values).tolist() == [0, 1, 3, 6, 7, 8]
    assert packing.pad(packing.pack(values)).tolist() == [[0, 1, 0], [3, 0, 0], [6, 7, 8]]
    shared = torch.tensor([[5, 6, 7]])
    assert packing.pack(shared).tolist() == [5, 6, 5, 5, 6, 7]


@pytest.mark.parametrize(
    ("lengths", "leaves_out"),
    [([20, 14, 18, 12], True), ([20, 20, 20, 5], False), ([200, 193, 194], False), ([20, 0, 5], False)],
    ids=["worth it", "few tokens", "a small share", "an empty sequence"],
)
def test_padding_is_left_out_where_it_is_worth_it(lengths: list[int], leaves_out: bool) -> None:
    padding = torch.arange(max(lengths))[None, :] >= torch.tensor(lengths)[:, None]
    assert (packing_of(padding) is not None) == leaves_out


@pytest.mark.parametrize("head", [None, "sentence", "token"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"relative_buckets": "none"}, {"relative_buckets": "reference"}, {"attention": "cpu"}],
    ids=["t5", "none", "reference", "forced"],
)
def test_results_and_gradients_are_those_with_padding(
    monkeypatch: pytest.MonkeyPatch, head: Optional[str], changes: dict[str, Any]
) -> None:
    made, tokens = model(**changes), batch()
    packed = []
    with monkeypatch.context() as watched:
        watched.setattr("fairseq_maelm.modules.attention.layers.attend_packed", _counting(packed))
        without = outputs(monkeypatch, made, tokens, True, head)
    assert len(packed) == len(made.encoder.layers)
    assert_same(without, outputs(monkeypatch, made, tokens, False, head))


def _counting(calls: list[int]) -> Any:
    from fairseq_maelm.modules.attention.cpu_packed import attend_packed

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return attend_packed(*arguments)

    return counted


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
def test_a_backend_that_is_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    calls: list[int] = []
    monkeypatch.setattr("fairseq_maelm.modules.attention.layers.attend_packed", _counting(calls))
    model(attention=backend)(batch(), features_only=True)
    assert not calls


def test_every_sequence_gets_what_it_gets_alone() -> None:
    made, tokens = model(), batch()
    with torch.no_grad():
        together = made(tokens, features_only=True)[0]
        for row, length in enumerate(LENGTHS):
            alone = made(tokens[row : row + 1, :length], features_only=True)[0][0]
            torch.testing.assert_close(together[row, :length], alone, atol=1e-5, rtol=1e-5)


def test_all_layers_are_given_with_padding_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made, tokens = model(), batch()
    real = tokens != made.encoder.padding_idx
    with torch.no_grad():
        packed = made.extract_features(tokens, True)[1]["inner_states"]
        monkeypatch.setattr(packing_module, "_WORTHWHILE_TOKENS", 1000)
        padded = made.extract_features(tokens, True)[1]["inner_states"]
    assert len(packed) == len(padded) == len(made.encoder.layers) + 1
    for first, second in zip(packed, padded):
        assert first.shape == second.shape
        torch.testing.assert_close(first[real], second[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [batch(), batch([12, 12])], ids=["padded", "dense"])
def test_a_head_on_sentences_reads_first_tokens(tokens: Tensor) -> None:
    made = model()
    with torch.no_grad():
        scores = made(tokens, classification_head_name="sentence")[0]
        whole, extra = made(tokens, classification_head_name="sentence", return_all_hiddens=True)
        torch.testing.assert_close(scores, whole, atol=1e-5, rtol=1e-5)
        states = made.extract_features(tokens)[0]
        torch.testing.assert_close(scores, made.classification_heads["sentence"](states), atol=1e-5, rtol=1e-5)
    assert len(extra["inner_states"]) == 3


def test_dropout_draws_for_tokens_alone_and_keeps_the_mean() -> None:
    made = model(dropout=0.1, attention_dropout=0.3).train()
    tokens = batch([16, 2, 4]).repeat(50, 1)
    torch.manual_seed(3)
    with torch.no_grad():
        first, second = (made(tokens, features_only=True)[0] for _ in range(2))
        torch.manual_seed(3)
        again = made(tokens, features_only=True)[0]
        exact = made.eval()(tokens, features_only=True)[0]
    assert torch.equal(first, again) and not torch.equal(first, second)
    real = (tokens != made.encoder.padding_idx).view(50, 3, -1)
    errors = ((first + second) / 2 - exact).unflatten(0, (50, 3))
    error = errors.mean(0)[real[0]]
    assert float(error.abs().mean()) < 0.1 * float(exact.unflatten(0, (50, 3))[0][real[0]].abs().mean())


def test_the_backward_pass_drops_what_the_forward_pass_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along a direction, the gradient is what the loss changes by under the same decisions."""
    made = model(attention_dropout=0.4, dropout=0.2).double().train()
    tokens = batch()

    def loss() -> Tensor:
        torch.manual_seed(11)
        return made(tokens, classification_head_name="sentence")[0].square().sum()

    loss().backward()
    torch.manual_seed(5)
    directions = {parameter: torch.randn_like(parameter) for parameter in made.parameters()}
    expected = sum((p.grad * d).sum() for p, d in directions.items() if p.grad is not None)
    step, values = 1e-6, []
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, direction in directions.items():
                parameter.add_(direction, alpha=sign * step)
            values.append(loss())
    torch.testing.assert_close((values[0] - values[1]) / (2 * step), torch.as_tensor(expected), rtol=1e-4, atol=1e-6)


def test_recomputed_layers_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made, tokens = model(attention_dropout=0.3).train(), batch()
    results = []
    for recomputes in (False, True):
        for layer in made.encoder.layers:
            layer.recomputes = recomputes
        torch.manual_seed(2)
        results.append(outputs(monkeypatch, made, tokens, True, "token"))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])


def test_frozen_tables_and_single_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a gradient of the bias nothing else changes."""
    made, tokens = model(), batch()
    made.encoder.relative_attention_bias.requires_grad_(False)
    both = [outputs(monkeypatch, made, tokens, leave_out, "sentence") for leave_out in (True, False)]
    assert_same(*both)
    assert "encoder.relative_attention_bias.weight" not in both[0][1]
