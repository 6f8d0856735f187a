"""How far ONNX files agree with the checkpoint, and 8 bits with single precision."""

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.interop.export.configuration import Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.export.verification import Agreement, compare, verification_batches
from fairseq_maelm.interop.onnx.graph import EMBEDDING, SCORES, STATES, EncoderGraph
from fairseq_maelm.interop.onnx.onnx_file import OnnxEncoder

# Texts of a batch while two files are compared; the result does not depend on it.
_BATCH = 8


class Loss(NamedTuple):
    """What 8 bits change on a sample of texts.

    Attributes:
        texts: number of texts.
        mean_cosine: of each text's vector in 8 bits and in single precision, the mean over texts; None behind a head.
        lowest_cosine: the lowest of them, or None.
        same_answers: behind a head, the share of texts (of tokens, for a head on tokens) with the same best output, or
            None for one output or no head.
        largest_difference: of all numbers that the file gives.
        largest_value: of these numbers in single precision.
    """

    texts: int
    mean_cosine: Optional[float]
    lowest_cosine: Optional[float]
    same_answers: Optional[float]
    largest_difference: float
    largest_value: float

    def describe(self) -> str:
        """One line for people."""
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
    """Compare all outputs of an ONNX file with the checkpoint, alone and padded.

    Raises:
        ValueError: if an output differs by more than rounding.
    """
    found = []
    for name in graph.outputs:
        what = {STATES: "hidden states", EMBEDDING: "sentence vectors"}.get(name, f"{content.architecture} scores")

        def expected(sequences: list[np.ndarray], name: str = name) -> list[Tensor]:
            return _of_checkpoint(source, content, graph, name, sequences)

        def actual(sequences: list[np.ndarray], name: str = name) -> list[Tensor]:
            return run(encoder, sequences, source.dictionary.pad(), name)

        found.append(compare(what, expected, actual, verification_batches(source, content)))
    wrong = [f"{each.what} differ by {each.difference:.2g} (of {each.size:.2g})" for each in found if not each.holds]
    if wrong:
        raise ValueError(f"the ONNX file computes something else than the checkpoint: {'; '.join(wrong)}")
    return found


def _of_checkpoint(
    source: Source, content: Content, graph: EncoderGraph, output: str, sequences: list[np.ndarray]
) -> list[Tensor]:
    pad = source.dictionary.pad()
    tokens = torch.from_numpy(_pad(sequences, pad))
    if output == SCORES:
        scores, _ = source.model(tokens, classification_head_name=content.head)
        return list(scores) if scores.dim() == 2 else _cut(scores, sequences)
    states = _cut(source.model.extract_features(tokens)[0], sequences)
    if output == STATES:
        return states
    vectors = [row[0] if graph.pooling == "first" else row.mean(dim=0) for row in states]
    return [vector / vector.norm() for vector in vectors] if graph.normalized else vectors


def run(encoder: OnnxEncoder, sequences: Sequence[np.ndarray], pad: int, output: str) -> list[Tensor]:
    """One output of an ONNX file for sequences <int64>[n] as one batch, what belongs to padding left out."""
    tokens = _pad(list(sequences), pad)
    result = torch.from_numpy(encoder(tokens, (tokens != pad).astype(np.int64))[output])
    return list(result) if result.dim() == 2 else _cut(result, sequences)


def quantization_loss(single: OnnxEncoder, quantized: OnnxEncoder, sequences: Sequence[np.ndarray], pad: int) -> Loss:
    """Compare two files on texts.

    Args:
        single: in single precision.
        quantized: in 8 bits.
        sequences: <int64>[n] each, with <s> and </s>.
        pad: the padding symbol.
    """
    output = single.outputs[-1]
    difference, size = 0.0, 0.0
    cosines: list[float] = []
    answers: list[Tensor] = []
    for begin in range(0, len(sequences), _BATCH):
        batch = sequences[begin : begin + _BATCH]
        for one, other in zip(run(single, batch, pad, output), run(quantized, batch, pad, output), strict=True):
            difference = max(difference, float((one - other).abs().max()))
            size = max(size, float(one.abs().max()))
            if output == SCORES:
                answers.append((one.argmax(dim=-1) == other.argmax(dim=-1)).float().reshape(-1))
            else:
                vectors = [each.mean(dim=0) if output == STATES else each for each in (one, other)]
                cosines.append(float(torch.cosine_similarity(vectors[0], vectors[1], dim=0)))
    several = output == SCORES and one.shape[-1] > 1
    return Loss(
        texts=len(sequences),
        mean_cosine=float(np.mean(cosines)) if cosines else None,
        lowest_cosine=min(cosines) if cosines else None,
        same_answers=float(torch.cat(answers).mean()) if several else None,
        largest_difference=difference,
        largest_value=size,
    )


def _pad(sequences: list[np.ndarray], pad: int) -> np.ndarray:
    return pad_rows(sequences, np.array([len(sequence) for sequence in sequences]), pad)


def _cut(rows: Tensor, sequences: Sequence[np.ndarray]) -> list[Tensor]:
    return [row[: len(sequence)] for row, sequence in zip(rows, sequences, strict=True)]
