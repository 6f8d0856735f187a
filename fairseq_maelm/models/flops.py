"""Floating-point operations of a training step, counted from the matrix products that it is made of.

Only matrix products are counted, a multiplication and an addition as two operations; LayerNorm, softmax, GELU, dropout
and the optimizer do a thousandth of the work. The backward pass of a product C = A B is two products of the same size,
dA = dC B^T and dB = A^T dC, so training takes three times the forward pass. What a kernel computes twice to save memory
is not counted: this is the work that the model asks for, by which one speaks of model FLOPs utilization (Chowdhery et
al., 2022, appendix B).

With width D, feed-forward width F, r rows that ask and c rows that are asked, a layer's forward pass takes

    2 r D (2 D + 2 F) + 4 c D^2        queries and output, feed-forward; keys and values
    4 r c D                            per sequence: attention logits and weighted values

In MAE-LM's encoder r = c = S, the visible tokens; in its decoder r = c = T, but in the last layer under the prediction
head r = M, the predicted tokens, because nothing else reads its output. In all layers of a decoder of cross-attention
alone r = M and c = S. The head takes 2 M (D^2 + D V).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairseq_maelm.architecture.encoder_options import EncoderOptions


class MatrixProduct(NamedTuple):
    """``batch`` products [rows, inner] x [inner, columns] of the forward pass; sizes are means over a batch."""

    stage: str  # "encoder", "decoder" or "head"
    name: str  # what it computes
    batch: float  # products that one kernel does at once: sequences times heads in attention, otherwise 1
    rows: float
    inner: float
    columns: float

    @property
    def flops(self) -> float:
        """Operations of the forward pass."""
        return 2.0 * self.batch * self.rows * self.inner * self.columns


@dataclass(frozen=True)
class StackShape:
    """The numbers of a stack of layers that its cost depends on."""

    layers: int  # 0 for no stack
    embed_dim: int
    ffn_embed_dim: int
    attention_heads: int  # they change the shapes of products, not their cost
    gated: bool = False  # the feed-forward network multiplies two projections of its input, as GeGLU does
    # Tokens around its own that a token reads in layers that are not global; None if all are. What a token at an end of
    # the sequence lacks of its window is counted, and so is what was dropped of it.
    window: int | None = None
    global_every: int = 3  # the first layer of so many is global

    def reach(self, number: int) -> float:
        """Return the most tokens that one reads in the layer with this index."""
        return math.inf if self.window is None or number % self.global_every == 0 else self.window // 2 * 2 + 1


@dataclass(frozen=True)
class ModelShape:
    """The numbers that determine the cost of a model."""

    encoder: StackShape
    vocabulary_size: int
    decoder: StackShape | None = None  # None or 0 layers put the head on the encoder, as in RoBERTa
    # As the model's option. The product of all pairs is counted where a causal mask then hides half of them.
    decoder_attention: str = "self"
    # States that nothing reads are computed all the same, as in stock models: those of the layer under the head, or of
    # all layers of a decoder without self-attention, at positions that are not predicted.
    computes_unread: bool = False

    @classmethod
    def from_config(cls, config: Any, vocabulary_size: int) -> "ModelShape":
        """Return the shape of a complete ``MaelmModelConfig``, or of an object with its options as attributes."""
        options = EncoderOptions.of(config)
        encoder, decoder = (
            StackShape(
                getattr(config, f"{part}_layers"),
                getattr(config, f"{part}_embed_dim"),
                getattr(config, f"{part}_ffn_embed_dim"),
                getattr(config, f"{part}_attention_heads"),
                options.is_modern,
                options.window if part == "encoder" else None,
                options.global_every,
            )
            for part in ("encoder", "decoder")
        )
        return cls(encoder, vocabulary_size, decoder, str(config.decoder_attention))


@dataclass(frozen=True)
class BatchShape:
    """The numbers that determine the cost of a batch of equally long sequences; numbers of tokens may be means.

    A ValueError says that the encoder would see, or the head predict, more tokens than there are.
    """

    sequences: int  # B
    length: int  # T, tokens of each sequence
    visible: float  # S, tokens of each that the encoder sees
    predicted: float  # tokens of each that are predicted, M / B

    def __post_init__(self) -> None:
        if not 0 < self.visible <= self.length or not 0 <= self.predicted <= self.length:
            raise ValueError(
                f"impossible numbers of tokens: {self.visible} visible and {self.predicted} predicted of {self.length}"
            )

    @classmethod
    def from_config(cls, config: Any, sequences: int = 1) -> "BatchShape":
        """Return the mean shape of batches of full sequences under a complete ``MaelmTaskConfig``.

        A decoder that reads from left to right predicts every token, which no option of the task says: replace
        ``predicted`` by the length then.
        """
        predicted = config.mask_prob * config.tokens_per_sample
        hidden = 0.0
        if str(config.masked_input) == "dropped":
            masked = predicted * (1.0 - config.leave_unmasked_prob - config.random_token_prob)
            hidden = masked * (1.0 - config.encoder_mask_fraction)
        return cls(sequences, config.tokens_per_sample, config.tokens_per_sample - hidden, predicted)


def _attention(
    stack: StackShape, stage: str, sequences: int, asking: float, asked: float, read: float
) -> list[MatrixProduct]:
    """Return the products of attention in which each of ``asking`` rows reads ``read`` of the ``asked`` ones."""
    width, heads = stack.embed_dim, stack.attention_heads
    pairs, head_dim = sequences * heads, width / heads
    return [
        MatrixProduct(stage, "queries", 1, sequences * asking, width, width),
        MatrixProduct(stage, "keys and values", 1, sequences * asked, width, 2 * width),
        MatrixProduct(stage, "attention logits", pairs, asking, head_dim, read),
        MatrixProduct(stage, "weighted values", pairs, asking, read, head_dim),
        MatrixProduct(stage, "attention output", 1, sequences * asking, width, width),
    ]


def _self_attention(stack: StackShape, stage: str, sequences: int, tokens: float, read: float) -> list[MatrixProduct]:
    products = _attention(stack, stage, sequences, tokens, tokens, read)
    # All positions ask and are asked, so that one product makes queries, keys and values.
    width = stack.embed_dim
    return [MatrixProduct(stage, "queries, keys and values", 1, sequences * tokens, width, 3 * width), *products[2:]]


def _feed_forward(stack: StackShape, stage: str, rows: float) -> list[MatrixProduct]:
    inner = stack.ffn_embed_dim
    return [
        MatrixProduct(stage, "feed-forward in", 1, rows, stack.embed_dim, inner * (2 if stack.gated else 1)),
        MatrixProduct(stage, "feed-forward out", 1, rows, inner, stack.embed_dim),
    ]


def _stack(
    stack: StackShape, stage: str, sequences: int, tokens: float, last: float, attention: str, memory: float
) -> list[MatrixProduct]:
    """Return the products of a stack over ``tokens`` positions, of which ``last`` are read at its end."""
    products: list[MatrixProduct] = []
    for number in range(stack.layers):
        # Without self-attention no position reads another, so that all layers can skip what the last one may.
        asking = last if attention == "cross" or number == stack.layers - 1 else tokens
        read = min(tokens, stack.reach(number))
        if attention != "cross" and asking == tokens:
            products += _self_attention(stack, stage, sequences, tokens, read)
        elif attention != "cross":
            products += _attention(stack, stage, sequences, asking, tokens, read)
        if attention != "self":
            cross = _attention(stack, stage, sequences, asking, memory, memory)
            products += [product for product in cross if product.name != "keys and values"]
        products += _feed_forward(stack, stage, sequences * asking)
    if attention != "self":
        # One product makes the keys and values of all layers.
        columns = 2 * stack.embed_dim * stack.layers
        products.append(MatrixProduct(stage, "keys and values", 1, sequences * memory, stack.embed_dim, columns))
    return products


def _two_streams(
    stack: StackShape, sequences: int, length: float, visible: float, masks: float, shared: int
) -> list[MatrixProduct]:
    """Return the products of an encoder of which ``shared`` layers, evenly spread, also compute masks.

    Masks read all tokens. In the last layer, visible tokens are only read.
    """
    products: list[MatrixProduct] = []
    with_masks = [math.ceil(number * stack.layers / shared) - 1 for number in range(1, shared + 1)]
    for number in range(stack.layers):
        stage = "decoder" if number in with_masks else "encoder"
        reach, is_last = stack.reach(number), number == stack.layers - 1
        streams = [] if is_last else [(visible, min(visible, reach))]
        streams += [(masks, min(length, reach))] if stage == "decoder" else []
        asking, tokens = sum(rows for rows, _ in streams), visible + (masks if stage == "decoder" else 0.0)
        if is_last:
            made = _attention(stack, stage, sequences, asking, tokens, 0.0)
        else:
            made = _self_attention(stack, stage, sequences, tokens, 0.0)
        for rows, read in streams:
            made += _attention(stack, stage, sequences, rows, 0.0, read)[2:4]
        products += [product for product in made if product.flops]
        products += _feed_forward(stack, stage, sequences * asking)
    return products


def matrix_products(model: ModelShape, batch: BatchShape) -> list[MatrixProduct]:
    """Return all matrix products of the forward pass of one training batch."""
    decoder = model.decoder if model.decoder is not None and model.decoder.layers else None
    sequences, encoder = batch.sequences, model.encoder
    predicted = batch.predicted
    last = batch.visible if model.computes_unread or decoder is not None else predicted
    shared = model.decoder_attention == "shared"
    if decoder is not None and shared:
        products = _two_streams(encoder, sequences, batch.length, batch.visible, predicted, decoder.layers)
    else:
        products = _stack(encoder, "encoder", sequences, batch.visible, last, "self", 0)
    width = encoder.embed_dim
    if decoder is not None and not shared:
        width = decoder.embed_dim
        if width != encoder.embed_dim:
            projected = [predicted if model.decoder_attention == "cross" else batch.length]
            if model.decoder_attention != "self":
                projected.append(batch.visible)
            products += [
                MatrixProduct("decoder", "input projection", 1, sequences * rows, encoder.embed_dim, width)
                for rows in projected
            ]
        last = batch.length if model.computes_unread else predicted
        products += _stack(decoder, "decoder", sequences, batch.length, last, model.decoder_attention, batch.visible)
    rows = sequences * predicted
    products.append(MatrixProduct("head", "dense", 1, rows, width, width))
    if width != encoder.embed_dim:
        products.append(MatrixProduct("head", "output projection", 1, rows, width, encoder.embed_dim))
    products.append(MatrixProduct("head", "vocabulary", 1, rows, encoder.embed_dim, model.vocabulary_size))
    return products


def training_flops(model: ModelShape, batch: BatchShape) -> float:
    """Operations of one training step: forward and backward pass of a batch."""
    return 3.0 * sum(product.flops for product in matrix_products(model, batch))


def flops_per_token(model: ModelShape, batch: BatchShape) -> float:
    """Operations of training on one raw token: one of the original text, whether it is masked or not."""
    return training_flops(model, batch) / (batch.sequences * batch.length)


def muon_flops(model: ModelShape, steps: int = 5) -> float:
    """Operations of Muon's orthogonalization in one update.

    A step of the Newton-Schulz iteration on a matrix [r, c], r <= c, is two products of 2 r^2 c and one of 2 r^3.
    Queries, keys and values are separate matrices, and so are the halves of a gated feed-forward network. A decoder
    layer with both kinds of attention has each of these matrices twice.
    """
    total = 0.0
    for stack, attention in ((model.encoder, "self"), (model.decoder, model.decoder_attention)):
        if stack is not None and attention != "shared":
            width, inner = stack.embed_dim, stack.ffn_embed_dim
            both = attention in ("self_cross", "causal_cross")
            shapes = [(width, width)] * (8 if both else 4) + [tuple(sorted((width, inner)))] * (3 if stack.gated else 2)
            total += stack.layers * sum(4 * rows**2 * columns + 2 * rows**3 for rows, columns in shapes)
    head = model.decoder.embed_dim if model.decoder is not None and model.decoder.layers else model.encoder.embed_dim
    return steps * (total + 6 * head**3)
