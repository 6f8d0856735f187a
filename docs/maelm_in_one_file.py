"""MAE-LM in one file: the whole method, written to be read.

`forward` is the paper's Figure 2 in four steps: encode the visible tokens, put their states back among mask embeddings,
decode, predict. It takes one sequence at a time, without batches, padding or dropout, and loops where a matrix product
would hide the meaning. The package's tests hold its fast implementation to this one, outputs and gradients; nothing
here is imported from it.

Sources: Meng et al. 2024, "Representation Deficiency in Masked Language Modeling", section 2.1 (attention, Equation 1),
section 3 (the inputs of encoder and decoder) and appendix C (relative positions in the encoder only). The paper leaves
open the LayerNorms after the embeddings, the form of the head and post- or pre-LayerNorm; these follow RoBERTa, as the
authors' implementation does. Options: ModernBERT's layer (Warner et al. 2024, "Smarter, Better, Faster, Longer"),
rotary positions (Su et al. 2024, "RoFormer"), the decoder of cross-attention alone of Table 2, and one that consists of
layers of the encoder, which is this package's own.

Shapes: T tokens of the full sequence, S visible tokens, M masked tokens, D model width, H heads, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

State = dict[str, Tensor]
"""Parameters by name, as in the state dict of a checkpoint. Everything is computed in their dtype."""

Bucket = Callable[[int, int, int], int]
"""(key position - query position, number of buckets, largest distance) -> row of the table of relative positions."""

Angles = tuple[list[int], int] | None
"""Positions of tokens and the base of their angles; None if positions are not rotary."""


@cache
def t5_bucket(relative_position: int, num_buckets: int, max_distance: int) -> int:
    """Return T5's bucket of a distance: exact at first, then on a logarithmic scale; the upper half is for later keys.

    With logarithms, a boundary would depend on the last bit of a rounding. Whole numbers decide it exactly: for n steps
    from ``exact`` to ``max_distance``, log(d / exact) / log(max / exact) * n >= k  <=>  d^n exact^k >= max^k exact^n.
    """
    half = num_buckets // 2
    exact = half // 2
    steps, distance = half - exact, abs(relative_position)
    bucket = min(distance, exact)
    while exact <= bucket < half - 1:
        k = bucket + 1 - exact
        if distance**steps * exact**k < max_distance**k * exact**steps:
            break
        bucket += 1
    return bucket + half if relative_position > 0 else bucket


@dataclass(frozen=True)
class Config:
    """What the shapes of the parameters do not tell.

    Attributes:
        encoder_layers: number of layers of the encoder.
        encoder_attention_heads: H of the encoder.
        decoder_layers: 0 puts the head on the encoder's output, as in MLM.
        decoder_attention_heads: H of the decoder.
        mask_index: row of the token embedding that fills the decoder's input where no encoder state enters.
        bucket: function of relative positions; None if the encoder has absolute positions only.
        relative_num_buckets: argument of ``bucket``.
        relative_max_distance: argument of ``bucket``.
        layer_norm_eps: added to the variance.
        decoder_attention: "self"; "cross": each position of the decoder reads the encoder's output alone; or
            "shared": layers of the encoder decode; there masks read all tokens, but visible tokens read no masks.
        modern: use ModernBERT's layer.
        decoder_rotary: use rotary positions in the decoder; the encoder has them if it has no table of positions.
        rotary_base: base of the angles; ``local_rotary_base`` in encoder layers that are not global.
        local_rotary_base: see ``rotary_base``.
        local_attention: window, in tokens, of the layers that are not global; None for all tokens.
        global_every: of so many layers, the first is global.
    """

    encoder_layers: int
    encoder_attention_heads: int
    decoder_layers: int
    decoder_attention_heads: int
    mask_index: int
    bucket: Bucket | None = t5_bucket
    relative_num_buckets: int = 32
    relative_max_distance: int = 128
    layer_norm_eps: float = 1e-5
    decoder_attention: str = "self"
    modern: bool = False
    decoder_rotary: bool = False
    rotary_base: int = 10_000
    local_rotary_base: int = 10_000
    local_attention: int | None = None
    global_every: int = 3


@dataclass(frozen=True)
class Sequence:
    """A sequence of T tokens after masking.

    Attributes:
        visible_tokens: S token ids that the encoder reads, in any order.
        visible_positions: S original positions of these tokens, from 0.
        length: T.
        enters_decoder: S truth values, all true in MAE-LM. Where one is false, the decoder sees the mask embedding in
            place of the encoder's state.
        predicted_positions: M original positions at which tokens are predicted.
        targets: M token ids, the right answers.
    """

    visible_tokens: list[int]
    visible_positions: list[int]
    length: int
    enters_decoder: list[bool]
    predicted_positions: list[int]
    targets: list[int]


@dataclass(frozen=True)
class Output:
    """Results of one sequence.

    Attributes:
        encoder_states: a list of [S, D]: the encoder's input H^0, then the output of every layer.
        decoder_states: a list of [T, D], likewise; empty without a decoder.
        logits: [M, V].
        loss: [], the cross-entropy in nats, summed over M.
    """

    encoder_states: list[Tensor]
    decoder_states: list[Tensor]
    logits: Tensor
    loss: Tensor


def forward(state: State, config: Config, sequence: Sequence) -> Output:
    """Encode, reassemble, decode, predict: Figure 2."""
    encoder_states = encode(state, config, sequence.visible_tokens, sequence.visible_positions)
    if config.decoder_layers > 0 and config.decoder_attention == "shared":
        decoder_states = decode_by_encoder(state, config, sequence, encoder_states)
        features = [decoder_states[-1][position] for position in sequence.predicted_positions]
    elif config.decoder_layers > 0:
        reassembled = reassemble(state, config, sequence, encoder_states[-1])
        # A state that does not enter the decoder's input must not be read by cross-attention either.
        rows = [row for row, enters in enumerate(sequence.enters_decoder) if enters]
        memory_positions = [sequence.visible_positions[row] for row in rows]
        decoder_states = decode(state, config, reassembled, encoder_states[-1][rows], memory_positions)
        features = [decoder_states[-1][position] for position in sequence.predicted_positions]
    else:
        decoder_states = []
        rows = [sequence.visible_positions.index(position) for position in sequence.predicted_positions]
        features = [encoder_states[-1][row] for row in rows]
    table = state["encoder.embed_tokens.weight"]
    logits, loss = table.new_zeros(0, len(table)), table.new_zeros(())
    for each, target in zip(features, sequence.targets, strict=True):
        scores = predict(state, config, each)
        logits = torch.cat([logits, scores[None]])
        loss = loss + torch.logsumexp(scores, dim=0) - scores[target]
    return Output(encoder_states, decoder_states, logits, loss)


def encode(
    state: State, config: Config, tokens: list[int], positions: list[int], hidden_keys: list[bool] | None = None
) -> list[Tensor]:
    """Encode tokens at their original positions (section 3, H^0); masked tokens are simply not among them.

    Args:
        state: the parameters.
        config: the configuration.
        tokens: S token ids.
        positions: S original positions.
        hidden_keys: S truth values, true for tokens that no token may attend to. The tests use it to show that dropping
            tokens equals hiding them.

    Returns:
        encoder_layers + 1 tensors [S, D], the input first.
    """
    table = state.get("encoder.embed_positions.weight")
    rows = []
    for token, position in zip(tokens, positions, strict=True):
        embedded = state["encoder.embed_tokens.weight"][token]
        if table is not None:
            embedded = embedded + table[position]
        rows.append(layer_norm(state, "encoder.layernorm_embedding", embedded, config))
    bias = relative_bias(state, config, positions)
    if hidden_keys is not None:
        bias = bias.masked_fill(torch.tensor(hidden_keys), -math.inf)
    states = [torch.stack(rows)]
    for layer in range(config.encoder_layers):
        name = f"encoder.layers.{layer}"
        is_global = layer % config.global_every == 0
        base = config.rotary_base if is_global else config.local_rotary_base
        angles = (positions, base) if table is None else None
        seen = bias if is_global else within_window(bias, positions, config.local_attention)
        attention = partial(self_attention, state, name, heads=config.encoder_attention_heads, bias=seen, angles=angles)
        states.append(transformer_layer(state, name, states[-1], "self_attn", attention, config))
    return finished(state, "encoder", states, config)


def reassemble(state: State, config: Config, sequence: Sequence, encoder_output: Tensor) -> Tensor:
    """Put encoder states [S, D] back at their positions and the mask embedding everywhere else: [T, D] (section 3)."""
    rows = [state["encoder.embed_tokens.weight"][config.mask_index]] * sequence.length
    for row, position in enumerate(sequence.visible_positions):
        if sequence.enters_decoder[row]:
            rows[position] = encoder_output[row]
    return torch.stack(rows)


def decode(
    state: State, config: Config, reassembled: Tensor, memory: Tensor, memory_positions: list[int]
) -> list[Tensor]:
    """Decode all T positions, in both directions and without relative bias.

    Cross-attention reads ``memory``, the encoder's output [S, D], at ``memory_positions``.

    Returns:
        decoder_layers + 1 tensors [T, D], the input (positions added, normalized) first.
    """
    table = state.get("decoder.embed_positions.weight", state.get("encoder.embed_positions.weight"))
    if config.decoder_rotary:
        table = None
    rows = [
        layer_norm(state, "decoder.layernorm_embedding", row if table is None else row + table[position], config)
        for position, row in enumerate(reassembled)
    ]
    angles = (list(range(len(rows))), config.rotary_base) if table is None else None
    heads, states = config.decoder_attention_heads, [torch.stack(rows)]
    memory_angles = (memory_positions, config.rotary_base) if table is None else None
    no_bias = reassembled.new_zeros(heads, len(rows), len(rows))
    for layer in range(config.decoder_layers):
        name = f"decoder.layers.{layer}"
        kind, attention = "self_attn", partial(self_attention, state, name, heads=heads, bias=no_bias, angles=angles)
        if config.decoder_attention != "self":
            kind, attention = (
                "cross_attn",
                partial(
                    cross_attention, state, name, memory=memory, heads=heads, angles=angles, memory_angles=memory_angles
                ),
            )
        states.append(transformer_layer(state, name, states[-1], kind, attention, config))
    return finished(state, "decoder", states, config)


def decode_by_encoder(state: State, config: Config, sequence: Sequence, encoder_states: list[Tensor]) -> list[Tensor]:
    """Decode with some of the encoder's layers, which also process masks; real tokens never attend to a mask.

    The layers are spread evenly over the encoder, up to its last. Masks enter at the first and skip those between. So
    the states of visible tokens are those of ``encode``. All other positions hold masks.

    Returns:
        tensors [T, D]: one before the first of these layers, and one after each layer from there on.
    """
    table = state.get("encoder.embed_positions.weight")
    embedding, masks = state["encoder.embed_tokens.weight"][config.mask_index], []
    for position in range(sequence.length):
        row = embedding if table is None else embedding + table[position]
        masks.append(layer_norm(state, "encoder.layernorm_embedding", row, config))
    of_encoder, of_decoder = config.encoder_layers, config.decoder_layers
    with_masks = [math.ceil(number * of_encoder / of_decoder) - 1 for number in range(1, of_decoder + 1)]
    first = with_masks[0]
    states = [with_states(torch.stack(masks), sequence, encoder_states[first])]
    for layer in range(first, config.encoder_layers):
        x = states[-1]
        if layer in with_masks:
            reading = partial(masks_attention, state, f"encoder.layers.{layer}", config=config, layer=layer)
            x = transformer_layer(state, f"encoder.layers.{layer}", x, "self_attn", reading, config)
        if layer == config.encoder_layers - 1:
            [x] = finished(state, "encoder", [x], config)
        states.append(with_states(x, sequence, encoder_states[layer + 1]))
    return states


def with_states(rows: Tensor, sequence: Sequence, states: Tensor) -> Tensor:
    """Put the encoder's states [S, D] at their positions in [T, D]."""
    entering = {p: row for row, p in enumerate(sequence.visible_positions) if sequence.enters_decoder[row]}
    return torch.stack([states[entering[p]] if p in entering else row for p, row in enumerate(rows)])


