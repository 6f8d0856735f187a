"""Embeddings of texts: pooling, settings, and batches that must not change them."""

from types import SimpleNamespace

import pytest
import torch
from support import dictionary_of, model_of, random_sequences

from fairseq_maelm.finetuning.retrieval.hub import embed, embedding_settings
from fairseq_maelm.finetuning.retrieval.pooling import cut, embed_states

# Two texts of two tokens and of one, D = 2; values at padding must not matter.
STATES = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[5.0, -1.0], [1e6, float("nan")]]])
PADDING = torch.tensor([[False, False], [False, True]])


def hub_of(positions: int = 64, model=None, encode=None, **task):
    """The parts of the hub interface that embedding uses."""
    return SimpleNamespace(
        model=model or SimpleNamespace(max_positions=lambda: positions),
        config=SimpleNamespace(task=SimpleNamespace(**task)),
        dictionary=dictionary_of(40),
        tokenizer=SimpleNamespace(encode=encode),
    )


def test_pooling_by_hand():
    assert embed_states(STATES, PADDING, "first", "dot").tolist() == [[1.0, 2.0], [5.0, -1.0]]
    assert embed_states(STATES, PADDING, "mean", "dot").tolist() == [[2.0, 4.0], [5.0, -1.0]]
    cosine = embed_states(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[False]]), "mean", "cosine")
    torch.testing.assert_close(cosine, torch.tensor([[0.6, 0.8]]))


def test_half_precision_states_are_pooled_in_single_precision():
    states = torch.full((1, 2049, 1), 1.0, dtype=torch.bfloat16)
    pooled = embed_states(states, torch.zeros(1, 2049, dtype=torch.bool), "mean", "dot")
    assert pooled.dtype == torch.float32 and pooled.item() == 1.0


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_a_text_has_the_same_embedding_in_every_batch(pooling, batch_tokens):
    sequences = random_sequences([5, 17, 3, 9, 17, 30])
    hub = hub_of(model=model_of(), encode=lambda text: sequences[int(text)].tolist())
    together = embed(hub, list("012345"), batch_tokens, pooling=pooling)
    alone = torch.cat([embed(hub, [text], 1, pooling=pooling) for text in "012345"])
    assert together.shape == (6, 32) and embed(hub, []).shape == (0, 32)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(6))


@pytest.mark.parametrize(
    ("tokens", "expected"), [([10, 11, 12, 13], [0, 10, 11, 12, 2]), ([10, 11], [0, 10, 11, 2]), ([], [0, 2])]
)
def test_long_texts_are_cut_at_their_end(tokens, expected):
    assert cut(tokens, dictionary_of(40), 5).tolist() == expected


def test_settings_come_from_the_checkpoint_and_have_defaults():
    trained = {"pooling": "first", "similarity": "dot", "tokens_per_sample": 256}
    assert embedding_settings(hub_of(512, **trained)) == ("first", "dot", 256)
    assert embedding_settings(hub_of(128, **trained)) == ("first", "dot", 128)
    assert embedding_settings(hub_of(512, tokens_per_sample=64)) == ("mean", "cosine", 512)
    assert embedding_settings(hub_of(512, **trained), pooling="mean", max_length=None) == ("mean", "dot", 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "max"}, "unknown pooling 'max'"),
        ({"similarity": "euclid"}, "unknown similarity 'euclid'"),
        ({"max_length": 2}, r"between 3 \(a token between <s> and </s>\) and 64 .* not 2"),
        ({"max_length": 65}, r"64 \(the model's positions\), not 65"),
    ],
)
def test_wrong_settings_are_explained(changes, message):
    with pytest.raises(ValueError, match=message):
        embedding_settings(hub_of(), **changes)
