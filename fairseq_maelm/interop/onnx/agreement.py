"""Comparison of ONNX files with the checkpoint, and of 8 bits with single precision."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.interop import agreement
from fairseq_maelm.interop.agreement import PAD, Agreement, agreements, checkpoint_outputs, comparison_batches, padded
from fairseq_maelm.interop.export.content import Content
from fairseq_maelm.interop.export.sentence_vectors import text_vector
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.onnx.graph import EMBEDDING, SCORES, STATES, EncoderGraph
from fairseq_maelm.interop.onnx.onnx_file import OnnxEncoder

_BATCH_SIZE = 8


class Loss(NamedTuple):
    """The loss of precision that 8-bit quantization causes on a sample of texts."""

    texts: int  # number of texts
    mean_cosine: float | None  # mean cosine of the vectors of a text in both precisions; None with a head
    lowest_cosine: float | None  # lowest of these cosines
    same_answers: float | None  # share of texts (or tokens) with the same best of several outputs of a head
    largest_difference: float  # of all outputs
    largest_value: float  # of all outputs in single precision

    def describe(self) -> str:
        """Return one line for the user."""
        parts = []
        if self.mean_cosine is not None:
            parts.append(
                f"cosine of sentence vectors {self.mean_cosine:.5f} on average, {self.lowest_cosine:.5f} at least"
            )
        if self.same_answers is not None:
            parts.append(f"{100 * self.same_answers:.2f} % of the best outputs are the same")
        parts.append(f"largest difference {self.largest_difference:.2e} of values up to {self.largest_value:.1f}")
        return f"8 bits against single precision on {self.texts} texts: {'; '.join(parts)}"


def agreements_with(source: Source, content: Content, graph: EncoderGraph, encoder: OnnxEncoder) -> list[Agreement]:
    """Compare all outputs of an ONNX file with the checkpoint's."""
    names = {STATES: agreement.STATES, EMBEDDING: "sentence vectors", SCORES: content.what}

    def expected(tokens: Tensor) -> dict[str, Tensor]:
        outputs = checkpoint_outputs(source.model, source.checkpoint.view, content.architecture, content.head, tokens)
        if EMBEDDING in graph.outputs:
            states = [row[each != PAD] for row, each in zip(outputs[agreement.STATES], tokens, strict=True)]
            vectors = [text_vector(each, graph.pooling, graph.normalized) for each in states]
            outputs[names[EMBEDDING]] = torch.stack(vectors)
        return {names[output]: outputs[names[output]] for output in graph.outputs}

    return agreements(
        expected,
        lambda tokens: {names[name]: output for name, output in run(encoder, tokens).items()},
        comparison_batches(source.model, masks=False),
        "the ONNX file computes something else than the checkpoint",
    )


def run(encoder: OnnxEncoder, tokens: Tensor) -> dict[str, Tensor]:
    """Return the outputs of an ONNX file for tokens <int64>[B, S] padded on the right."""
    outputs = encoder(tokens.numpy(), tokens.ne(PAD).long().numpy())
    return {name: torch.from_numpy(output) for name, output in outputs.items()}


def quantization_loss(single: OnnxEncoder, quantized: OnnxEncoder, sequences: Sequence[np.ndarray]) -> Loss:
    """Compare a file in single precision with one in 8 bits on sequences <int64>[n] with <s> and </s>."""
    output = single.outputs[-1]
    pairs: list[tuple[Tensor, Tensor]] = []
    for begin in range(0, len(sequences), _BATCH_SIZE):
        tokens = padded(sequences[begin : begin + _BATCH_SIZE])
        one, other = (agreement.inside(run(file, tokens)[output], tokens) for file in (single, quantized))
        pairs.append((one, other))
    one, other = (torch.cat(both) for both in zip(*pairs))
    vectors = [one, other]
    if output == STATES:
        lengths = [len(sequence) for sequence in sequences]
        vectors = [torch.stack([each.mean(dim=0) for each in states.split(lengths)]) for states in vectors]
    cosines = None if output == SCORES else torch.cosine_similarity(vectors[0], vectors[1])
    same = one.argmax(dim=-1) == other.argmax(dim=-1)
    return Loss(
        texts=len(sequences),
        mean_cosine=None if cosines is None else float(cosines.mean()),
        lowest_cosine=None if cosines is None else float(cosines.min()),
        same_answers=float(same.float().mean()) if output == SCORES and one.shape[-1] > 1 else None,
        largest_difference=float((one - other).abs().max()),
        largest_value=float(one.abs().max()),
    )
