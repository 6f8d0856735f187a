"""MAE-LM written out plainly, as a second opinion on the real model. It shares no code with the package.

Sources: Meng et al. 2024, "Representation Deficiency in Masked Language Modeling", sections 2.1 (attention and the MLM
objective, Equation 1) and 3 (the encoder's input H^0 and the decoder's input), and appendix C (relative positions in
the encoder only, no dropout in the decoder). The paper leaves open the LayerNorms after the embeddings, the form of the
head and post- or pre-LayerNorm; these follow RoBERTa, as the authors' implementation does. The other family of models
has the layer of Warner et al. 2024, "Smarter, Better, Faster, Longer" (ModernBERT), and the rotary positions of Su et
al. 2024, "RoFormer", in both stacks. Of the other decoders in Table 2 it has the one of cross-attention alone.

One sequence at a time: no batch, no padding, no dropout. Loops stand where a matrix product would hide the meaning.
The result has the dtype of the parameters, so with float64 parameters it is exact enough to judge float32 code.
Shape alphabet: T tokens of the full sequence, S visible tokens, M masked tokens, D model width, H heads, V vocabulary,
P rows of a position table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .buckets import reference_bucket, t5_bucket

State = dict[str, Tensor]
# Positions of tokens, and the base of their angles; None where positions are not rotary.
Angles = tuple[list[int], int]


@dataclass(frozen=True)
class PlainConfig:
    """What the parameters' shapes do not tell.

    Attributes:
        relative_buckets: "t5", "reference" or "none" (the encoder then has absolute positions only).
        mask_index: row of the token embedding that fills the decoder's input where no encoder state enters.
        modern: whether the layers are ModernBERT's.
        decoder_rotary: whether the decoder has rotary positions; the encoder has them if it has no table of positions.
        rotary_base: of rotary positions; ``local_rotary_base`` is that of the encoder's layers that are not global.
        local_attention: window in tokens of these layers; None if all layers read all tokens.
        global_every: the first layer of so many is global.
        decoder_layers: 0 puts the head on the encoder's output; everything predicted must then be visible.
        decoder_attention: "self", or "cross": each position of the decoder attends to the encoder's output alone.
    """

    encoder_layers: int
    encoder_attention_heads: int
    decoder_layers: int
    decoder_attention_heads: int
    mask_index: int
    relative_buckets: str = "t5"
    relative_num_buckets: int = 32
    relative_max_distance: int = 128
    layer_norm_eps: float = 1e-5
    modern: bool = False
    decoder_rotary: bool = False
    rotary_base: int = 10_000
    local_rotary_base: int = 10_000
    local_attention: int | None = None
    global_every: int = 3
    decoder_attention: str = "self"


@dataclass(frozen=True)
class PlainSequence:
    """One sequence of T tokens, numbered by their original positions 0..T-1.

    Attributes:
        visible_tokens: S token ids that the encoder reads, in any order.
        visible_positions: S original positions of these tokens, all different.
        length: T, in tokens.
        decoder_rows: S truth values: does the token's encoder state enter the decoder? Where it does not, the decoder
            sees the mask embedding, as at the positions that are not visible. Not read when there is no decoder.
        predicted_positions: M original positions at which the head predicts.
        targets: M token ids, the right answers.
    """

    visible_tokens: list[int]
    visible_positions: list[int]
    length: int
    decoder_rows: list[bool]
    predicted_positions: list[int]
    targets: list[int]

    def __post_init__(self) -> None:
        if not len(self.visible_tokens) == len(self.visible_positions) == len(self.decoder_rows):
            raise ValueError("visible_tokens, visible_positions and decoder_rows must be equally long")
        if len(self.predicted_positions) != len(self.targets):
            raise ValueError("predicted_positions and targets must be equally long")
        if len(set(self.visible_positions)) != len(self.visible_positions):
            raise ValueError(f"a visible position is given twice: {self.visible_positions}")
        if not all(0 <= position < self.length for position in self.visible_positions + self.predicted_positions):
            raise ValueError(f"a position lies outside of 0..{self.length - 1}")


@dataclass(frozen=True)
class PlainOutput:
    """Lists run over the sequences in the order given.

    Attributes:
        encoder_states: per sequence a list of [S, D]: the encoder's input H^0, then the output of every layer.
        decoder_states: per sequence a list of [T, D], likewise; empty without a decoder.
        logits: [M, V], M counted over all sequences.
        loss: [], the cross-entropy in nats summed over the M predictions.
    """

    encoder_states: list[list[Tensor]]
    decoder_states: list[list[Tensor]]
    logits: Tensor
    loss: Tensor


def plain_forward(state: State, config: PlainConfig, sequences: list[PlainSequence]) -> PlainOutput:
    """Encode, reassemble, decode and predict, one sequence after the other."""
    all_encoder_states: list[list[Tensor]] = []
    all_decoder_states: list[list[Tensor]] = []
    all_logits: list[Tensor] = []
    all_losses: list[Tensor] = []
    for sequence in sequences:
        encoder_states = encode(state, config, sequence.visible_tokens, sequence.visible_positions)
        if config.decoder_layers > 0:
            reassembled = reassemble(state, config, sequence, encoder_states[-1])
            # What does not enter the decoder's input must not be read by cross-attention either.
            rows = [row for row, enters in enumerate(sequence.decoder_rows) if enters]
            memory_positions = [sequence.visible_positions[row] for row in rows]
            decoder_states = decode(state, config, reassembled, encoder_states[-1][rows], memory_positions)
            predicting = [decoder_states[-1][position] for position in sequence.predicted_positions]
        else:
            decoder_states = []
            row_of = {position: row for row, position in enumerate(sequence.visible_positions)}
            hidden = [position for position in sequence.predicted_positions if position not in row_of]
            if hidden:
                raise ValueError(f"without a decoder nothing can be predicted at the positions {hidden}: not visible")
            predicting = [encoder_states[-1][row_of[position]] for position in sequence.predicted_positions]
        for features, target in zip(predicting, sequence.targets, strict=True):
            scores = predict(state, config, features)
            all_logits.append(scores)
            all_losses.append(torch.logsumexp(scores, dim=0) - scores[target])
        all_encoder_states.append(encoder_states)
        all_decoder_states.append(decoder_states)
    table = state["encoder.embed_tokens.weight"]
    logits = torch.stack(all_logits) if all_logits else table.new_zeros(0, len(table))
    return PlainOutput(all_encoder_states, all_decoder_states, logits, sum(all_losses, start=table.new_zeros(())))


def encode(
    state: State, config: PlainConfig, tokens: list[int], positions: list[int], hidden_keys: list[bool] | None = None
) -> list[Tensor]:
    """Encode the given tokens at their original positions (section 3, H^0).

    ``hidden_keys`` is True for tokens that no token may attend to; they get an output nevertheless. None hides nothing.

    Returns:
        encoder_layers + 1 tensors [S, D], the input first.
    """
    rows = []
    for token, position in zip(tokens, positions, strict=True):
        embedded = state["encoder.embed_tokens.weight"][token]
        if "encoder.embed_positions.weight" in state:
            embedded = embedded + state["encoder.embed_positions.weight"][position]
        rows.append(layer_norm(state, "encoder.layernorm_embedding", embedded, config))
    rotary = positions if "encoder.embed_positions.weight" not in state else None
    bias = relative_bias(state, config, positions)
    if hidden_keys is not None:
        bias = bias.masked_fill(torch.tensor(hidden_keys), -math.inf)
    states = [torch.stack(rows)]
    for layer in range(config.encoder_layers):
        name = f"encoder.layers.{layer}"
        is_global = layer % config.global_every == 0
        angles = angles_of(rotary, config.rotary_base if is_global else config.local_rotary_base)
        seen = bias if is_global else within_window(bias, positions, config.local_attention)
        attention = partial(self_attention, state, name, heads=config.encoder_attention_heads, bias=seen, angles=angles)
        states.append(transformer_layer(state, name, states[-1], "self_attn", attention, config))
    return finished(state, "encoder", states, config)


def within_window(bias: Tensor, positions: list[int], window: int | None) -> Tensor:
    """Hide what is more than half a window away, at original positions: [H, S, S]."""
    if window is None:
        return bias
    far = [[abs(query - key) > window // 2 for key in positions] for query in positions]
    return bias.masked_fill(torch.tensor(far), -math.inf)


def reassemble(state: State, config: PlainConfig, sequence: PlainSequence, encoder_output: Tensor) -> Tensor:
    """[S, D] encoder states put back to their positions, the mask embedding everywhere else: [T, D] (section 3)."""
    rows = [state["encoder.embed_tokens.weight"][config.mask_index]] * sequence.length
    for row, position in enumerate(sequence.visible_positions):
        if sequence.decoder_rows[row]:
            rows[position] = encoder_output[row]
    return torch.stack(rows)


def decode(
    state: State, config: PlainConfig, reassembled: Tensor, memory: Tensor, memory_positions: list[int]
) -> list[Tensor]:
    """The decoder over all T positions, both directions, no relative bias; cross-attention reads ``memory`` [S, D].

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
    angles = angles_of(list(range(len(rows))) if table is None else None, config.rotary_base)
    memory_angles = angles_of(memory_positions if table is None else None, config.rotary_base)
    states = [torch.stack(rows)]
    heads, length = config.decoder_attention_heads, len(rows)
    no_bias = reassembled.new_zeros(heads, length, length)
    for layer in range(config.decoder_layers):
        name = f"decoder.layers.{layer}"
        if config.decoder_attention == "cross":
            kind = "cross_attn"
            attention = partial(
                cross_attention, state, name, memory=memory, heads=heads, angles=angles, memory_angles=memory_angles
            )
        else:
            kind = "self_attn"
            attention = partial(self_attention, state, name, heads=heads, bias=no_bias, angles=angles)
        states.append(transformer_layer(state, name, states[-1], kind, attention, config))
    return finished(state, "decoder", states, config)


