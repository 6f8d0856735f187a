"""The rows of the paper's Table 2 and Figure 4, with the paper's numbers, and the options of their pretrainings."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from fairseq_maelm.architecture.encoder_options import SIZES

# Head sizes are multiples of this: the fast attention kernels of GPUs want it.
HEAD_SIZE_MULTIPLE = 8


class Row(NamedTuple):
    """A row of Table 2, or a point of Figure 4."""

    group: str  # its group in the paper's table
    setting: str  # its name there
    paper: float | None = None  # GLUE average (base size; median of five seeds for each task), if it is printed
    options: Mapping[str, Any] = {}  # of fairseq-train, in addition to those of all rows
    delta: float | None = None  # share of the masks that the encoder sees, for rows of Figure 4
    depth: Fraction | None = None  # layers of the decoder, as a fraction of the encoder's
    width: Fraction | None = None  # of the decoder, as a fraction of the encoder's
    same_as: str = ""  # another row that computes the same; this one is run only if it is named


# Fractions are those of the paper's encoder of 12 layers of 768. The footnote in section 4.3 gives delta = 1 the number
# of "enc. w. [MASK] + dec."; the two compute the same. The paper does not say what its decoder gets where a token was
# replaced at random; its number stands with the row that differs from MAE-LM in the encoder's input alone.
MASK, POSITION, ATTENTION, SIZE = "Handling [MASK]", "Position Encoding", "Decoder Attention", "Decoder Size"
RANDOM = "random replace w. real token"
ROWS = {
    "maelm": Row("Original", "MAE-LM", 86.1, delta=0.0),
    "mlm": Row("Naive", "enc. w. [MASK] (i.e., MLM)", 85.2, {"masked-input": "kept", "decoder-layers": 0}),
    "mlm_decoder": Row("Naive", "enc. w. [MASK] + dec.", 85.1, {"masked-input": "kept"}),
    "reset": Row(MASK, "enc. w. [MASK], dec. resets [MASK]", 85.9, {"masked-input": "reset"}),
    "random_replace": Row(MASK, RANDOM, 85.1, {"masked-input": "random"}),
    "random_replace_kept": Row(MASK, f"{RANDOM}, dec. keeps its state", None, {"masked-input": "random_kept"}),
    "misaligned_positions": Row(POSITION, "misaligned position encoding", 86.0, {"encoder-positions": "consecutive"}),
    "no_relative_positions": Row(POSITION, "no relative position encoding", 86.1, {"relative-buckets": "none"}),
    "self_cross": Row(ATTENTION, "bi. self-attention + cross-attention", 85.4, {"decoder-attention": "self_cross"}),
    "causal_cross": Row(
        ATTENTION, "uni. self-attention + cross-attention", 85.5, {"decoder-attention": "causal_cross"}
    ),
    "cross": Row(ATTENTION, "cross-attention", 86.0, {"decoder-attention": "cross"}),
    "decoder_2_layers": Row(SIZE, "2 layer, 768 dimension", 85.8, depth=Fraction(2, 12)),
    "decoder_6_layers": Row(SIZE, "6 layer, 768 dimension", 84.8, depth=Fraction(6, 12)),
    "decoder_1_layer": Row(SIZE, "1 layer, 768 dimension", depth=Fraction(1, 12)),
    "decoder_4_layers": Row(SIZE, "4 layer, 768 dimension", depth=Fraction(4, 12)),
    "decoder_12_layers": Row(SIZE, "12 layer, 768 dimension", depth=Fraction(12, 12)),
    "decoder_512_wide": Row(SIZE, "4 layer, 512 dimension", 85.8, width=Fraction(2, 3)),
    "decoder_1024_wide": Row(SIZE, "4 layer, 1024 dimension", 85.5, width=Fraction(4, 3)),
    "delta_0.25": Row("Figure 4", "delta = 0.25", None, {"encoder-mask-fraction": 0.25}, 0.25),
    "delta_0.5": Row("Figure 4", "delta = 0.5", None, {"encoder-mask-fraction": 0.5}, 0.5),
    "delta_0.75": Row("Figure 4", "delta = 0.75", None, {"encoder-mask-fraction": 0.75}, 0.75),
    "delta_1": Row("Figure 4", "delta = 1", 85.1, {"encoder-mask-fraction": 1}, 1.0, same_as="mlm_decoder"),
}


def row_options(name: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a row's pretraining, given those of all rows."""
    options = {**common, **ROWS[name].options}
    return {**options, **decoder_options(ROWS[name], options)}


def decoder_options(row: Row, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a decoder that a row gives as fractions of the encoder.

    A depth has one layer at least; one that is the size's own adds no option. Of a width the heads are scaled first, at
    least one; the width is the multiple of 8 x heads that is nearest to the fraction of the encoder's, so that heads
    divide it; the feed-forward width keeps its ratio to the width. With 768 and 12 heads 2/3 is 512 with 8 heads.
    """
    size = {name.replace("_", "-"): value for name, value in SIZES[options["arch"]].items()} | dict(options)
    found = {}
    if row.depth is not None:
        layers = max(1, round(row.depth * size["encoder-layers"]))
        found = {} if layers == size["decoder-layers"] else {"decoder-layers": layers}
    if row.width is not None:
        width = size["encoder-embed-dim"]
        heads = max(1, round(row.width * size["encoder-attention-heads"]))
        unit = HEAD_SIZE_MULTIPLE * heads
        own = unit * max(1, round(row.width * width / unit))
        feed_forward = round(Fraction(own * size["encoder-ffn-embed-dim"], width))
        found |= {"decoder-embed-dim": own, "decoder-ffn-embed-dim": feed_forward, "decoder-attention-heads": heads}
    return found


def same_rows(common: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows that are run only if they are named, each with the row that computes the same."""
    first: dict[str, str] = {}
    found = {name: first.setdefault(str(row_options(name, common)), name) for name in ROWS}
    found |= {name: row.same_as for name, row in ROWS.items() if row.same_as}
    return {name: other for name, other in found.items() if other != name}
