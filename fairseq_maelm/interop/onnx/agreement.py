"""How far ONNX files agree with the checkpoint, and 8 bits with single precision."""

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.interop.agreement import PAD, Agreement, agreements, comparison_batches, inside, padded
from fairseq_maelm.interop.export.configuration import Content
from fairseq_maelm.interop.export.sentence_vectors import text_vector
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.export.verification import checkpoint_output
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
    names = {STATES: "hidden states", EMBEDDING: "sentence vectors", SCORES: content.what}
    return agreements(
        lambda sequences: {
            names[name]: _of_checkpoint(source, content, graph, name, sequences) for name in graph.outputs
        },
        lambda sequences: {names[name]: output for name, output in run(encoder, sequences).items()},
        comparison_batches(source.model, masks=False),
        "the ONNX file computes something else than the checkpoint",
    )


def _of_checkpoint(
    source: Source, content: Content, graph: EncoderGraph, output: str, sequences: list[np.ndarray]
) -> Tensor:
    if output != EMBEDDING:
        return checkpoint_output(source, content, sequences)
    states = [source.model.extract_features(torch.from_numpy(sequence)[None])[0][0] for sequence in sequences]
    return torch.stack([text_vector(each, graph.pooling, graph.normalized) for each in states])


def run(encoder: OnnxEncoder, sequences: Sequence[np.ndarray]) -> dict[str, Tensor]:
    """The outputs of an ONNX file for sequences <int64>[n] as one batch, what belongs to padding left out."""
    tokens = padded(sequences)
    results = encoder(tokens.numpy(), tokens.ne(PAD).long().numpy())
    return {name: inside(torch.from_numpy(result), tokens) for name, result in results.items()}


def quantization_loss(single: OnnxEncoder, quantized: OnnxEncoder, sequences: Sequence[np.ndarray]) -> Loss:
    """Compare two files on texts.

    Args:
        single: in single precision.
        quantized: in 8 bits.
        sequences: <int64>[n] each, with <s> and </s>.
    """
    output = single.outputs[-1]
    pairs: list[tuple[Tensor, Tensor]] = []
    for begin in range(0, len(sequences), _BATCH):
        batch = sequences[begin : begin + _BATCH]
        pairs.append((run(single, batch)[output], run(quantized, batch)[output]))
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
