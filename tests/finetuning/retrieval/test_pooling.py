"""Embeddings of texts: pooling, and batches that must not change them."""

from types import SimpleNamespace

import pytest
import torch
from support import model_of, random_sequences

from fairseq_maelm.finetuning.retrieval.pooling import (
    EmbeddingSettings,
    cut,
    embed_sequences,
    embed_states,
    embedding_settings,
    pool,
)

# Two texts of two tokens and of one, D = 2; what stands at padding must not matter.
STATES = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[5.0, -1.0], [1e6, float("nan")]]])
PADDING = torch.tensor([[False, False], [False, True]])


def test_mean_and_first_by_hand():
    assert pool(STATES, PADDING, "mean").tolist() == [[2.0, 4.0], [5.0, -1.0]]
    assert pool(STATES, PADDING, "first").tolist() == [[1.0, 2.0], [5.0, -1.0]]


def test_cosine_means_length_one():
    first = embed_states(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[False]]), "mean", "cosine")
    torch.testing.assert_close(first, torch.tensor([[0.6, 0.8]]))
    assert embed_states(STATES, PADDING, "mean", "dot").tolist() == [[2.0, 4.0], [5.0, -1.0]]


def test_half_precision_states_are_pooled_in_single_precision():
    states = torch.full((1, 2049, 1), 1.0, dtype=torch.bfloat16)
    pooled = pool(states, torch.zeros(1, 2049, dtype=torch.bool), "mean")
    assert pooled.dtype == torch.float32 and pooled.item() == 1.0


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_a_text_has_the_same_embedding_in_every_batch(pooling, batch_tokens):
    model, sequences = model_of(), random_sequences([5, 17, 3, 9, 17, 30])
    settings = EmbeddingSettings(pooling, "cosine", 64)
    together = embed_sequences(model, sequences, 1, settings, batch_tokens)
    alone = torch.cat([embed_sequences(model, [sequence], 1, settings, 1) for sequence in sequences])
    assert together.shape == (6, 32)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(6))


def test_long_texts_are_cut_at_their_end():
    assert cut([10, 11, 12, 13], 0, 2, 5).tolist() == [0, 10, 11, 12, 2]
    assert cut([10, 11], 0, 2, 5).tolist() == [0, 10, 11, 2]
    assert cut([], 0, 2, 5).tolist() == [0, 2]


def test_settings_come_from_the_checkpoint_and_have_defaults():
    trained = SimpleNamespace(pooling="first", similarity="dot", tokens_per_sample=256)
    assert embedding_settings(trained, 512) == ("first", "dot", 256)
    assert embedding_settings(trained, 128) == ("first", "dot", 128)
    assert embedding_settings(SimpleNamespace(tokens_per_sample=64), 512) == ("mean", "cosine", 512)
    assert embedding_settings(trained, 512, pooling="mean", max_tokens=None) == ("mean", "dot", 256)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("max", "cosine", 64), "unknown pooling 'max'"),
        (("mean", "euclid", 64), "unknown similarity 'euclid'"),
        (("mean", "dot", 2), "not to 2"),
        (("mean", "dot", 65), "the 64 positions of the model, not to 65"),
    ],
)
def test_wrong_settings_are_explained(settings, message):
    with pytest.raises(ValueError, match=message):
        embedding_settings(SimpleNamespace(), 64, **dict(zip(EmbeddingSettings._fields, settings)))