def masks_attention(state: State, name: str, x: Tensor, config: Config, layer: int) -> Tensor:
    """Let each row of [T, D] read all rows, with the bias and the window of an encoder layer."""
    positions, is_global = list(range(len(x))), layer % config.global_every == 0
    bias = relative_bias(state, config, positions)
    bias = bias if is_global else within_window(bias, positions, config.local_attention)
    base = config.rotary_base if is_global else config.local_rotary_base
    angles = None if "encoder.embed_positions.weight" in state else (positions, base)
    return self_attention(state, name, x, config.encoder_attention_heads, bias, angles)


def predict(state: State, config: Config, features: Tensor) -> Tensor:
    """Turn [D] into logits [V]: dense, GELU, LayerNorm, then the product with every token's embedding (Equation 1)."""
    features = layer_norm(state, "lm_head.layer_norm", gelu(linear(state, "lm_head.dense", features)), config)
    return state["encoder.embed_tokens.weight"] @ features + state["lm_head.bias"]


def transformer_layer(
    state: State, name: str, x: Tensor, kind: str, attention: Callable[[Tensor], Tensor], config: Config
) -> Tensor:
    """Apply a layer to [S, D]; in the paper's a LayerNorm follows each residual sum."""
    if config.modern:
        return modern_layer(state, name, x, kind, attention, config)
    x = layer_norm(state, f"{name}.{kind}_layer_norm", x + attention(x), config)
    transformed = linear(state, f"{name}.fc2", gelu(linear(state, f"{name}.fc1", x)))
    return layer_norm(state, f"{name}.final_layer_norm", x + transformed, config)


