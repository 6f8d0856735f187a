"""Properties that the plain model must have by the method's definition, whatever its parameters are."""

import dataclasses
import random

import pytest
import torch
import torch.nn.functional as F
from maelm_in_one_file import Bucket, Config, Sequence, encode, forward, gelu, t5_bucket
from torch import Tensor

from .authors_buckets import reference_bucket
from .random_state import random_state

VOCABULARY, WIDTH, FFN, POSITIONS = 23, 12, 20, 40
CONFIG = Config(
    encoder_layers=2,
    encoder_attention_heads=3,
    decoder_layers=2,
    decoder_attention_heads=2,
    mask_index=VOCABULARY - 1,
    relative_num_buckets=8,
    relative_max_distance=16,
)
BUCKETS = pytest.mark.parametrize("bucket", [t5_bucket, reference_bucket, None])
NO_DECODER = dataclasses.replace(CONFIG, decoder_layers=0)


def new_state(config: Config, **options: bool) -> dict[str, Tensor]:
    return random_state(config, VOCABULARY, WIDTH, FFN, POSITIONS, seed=7, dtype=torch.float64, **options)


def masked_sequence(length: int, masked: list[int], seed: int = 1) -> Sequence:
    """Random tokens with the given positions dropped from the encoder and predicted."""
    rng = random.Random(seed)
    tokens = [rng.randrange(VOCABULARY - 1) for _ in range(length)]
    visible = [position for position in range(length) if position not in masked]
    return Sequence(
        visible_tokens=[tokens[position] for position in visible],
        visible_positions=visible,
        length=length,
        decoder_rows=[True] * len(visible),
        predicted_positions=masked,
        targets=[tokens[position] for position in masked],
    )


@BUCKETS
def test_dropping_equals_hiding_keys(bucket: Bucket | None) -> None:
    """Dropped tokens leave the same trace as tokens that stay but cannot be attended to: none."""
    config = dataclasses.replace(CONFIG, bucket=bucket)
    state, length, masked = new_state(config), 30, [0, 4, 5, 17, 29]
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
    assert (dropped[-1] - attended[-1][sequence.visible_positions]).abs().max() > 1e-2


def test_encoder_feels_original_positions() -> None:
    """Closing the gaps of the dropped tokens changes the states: absolute and relative positions both tell."""
    for bucket, keep_absolute in ((None, True), (t5_bucket, False)):
        config = dataclasses.replace(CONFIG, bucket=bucket)
        state = new_state(config)
        if not keep_absolute:
            state["encoder.embed_positions.weight"] = torch.zeros(POSITIONS, WIDTH, dtype=torch.float64)
        gaps = encode(state, config, [1, 2, 3], [0, 2, 5])[-1]
        closed = encode(state, config, [1, 2, 3], [0, 1, 2])[-1]
        assert (gaps - closed).abs().max() > 1e-2


def test_relative_bias_alone_ignores_a_common_shift() -> None:
    state = new_state(CONFIG)
    state["encoder.embed_positions.weight"] = torch.zeros(POSITIONS, WIDTH, dtype=torch.float64)
    here, there = (encode(state, CONFIG, [1, 2, 3], [p, p + 2, p + 5])[-1] for p in (0, 20))
    mirrored = encode(state, CONFIG, [1, 2, 3], [5, 3, 0])[-1]
    torch.testing.assert_close(here, there, rtol=0, atol=1e-12)
    assert (here - mirrored).abs().max() > 1e-2


