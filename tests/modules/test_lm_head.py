"""The joint look-up of tokens and mask: values, gradients, and one gradient of the table in memory."""

import itertools

import pytest
import torch
from support import batch_of, model_of, random_sequences
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fairseq_maelm.modules.lm_head import embed_tokens_and_mask

MASK, PAD, SYMBOLS = 10, 1, 2000


@pytest.mark.parametrize("uses", list(itertools.product([True, False], repeat=2)), ids=str)
def test_values_and_gradients_are_those_of_two_look_ups(uses: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(11, 3, PAD).double()
    tokens = torch.tensor([[0, MASK, 7, 7], [4, PAD, PAD, MASK]])
    factors = torch.randn(2, 4, 3).double(), torch.randn(3).double()
    found, expected = embed_tokens_and_mask(table, tokens, MASK), (table(tokens), table.weight[MASK])
    gradients = []
    for values in (found, expected):
        used = [(each * factor).sum() for each, factor, use in zip(values, factors, uses) if use]
        gradients.append(torch.autograd.grad(sum(used), table.weight) if used else ())
    for one, other in zip((*found, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options", [{"decoder_attention": "cross"}, {}, {"decoder_layers": 0}], ids=str)
def test_a_step_makes_two_gradients_of_the_table_and_adds_them_in_place(options: dict[str, object]) -> None:
    """That of the head, and that of the tokens with the mask; each is as large as the table."""
    model = model_of(SYMBOLS, **options).train()
    kept = SYMBOLS - 1 if "decoder_layers" in options else None
    net_input, target = batch_of(random_sequences([20, 20]), [[3, 5], [2, 7]], kept)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        model(**net_input, target=target)[0].backward()
    size = list(model.encoder.embed_tokens.weight.shape)
    events = profiled.key_averages(group_by_input_shape=True)
    counts = {each.key: each.count for each in events if each.input_shapes[:1] == [size]}
    assert counts.get("aten::fill_") == counts.get("aten::add_") == 1
    assert "aten::add" not in counts