def modern_layer(
    state: State, name: str, x: Tensor, kind: str, attention: Callable[[Tensor], Tensor], config: Config
) -> Tensor:
    """Apply ModernBERT's layer: a LayerNorm before each sub-layer, except where the input has just been normalized."""
    is_first = f"{name}.{kind}_layer_norm.weight" not in state
    x = x + attention(x if is_first else layer_norm(state, f"{name}.{kind}_layer_norm", x, config))
    inner = linear(state, f"{name}.fc1", layer_norm(state, f"{name}.final_layer_norm", x, config))
    half = inner.shape[1] // 2
    return x + linear(state, f"{name}.fc2", gelu(inner[:, :half]) * inner[:, half:])


def finished(state: State, stack: str, states: list[Tensor], config: Config) -> list[Tensor]:
    """Normalize the last output of a modern stack, because its layers do not."""
    if config.modern:
        states[-1] = layer_norm(state, f"{stack}.final_layer_norm", states[-1], config)
    return states


def self_attention(state: State, name: str, x: Tensor, heads: int, bias: Tensor, angles: Angles) -> Tensor:
    """Let each row of [S, D] read all rows."""
    queries, keys, values = linear(state, f"{name}.self_attn.qkv_proj", x).split(x.shape[1], dim=1)
    attended = multi_head_attention(queries, keys, values, heads, bias, angles, angles)
    return linear(state, f"{name}.self_attn.out_proj", attended)