def finished(state: State, stack: str, states: list[Tensor], config: PlainConfig) -> list[Tensor]:
    """A modern stack ends with a LayerNorm, because its layers do not."""
    if config.modern:
        states[-1] = layer_norm(state, f"{stack}.final_layer_norm", states[-1], config)
    return states


def predict(state: State, config: PlainConfig, features: Tensor) -> Tensor:
    """[D] -> [V] logits: dense, GELU, LayerNorm, then the product with every token's embedding e_x (Equation 1)."""
    features = layer_norm(state, "lm_head.layer_norm", gelu(linear(state, "lm_head.dense", features)), config)
    return state["encoder.embed_tokens.weight"] @ features + state["lm_head.bias"]


def relative_bias(state: State, config: PlainConfig, positions: list[int]) -> Tensor:
    """[H, S, S] (head, query, key): one learned number per bucket and head, the same in all encoder layers."""
    size = len(positions)
    if config.relative_buckets == "none":
        table = state["encoder.embed_tokens.weight"]
        return table.new_zeros(config.encoder_attention_heads, size, size)
    bucket_function = {"t5": t5_bucket, "reference": reference_bucket}[config.relative_buckets]
    table = state["encoder.relative_attention_bias.weight"]
    rows = []
    for query_position in positions:
        buckets = [
            bucket_function(key_position - query_position, config.relative_num_buckets, config.relative_max_distance)
            for key_position in positions
        ]
        rows.append(table[buckets])
    return torch.stack(rows).permute(2, 0, 1)


