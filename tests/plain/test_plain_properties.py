"""Properties that the plain model must have by the method's definition, whatever its parameters are.

That its layers, head and loss are right follows from its equality with the package's model (tests/models), which equals
fairseq's RoBERTa, and from the authors' code.
"""

import dataclasses
import random

import pytest
import torch
from maelm_in_one_file import Config, Sequence, State, encode, forward
from support import model_of, plain_of

VOCABULARY = 40


def random_model(buckets: str = "t5") -> tuple[State, Config]:
    """Random parameters, none of them small, and their configuration: a vocabulary of 40 with <mask> at its end."""
    state, config = plain_of(model_of(VOCABULARY, relative_buckets=buckets))
    return {name: tensor.detach() for name, tensor in state.items()}, config


def masked_sequence(length: int, masked: list[int], seed: int = 1) -> Sequence:
    """Random tokens with the given positions dropped from the encoder and predicted."""
    rng = random.Random(seed)
    tokens = [rng.randrange(VOCABULARY - 1) for _ in range(length)]
    visible = [position for position in range(length) if position not in masked]
    return Sequence(
        visible_tokens=[tokens[position] for position in visible],
        visible_positions=visible,
        length=length,
        enters_decoder=[True] * len(visible),
        predicted_positions=masked,
        targets=[tokens[position] for position in masked],
    )


@pytest.mark.parametrize("buckets", ["t5", "reference", "none"])
def test_dropping_equals_hiding_keys(buckets: str) -> None:
    """Dropped tokens leave the same trace as tokens that stay but cannot be attended to: none."""
    (state, config), length, masked = random_model(buckets), 30, [0, 4, 5, 17, 29]
    sequence = masked_sequence(length, masked)
    tokens = [config.mask_index] * length
    for token, position in zip(sequence.visible_tokens, sequence.visible_positions, strict=True):
        tokens[position] = token
    hidden = [position in masked for position in range(length)]
    dropped = encode(state, config, sequence.visible_tokens, sequence.visible_positions)
    full = encode(state, config, tokens, list(range(length)), hidden_keys=hidden)
    attended = encode(state, config, tokens, list(range(length)))
    assert len(dropped) == config.encoder_layers + 1
    for state_dropped, state_full in zip(dropped, full, strict=True):
        torch.testing.assert_close(state_dropped, state_full[sequence.visible_positions], rtol=0, atol=1e-12)
    assert (dropped[-1] - attended[-1][sequence.visible_positions]).abs().max() > 1e-3


def test_encoder_feels_original_positions() -> None:
    """Closing the gaps of the dropped tokens changes the states: absolute and relative positions both tell."""
    for buckets, keep_absolute in (("none", True), ("t5", False)):
        state, config = random_model(buckets)
        if not keep_absolute:
            state["encoder.embed_positions.weight"].zero_()
        gaps = encode(state, config, [1, 2, 3], [0, 2, 5])[-1]
        closed = encode(state, config, [1, 2, 3], [0, 1, 2])[-1]
        assert (gaps - closed).abs().max() > 1e-3


def test_relative_bias_alone_ignores_a_common_shift() -> None:
    state, config = random_model()
    state["encoder.embed_positions.weight"].zero_()
    here, there = (encode(state, config, [1, 2, 3], [p, p + 2, p + 5])[-1] for p in (0, 20))
    mirrored = encode(state, config, [1, 2, 3], [5, 3, 0])[-1]
    torch.testing.assert_close(here, there, rtol=0, atol=1e-12)
    assert (here - mirrored).abs().max() > 1e-3


def test_decoder_sees_only_the_mask_where_no_state_enters() -> None:
    """With all states kept out, the predictions depend on the length and the positions, not on the text."""
    state, config = random_model()
    results = []
    for seed in (1, 2):
        sequence = masked_sequence(10, [2, 6], seed)
        kept_out = dataclasses.replace(sequence, enters_decoder=[False] * 8)
        results.append((forward(state, config, sequence), forward(state, config, kept_out)))
    (open_1, closed_1), (open_2, closed_2) = results
    torch.testing.assert_close(closed_1.logits, closed_2.logits, rtol=0, atol=0)
    assert (closed_1.logits[0] - closed_1.logits[1]).abs().max() > 1e-3  # told apart by the decoder's positions
    assert (open_1.logits - open_2.logits).abs().max() > 1e-3


def test_mask_embedding_enters_the_decoder_but_never_the_encoder() -> None:
    (state, config), sequence = random_model(), masked_sequence(10, [2, 6])
    before = forward(state, config, sequence)
    changed = dict(state)
    changed["encoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"].clone()
    changed["encoder.embed_tokens.weight"][config.mask_index] *= -1  # adding a constant would die in the LayerNorm
    after = forward(changed, config, sequence)
    torch.testing.assert_close(after.encoder_states[-1], before.encoder_states[-1], rtol=0, atol=0)
    assert (after.logits[:, 0] - before.logits[:, 0]).abs().min() > 1e-3


def test_nothing_to_predict() -> None:
    output = forward(*random_model(), masked_sequence(5, []))
    assert output.logits.shape == (0, VOCABULARY) and output.loss.item() == 0
    assert output.decoder_states[-1].shape == (5, 32)
