"""Heads that score every token: their values, and checkpoints that have them."""

import pytest
import torch
from support import model_of

from fairseq_maelm.checkpoints.fit import fit_state_dict, register_heads

TOKENS = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 2, 1, 1]])


def test_every_token_is_scored_from_its_own_state():
    model = model_of()
    model.register_token_head("tags", 3)
    scores, _ = model(TOKENS, classification_head_name="tags")
    head = model.classification_heads["tags"].out_proj
    states, _ = model.extract_features(TOKENS)
    assert scores.shape == (2, 5, 3)
    torch.testing.assert_close(scores, states @ head.weight.T + head.bias)


def test_heads_of_a_checkpoint_are_registered_by_their_kind(family):
    """A modern head on tokens has a dense layer too, and is still no head on sentences."""
    saved = model_of(**family, seed=1)
    saved.register_classification_head("topic", 4)
    saved.register_token_head("tags", 3)
    state = saved.state_dict()
    loaded = model_of(**family, seed=2)
    register_heads(loaded, state)
    loaded.load_state_dict(state)
    for name in ("topic", "tags"):
        assert type(loaded.classification_heads[name]) is type(saved.classification_heads[name])
        expected, _ = saved(TOKENS, classification_head_name=name)
        actual, _ = loaded(TOKENS, classification_head_name=name)
        assert torch.equal(expected, actual)


@pytest.mark.parametrize("kind", ["other kind", "other size", "other task"])
def test_a_head_that_does_not_fit_starts_anew(kind, caplog):
    saved = model_of(seed=1)
    saved.register_token_head("tags", 3)
    model = model_of(seed=2)
    if kind == "other kind":
        model.register_classification_head("tags", 3)
    else:
        model.register_token_head("tags", 5 if kind == "other size" else 3)
    model.takes_heads = kind != "other task"
    fresh = model.classification_heads["tags"].out_proj.weight.clone()
    state = saved.state_dict()
    fit_state_dict(model, state)
    model.load_state_dict(state)
    assert torch.equal(model.classification_heads["tags"].out_proj.weight, fresh)
    assert "has a new one with" in caplog.text


def test_heads_that_the_task_made_in_the_same_size_stay(caplog):
    saved = model_of(seed=1)
    saved.register_token_head("tags", 3)
    model = model_of(seed=2)
    model.register_token_head("tags", 3)
    head = model.classification_heads["tags"]
    register_heads(model, saved.state_dict())
    assert model.classification_heads["tags"] is head and "replaced" not in caplog.text
    saved.register_token_head("tags", 5)
    register_heads(model, saved.state_dict())
    assert model.classification_heads["tags"].out_proj.out_features == 5