def cross_attention(
    state: State, name: str, x: Tensor, memory: Tensor, heads: int, angles: Angles, memory_angles: Angles
) -> Tensor:
    """Let each row of [T, D] read the encoder's output [S, D]."""
    queries = linear(state, f"{name}.cross_attn.q_proj", x)
    keys, values = linear(state, f"{name}.cross_attn.kv_proj", memory).split(x.shape[1], dim=1)
    no_bias = x.new_zeros(heads, len(x), len(memory))
    attended = multi_head_attention(queries, keys, values, heads, no_bias, angles, memory_angles)
    return linear(state, f"{name}.cross_attn.out_proj", attended)


def multi_head_attention(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, bias: Tensor, angles: Angles, key_angles: Angles
) -> Tensor:
    """Return Concat(head_1, ..., head_H) of section 2.1, [T, D]; the bias [H, T, S] is added to the scaled products."""
    head_width = queries.shape[1] // heads
    outputs = []
    for head in range(heads):
        columns = slice(head * head_width, (head + 1) * head_width)
        head_keys, rows = rotated(keys[:, columns], key_angles), []
        for row, query in enumerate(rotated(queries[:, columns], angles)):
            logits = head_keys @ query / math.sqrt(head_width) + bias[head, row]
            weights = torch.exp(logits - torch.logsumexp(logits, dim=0))
            rows.append(weights @ values[:, columns])
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, dim=1)


def relative_bias(state: State, config: Config, positions: list[int]) -> Tensor:
    """Return [H, S, S] (head, query, key): a learned number per bucket and head, the same in all encoder layers."""
    heads, size = config.encoder_attention_heads, len(positions)
    if config.bucket is None:
        return state["encoder.embed_tokens.weight"].new_zeros(heads, size, size)
    table = state["encoder.relative_attention_bias.weight"]
    rows = []
    for query in positions:
        distances = [key - query for key in positions]
        buckets = [config.bucket(d, config.relative_num_buckets, config.relative_max_distance) for d in distances]
        rows.append(table[buckets])
    return torch.stack(rows).permute(2, 0, 1)


def within_window(bias: Tensor, positions: list[int], window: int | None) -> Tensor:
    """Hide keys that are more than half a window away, by original positions: [H, S, S]."""
    if window is None:
        return bias
    far = [[abs(query - key) > window // 2 for key in positions] for query in positions]
    return bias.masked_fill(torch.tensor(far), -math.inf)


def rotated(heads: Tensor, angles: Angles) -> Tensor:
    """Turn elements i and i + d / 2 of a head's queries or keys [S, d] by position / base^(2i / d)."""
    if angles is None:
        return heads
    positions, base = angles
    half = heads.shape[1] // 2
    turns = [[position / base ** (i / half) for i in range(half)] for position in positions]
    radians = torch.tensor(turns, dtype=torch.float64)
    cosines, sines = radians.cos().to(heads), radians.sin().to(heads)
    first, second = heads[:, :half], heads[:, half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=1)


def linear(state: State, name: str, x: Tensor) -> Tensor:
    """Return x W^T + b."""
    product = x @ state[f"{name}.weight"].T
    return product + state[f"{name}.bias"] if f"{name}.bias" in state else product


def gelu(x: Tensor) -> Tensor:
    """Return x Phi(x), with the exact normal distribution function."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def layer_norm(state: State, name: str, x: Tensor, config: Config) -> Tensor:
    """Center and scale the last dimension, then apply weight and, if there is one, bias."""
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = (centered * centered).mean(dim=-1, keepdim=True)
    scaled = centered / torch.sqrt(variance + config.layer_norm_eps) * state[f"{name}.weight"]
    return scaled + state[f"{name}.bias"] if f"{name}.bias" in state else scaled
