"""The rows of the ablation study: the paper's Table 2 and Figure 4 as options of fairseq-train."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

ORIGINAL, NAIVE, HANDLING = "Original", "Naive", "Handling [MASK]"
POSITIONS, ATTENTION, DECODER_SIZE = "Position Encoding", "Decoder Attention", "Decoder Size"
TRANSITION = "Figure 4"

_LAYERS_OF_THE_PAPER = 12
# Head sizes are multiples of this: the fast attention kernels of GPUs want it.
_HEAD_SIZE_MULTIPLE = 8


class Row(NamedTuple):
    """A row of the study.

    Attributes:
        name: of the row, its folder and its place on the command line.
        group: the paper's heading in Table 2, or Figure 4.
        setting: the paper's words, or ours where the paper has no such row.
        glue: the paper's GLUE average (base size; median of five seeds each task), None where it prints none.
        options: what makes the row, beside the options that all rows share.
        decoder_width: of the decoder, as a fraction of the encoder's; 1 adds no option.
        decoder_depth: of the decoder, as a fraction of the encoder's layers; None leaves it to the size.
        delta: the fraction of masks that stay in the encoder, for the rows of Figure 4.
    """

    name: str
    group: str
    setting: str
    glue: float | None
    options: tuple[str, ...] = ()
    decoder_width: Fraction = Fraction(1)
    decoder_depth: Fraction | None = None
    delta: float | None = None


def _transition(delta: float, glue: float | None = None) -> Row:
    name, setting = f"delta_{delta:g}", f"delta = {delta:g}"
    return Row(name, TRANSITION, setting, glue, ("--encoder-mask-fraction", f"{delta:g}"), delta=delta)


def _attention(name: str, setting: str, glue: float) -> Row:
    return Row(name, ATTENTION, setting, glue, ("--decoder-attention", name))


def _layers(layers: int, glue: float | None = None) -> Row:
    name, setting = f"decoder_{layers}_layer{'s' * (layers > 1)}", f"{layers} layer, 768 dimension"
    return Row(name, DECODER_SIZE, setting, glue, decoder_depth=Fraction(layers, _LAYERS_OF_THE_PAPER))


# Decoders are named as in the paper's size, whose encoder has 12 layers of 768; other sizes keep the ratio. The paper's
# depths are 2, 4 (MAE-LM) and 6. The footnote in section 4.3 gives delta = 1 the number of "enc. w. [MASK] + dec."; the
# values between are in the drawing only. The paper does not say what its decoder gets where a token was replaced at
# random; its number stands beside the row that differs from MAE-LM in the encoder's input alone.
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("maelm", ORIGINAL, "MAE-LM", 86.1, delta=0.0),
        Row("mlm", NAIVE, "enc. w. [MASK] (i.e., MLM)", 85.2, ("--masked-input", "kept", "--decoder-layers", "0")),
        Row("mlm_decoder", NAIVE, "enc. w. [MASK] + dec.", 85.1, ("--masked-input", "kept")),
        Row("reset", HANDLING, "enc. w. [MASK], dec. resets [MASK]", 85.9, ("--masked-input", "reset")),
        Row("random_replace", HANDLING, "random replace w. real token", 85.1, ("--masked-input", "random")),
        Row(
            "random_replace_kept",
            HANDLING,
            "random replace w. real token, dec. keeps its state",
            None,
            ("--masked-input", "random_kept"),
        ),
        Row(
            "misaligned_positions",
            POSITIONS,
            "misaligned position encoding",
            86.0,
            ("--encoder-positions", "consecutive"),
        ),
        Row("no_relative_positions", POSITIONS, "no relative position encoding", 86.1, ("--relative-buckets", "none")),
        _attention("self_cross", "bi. self-attention + cross-attention", 85.4),
        _attention("causal_cross", "uni. self-attention + cross-attention", 85.5),
        _attention("cross", "cross-attention", 86.0),
        _layers(2, 85.8),
        _layers(6, 84.8),
        _layers(1),
        _layers(4),
        _layers(12),
        Row("decoder_512_wide", DECODER_SIZE, "4 layer, 512 dimension", 85.8, decoder_width=Fraction(2, 3)),
        Row("decoder_1024_wide", DECODER_SIZE, "4 layer, 1024 dimension", 85.5, decoder_width=Fraction(4, 3)),
        _transition(0.25),
        _transition(0.5),
        _transition(0.75),
        _transition(1.0, 85.1),
    )
}

# The same computation under two names at every size.
SAME = {"delta_1": "mlm_decoder"}


class ModelSize(NamedTuple):
    """What a decoder is scaled from: the encoder's numbers, and the decoder's layers without the row's options."""

    width: int
    feed_forward: int
    heads: int
    layers: int
    decoder_layers: int


def decoder_depth_options(fraction: Fraction | None, size: ModelSize) -> list[str]:
    """Scale a decoder's depth, to at least one layer; no option where the size has that many."""
    layers = size.decoder_layers if fraction is None else max(1, round(fraction * size.layers))
    return [] if layers == size.decoder_layers else ["--decoder-layers", str(layers)]


def decoder_width_options(fraction: Fraction, encoder: ModelSize) -> list[str]:
    """Scale a decoder.

    Heads are scaled first, at least one; the width is the multiple of 8 x heads that is nearest to the fraction of the
    encoder's, so that heads divide it; the feed-forward width keeps its ratio to the width. With 768 and 12 heads this
    is 512 with 8 and 1024 with 16.
    """
    if fraction == 1:
        return []
    heads = max(1, round(fraction * encoder.heads))
    unit = _HEAD_SIZE_MULTIPLE * heads
    width = unit * max(1, round(fraction * encoder.width / unit))
    feed_forward = round(Fraction(width * encoder.feed_forward, encoder.width))
    sizes = {"embed-dim": width, "ffn-embed-dim": feed_forward, "attention-heads": heads}
    return [word for name, number in sizes.items() for word in (f"--decoder-{name}", str(number))]


def row_options(row: Row, size: ModelSize) -> list[str]:
    """Everything that makes a row out of MAE-LM."""
    depth = decoder_depth_options(row.decoder_depth, size)
    return [*row.options, *depth, *decoder_width_options(row.decoder_width, size)]


def same_rows(size: ModelSize) -> dict[str, str]:
    """The rows that compute at this size what an earlier one does, and that one: a study of all rows trains it once."""
    first: dict[tuple[str, ...], str] = {}
    found = {name: first.setdefault(tuple(row_options(row, size)), name) for name, row in ROWS.items()}
    return {name: earlier for name, earlier in found.items() if earlier != name} | SAME


def chosen(names: Sequence[str]) -> list[Row]:
    """The rows of these names, in the order of the table."""
    return [row for name, row in ROWS.items() if name in set(names)]
