"""What each contender's step costs by the FLOPs model, and which matrix products it consists of."""

from dataclasses import replace
from typing import Any

from fairseq_maelm.models.flops import (
    BatchShape,
    MatrixProduct,
    ModelShape,
    StackShape,
    matrix_products,
    training_flops,
)
from training_step.contenders import decoder_attention, decoder_layers, feed_forward_width, split_name, window
from training_step.products import Shape
from training_step.settings import Settings


def model_shape(name: str, settings: Settings, vocabulary: int) -> ModelShape:
    """Return the shape that determines a contender's cost; ours skip unread outputs, stock code does not."""
    contender, _ = split_name(name)
    ffn = feed_forward_width(contender, settings)
    stack = StackShape(settings.layers, settings.width, ffn, settings.heads, contender.gated)
    encoder, decoder = replace(stack, window=window(name)), None
    if contender.kind in ("ours", "authors"):
        decoder = replace(stack, layers=decoder_layers(name, settings))
    return ModelShape(encoder, vocabulary, decoder, decoder_attention(name), computes_unread=contender.kind != "ours")


def batch_shape(settings: Settings, sizes: dict[str, Any]) -> BatchShape:
    """Return the batch in the form that a contender's data gives it."""
    return BatchShape(settings.sequences, settings.length, sizes["visible"], sizes["predicted"])


def step_flops(name: str, settings: Settings, sizes: dict[str, Any]) -> float:
    """Operations of one training step."""
    return training_flops(model_shape(name, settings, sizes["vocabulary"]), batch_shape(settings, sizes))


def step_products(name: str, settings: Settings, sizes: dict[str, Any]) -> dict[Shape, int]:
    """Count the products of one step's forward pass by shape."""
    occurrences: dict[Shape, int] = {}
    model = model_shape(name, settings, sizes["vocabulary"])
    for product in matrix_products(model, batch_shape(settings, sizes)):
        shape = whole(product)
        occurrences[shape] = occurrences.get(shape, 0) + 1
    return occurrences


def whole(product: MatrixProduct) -> Shape:
    """Return the shape with rounded numbers of tokens, which may be means."""
    batch, rows, inner, columns = (
        max(1, round(number)) for number in (product.batch, product.rows, product.inner, product.columns)
    )
    return batch, rows, inner, columns


def shape_flops(shape: Shape) -> float:
    """Operations of the three products of a shape: forward, and the two of the backward pass."""
    batch, rows, inner, columns = shape
    return 6.0 * batch * rows * inner * columns