@pytest.mark.parametrize("bucket", [t5_bucket, reference_bucket])
def test_sign_of_relative_positions(bucket: Bucket | None) -> None:
    """The ids from the middle on belong to keys after the query: closing them leaves each token its past alone."""
    config = dataclasses.replace(CONFIG, bucket=bucket)
    state = new_state(config)
    state["encoder.relative_attention_bias.weight"][config.relative_num_buckets // 2 :] = -1e9
    states, last_changed, first_changed = (
        encode(state, config, tokens, [0, 2, 9])[-1] for tokens in ([1, 2, 3], [1, 2, 4], [5, 2, 3])
    )
    torch.testing.assert_close(last_changed[:2], states[:2], rtol=0, atol=0)
    assert (last_changed[2] - states[2]).abs().max() > 1e-2
    assert (first_changed - states).abs().amax(dim=1).min() > 1e-3


def test_decoder_sees_only_the_mask_where_no_state_enters() -> None:
    """With all states kept out, the predictions depend on the length and the positions, not on the text."""
    state = new_state(CONFIG)
    results = []
    for seed in (1, 2):
        sequence = masked_sequence(10, [2, 6], seed)
        kept_out = dataclasses.replace(sequence, decoder_rows=[False] * 8)
        results.append((forward(state, CONFIG, sequence), forward(state, CONFIG, kept_out)))
    (open_1, closed_1), (open_2, closed_2) = results
    torch.testing.assert_close(closed_1.logits, closed_2.logits, rtol=0, atol=0)
    assert (closed_1.logits[0] - closed_1.logits[1]).abs().max() > 1e-2  # told apart by the decoder's positions
    assert (open_1.logits - open_2.logits).abs().max() > 1e-2


def test_mask_embedding_enters_the_decoder_but_never_the_encoder() -> None:
    state, sequence = new_state(CONFIG), masked_sequence(10, [2, 6])
    before = forward(state, CONFIG, sequence)
    changed = dict(state)
    changed["encoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"].clone()
    changed["encoder.embed_tokens.weight"][CONFIG.mask_index] *= -1  # adding a constant would die in the LayerNorm
    after = forward(changed, CONFIG, sequence)
    torch.testing.assert_close(after.encoder_states[-1], before.encoder_states[-1], rtol=0, atol=0)
    assert (after.logits[:, 0] - before.logits[:, 0]).abs().min() > 1e-3


def test_without_decoder_the_head_reads_the_encoder() -> None:
    state = new_state(NO_DECODER)
    sequence = Sequence([4, 5, NO_DECODER.mask_index], [0, 1, 2], 3, [True] * 3, [2, 0], [6, 4])
    output = forward(state, NO_DECODER, sequence)
    features = output.encoder_states[-1][[2, 0]]
    features = gelu(features @ state["lm_head.dense.weight"].T + state["lm_head.dense.bias"])
    weight, bias = state["lm_head.layer_norm.weight"], state["lm_head.layer_norm.bias"]
    features = F.layer_norm(features, (WIDTH,), weight, bias, NO_DECODER.layer_norm_eps)
    expected = features @ state["encoder.embed_tokens.weight"].T + state["lm_head.bias"]
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-12)
    assert output.decoder_states == []
    with pytest.raises(ValueError, match="1 is not in list"):
        forward(state, NO_DECODER, Sequence([4, 5], [0, 2], 3, [True] * 2, [1], [6]))


def test_layer_equals_torch() -> None:
    """One encoder layer without relative bias is torch's post-LayerNorm encoder layer with the same weights."""
    config = dataclasses.replace(CONFIG, encoder_layers=1, bucket=None)
    state = new_state(config)
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH,
        config.encoder_attention_heads,
        FFN,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        dtype=torch.float64,
    )
    renamed = {"qkv_proj.": "in_proj_", "fc1": "linear1", "fc2": "linear2"}
    renamed |= {"self_attn_layer_norm": "norm1", "final_layer_norm": "norm2"}
    own = {}
    for name, value in state.items():
        if name.startswith("encoder.layers.0."):
            leaf = name.removeprefix("encoder.layers.0.")
            for old, new in renamed.items():
                leaf = leaf.replace(old, new)
            own[leaf] = value
    layer.load_state_dict(own)
    before, after = encode(state, config, [3, 1, 4, 1, 5], [0, 1, 2, 3, 4])
    torch.testing.assert_close(after, layer(before[None])[0], rtol=0, atol=1e-12)


def test_loss_is_the_summed_cross_entropy_in_nats() -> None:
    sequence = masked_sequence(12, [1, 5, 6])
    output = forward(new_state(CONFIG), CONFIG, sequence)
    assert output.logits.shape == (3, VOCABULARY)
    expected = F.cross_entropy(output.logits, torch.tensor(sequence.targets), reduction="sum")
    torch.testing.assert_close(output.loss, expected)


def test_nothing_to_predict() -> None:
    output = forward(new_state(CONFIG), CONFIG, masked_sequence(5, []))
    assert output.logits.shape == (0, VOCABULARY) and output.loss.item() == 0
    assert output.decoder_states[-1].shape == (5, WIDTH)


@pytest.mark.parametrize("share", [False, True])
@BUCKETS
def test_every_parameter_gets_a_gradient(bucket: Bucket | None, share: bool) -> None:
    config = dataclasses.replace(CONFIG, bucket=bucket)
    state = new_state(config, share_decoder_positions=share)
    assert ("decoder.embed_positions.weight" in state) is not share
    for parameter in state.values():
        parameter.requires_grad_()
    forward(state, config, masked_sequence(20, [2, 11, 12])).loss.backward()
    for name, parameter in state.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-6, name
    if bucket is not None:
        table_gradient = state["encoder.relative_attention_bias.weight"].grad
        assert table_gradient is not None and table_gradient.abs().amax(dim=0).min() > 1e-6  # every head's column