def transformer_layer(
    state: State, name: str, x: Tensor, kind: str, attention: Callable[[Tensor], Tensor], config: PlainConfig
) -> Tensor:
    """[S, D] -> [S, D]. LayerNorm follows each residual sum (post-LayerNorm), or stands before each sub-layer."""
    if config.modern:
        return modern_layer(state, name, x, kind, attention, config)
    x = layer_norm(state, f"{name}.{kind}_layer_norm", x + attention(x), config)
    transformed = linear(state, f"{name}.fc2", gelu(linear(state, f"{name}.fc1", x)))
    return layer_norm(state, f"{name}.final_layer_norm", x + transformed, config)


def modern_layer(
    state: State, name: str, x: Tensor, kind: str, attention: Callable[[Tensor], Tensor], config: PlainConfig
) -> Tensor:
    """ModernBERT's: what enters the first layer has been normalized; half of fc1 is the gate of the other half."""
    first = f"{name}.{kind}_layer_norm.weight" not in state
    x = x + attention(x if first else layer_norm(state, f"{name}.{kind}_layer_norm", x, config))
    inner = linear(state, f"{name}.fc1", layer_norm(state, f"{name}.final_layer_norm", x, config))
    half = inner.shape[1] // 2
    return x + linear(state, f"{name}.fc2", gelu(inner[:, :half]) * inner[:, half:])


def angles_of(positions: list[int] | None, base: int) -> Angles | None:
    return None if positions is None else (positions, base)


def rotated(heads: Tensor, angles: Angles | None) -> Tensor:
    """[S, d_h], queries or keys of one head: element i and element i + d_h / 2 turn by position / base^(2i / d_h)."""
    if angles is None:
        return heads
    positions, base = angles
    half = heads.shape[1] // 2
    rows = []
    for position, row in zip(positions, heads, strict=True):
        turns = [position / base ** (i / half) for i in range(half)]
        first = [row[i] * math.cos(turn) - row[i + half] * math.sin(turn) for i, turn in enumerate(turns)]
        second = [row[i + half] * math.cos(turn) + row[i] * math.sin(turn) for i, turn in enumerate(turns)]
        rows.append(torch.stack(first + second))
    return torch.stack(rows)


def self_attention(state: State, name: str, x: Tensor, heads: int, bias: Tensor, angles: Angles | None) -> Tensor:
    queries, keys, values = linear(state, f"{name}.self_attn.qkv_proj", x).split(x.shape[1], dim=1)
    attended = multi_head_attention(queries, keys, values, heads, bias, angles, angles)
    return linear(state, f"{name}.self_attn.out_proj", attended)


