"""Writing an ONNX file, quantizing it, and running it."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_maelm.interop.onnx.graph import INPUTS, EncoderGraph

logger = logging.getLogger(__name__)

MODEL_FILE, QUANTIZED_FILE = "model.onnx", "model_int8.onnx"

# What is stored in 8 bits: weights of matrix products, which are also multiplied in 8 bits, and the token embeddings.
_QUANTIZED = ["MatMul", "Gemm", "Gather"]
_OPSET = 18


def require_onnx() -> Any:
    """Return the package onnxruntime.

    Raises:
        ValueError: something that the export needs is not installed; says how to install it.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "the format onnx needs onnx, onnxscript and onnxruntime: pip install 'fairseq_maelm[onnx]'"
        ) from error
    return onnxruntime


def write_onnx(graph: EncoderGraph, path: Path) -> None:
    """Write a graph on the CPU for any batch size and length, weights inside the file."""
    graph = graph.eval()
    # Lengths that differ from all sizes of the model, so that none of those is taken for one.
    tokens = torch.full((2, 11), 4)
    mask = torch.ones_like(tokens)
    mask[1, 9:] = 0
    # The largest batch is a bound for torch 2.6, which finds an unbounded size violated; the file holds neither bound.
    batch = torch.export.Dim("batch", max=2**20)
    length = torch.export.Dim("length", max=graph.max_positions)
    with warnings.catch_warnings(), _quiet("onnx_ir", "onnxscript", "torch.onnx"):
        # About the exporter's own insides; the result is compared afterwards.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (tokens, mask),
            str(path),
            input_names=list(INPUTS),
            output_names=list(graph.outputs),
            dynamic_shapes={name: {0: batch, 1: length} for name in INPUTS},
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def quantize(source: Path, target: Path) -> None:
    """Write a copy whose weights are in 8 bits; activations are put into 8 bits while it runs."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source))
    # The exporter leaves shapes of weights that it has transposed since; they are inferred again.
    del model.graph.value_info[:]
    with _quiet(""):
        # It asks on the root logger for a preparation that changes nothing here.
        quantize_dynamic(
            model,
            target,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=_QUANTIZED,
            extra_options={"MatMulConstBOnly": True},
        )


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep libraries from telling about every step; their errors are exceptions."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


class OnnxEncoder:
    """An ONNX file on the CPU.

    Args:
        path: of the file.
        threads: of one computation; 0 means all cores.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        onnxruntime = require_onnx()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = tuple(output.name for output in self._session.get_outputs())

    def __call__(self, tokens: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Encode tokens <int64>[B, S] under a mask <int64>[B, S] of 1 and 0; returns the outputs by name."""
        results = self._session.run(None, dict(zip(INPUTS, (tokens, mask), strict=True)))
        return dict(zip(self.outputs, results, strict=True))