def cross_attention(
    state: State,
    name: str,
    x: Tensor,
    memory: Tensor,
    heads: int,
    angles: Angles | None,
    memory_angles: Angles | None,
) -> Tensor:
    queries = linear(state, f"{name}.cross_attn.q_proj", x)
    keys, values = linear(state, f"{name}.cross_attn.kv_proj", memory).split(x.shape[1], dim=1)
    no_bias = x.new_zeros(heads, len(x), len(memory))
    attended = multi_head_attention(queries, keys, values, heads, no_bias, angles, memory_angles)
    return linear(state, f"{name}.cross_attn.out_proj", attended)


def multi_head_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    bias: Tensor,
    angles: Angles | None,
    key_angles: Angles | None,
) -> Tensor:
    """Concat(head_1, ..., head_H) of section 2.1, [T, D], with bias [H, T, S] added to the scaled products."""
    head_width = queries.shape[1] // heads
    outputs = []
    for head in range(heads):
        mine = slice(head * head_width, (head + 1) * head_width)
        rows = []
        turned_keys = rotated(keys[:, mine], key_angles)
        for row, query in enumerate(rotated(queries[:, mine], angles)):
            logits = turned_keys @ query / math.sqrt(head_width) + bias[head, row]
            weights = torch.exp(logits - torch.logsumexp(logits, dim=0))
            rows.append(weights @ values[:, mine])
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, dim=1)


def linear(state: State, name: str, x: Tensor) -> Tensor:
    product = x @ state[f"{name}.weight"].T
    return product + state[f"{name}.bias"] if f"{name}.bias" in state else product


def gelu(x: Tensor) -> Tensor:
    """x * Phi(x) with the exact normal distribution function (Hendrycks and Gimpel 2016), not its tanh likeness."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def layer_norm(state: State, name: str, x: Tensor, config: PlainConfig) -> Tensor:
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = (centered * centered).mean(dim=-1, keepdim=True)
    scaled = centered / torch.sqrt(variance + config.layer_norm_eps) * state[f"{name}.weight"]
    return scaled + state[f"{name}.bias"] if f"{name}.bias" in state else scaled


def random_state(
    config: PlainConfig,
    vocabulary_size: int,
    width: int,
    ffn: int,
    max_positions: int,
    seed: int,
    dtype: torch.dtype = torch.float64,
    share_decoder_positions: bool = False,
) -> State:
    """Random parameters under the names that the package's state dict has.

    Nothing is left at 0 or 1 and nothing is small: every parameter, the biases and the relative table included,
    moves the output visibly, so that no mistake hides behind an initialization.
    """
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.embed_tokens.weight": (vocabulary_size, width),
        "encoder.embed_positions.weight": (max_positions, width),
        "lm_head.dense.weight": (width, width),
        "lm_head.dense.bias": (width,),
        "lm_head.bias": (vocabulary_size,),
    }
    norms = ["encoder.layernorm_embedding", "lm_head.layer_norm"]
    if config.relative_buckets != "none":
        shapes["encoder.relative_attention_bias.weight"] = (config.relative_num_buckets, config.encoder_attention_heads)
    if config.decoder_layers > 0:
        norms.append("decoder.layernorm_embedding")
        if not share_decoder_positions:
            shapes["decoder.embed_positions.weight"] = (max_positions, width)
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for name in (f"{stack}.layers.{layer}" for layer in range(layers)):
            for leaf, out_width, in_width in (
                ("self_attn.qkv_proj", 3 * width, width),
                ("self_attn.out_proj", width, width),
                ("fc1", ffn, width),
                ("fc2", width, ffn),
            ):
                shapes[f"{name}.{leaf}.weight"] = (out_width, in_width)
                shapes[f"{name}.{leaf}.bias"] = (out_width,)
            norms += [f"{name}.self_attn_layer_norm", f"{name}.final_layer_norm"]
    return _draw(shapes, norms, width, seed, dtype)


def _draw(shapes: dict[str, tuple[int, ...]], norms: list[str], width: int, seed: int, dtype: torch.dtype) -> State:
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: tuple[int, ...], deviation: float) -> Tensor:
        # Drawn in float64 whatever the dtype: the float32 and the float64 state of one seed are then the same numbers.
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * deviation).to(dtype)

    state = {}
    for name, shape in shapes.items():
        if "relative" in name:
            state[name] = normal(shape, 1.0)
        elif "embed" in name:
            state[name] = normal(shape, 0.5)
        elif len(shape) == 1:
            state[name] = normal(shape, 0.2)
        else:
            # 1 / sqrt(fan-in) keeps the size of the activations through the product.
            state[name] = normal(shape, 1 / math.sqrt(shape[1]))
    for name in norms:
        state[f"{name}.weight"] = 1 + normal((width,), 0.2)
        state[f"{name}.bias"] = normal((width,), 0.2)
    return state
