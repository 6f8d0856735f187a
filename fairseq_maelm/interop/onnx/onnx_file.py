"""Writing, quantizing and running ONNX files."""

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

# The operations with weights in 8 bits: matrix products, which are also computed in 8 bits, and the token embeddings.
_QUANTIZED = ["MatMul", "Gemm", "Gather"]
_OPSET = 18


def require_onnx() -> Any:
    """Return the package onnxruntime; raise ValueError if a package that the export needs is not installed."""
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
    """Write a graph for any batch size and length, with the weights inside the file."""
    graph = graph.eval()
    # 2 and 11 must not equal a size of the model, which the exporter could take for a dynamic dimension.
    tokens = torch.full((2, 11), 4)
    mask = torch.ones_like(tokens)
    mask[1, 9:] = 0
    # torch 2.6 needs a bound of the batch size. The file contains neither bound.
    batch = torch.export.Dim("batch", max=2**20)
    length = torch.export.Dim("length", max=graph.max_positions)
    with warnings.catch_warnings(), _quiet("onnx_ir", "onnxscript", "torch.onnx"):
        # Warnings about the exporter's internals; the result is verified later.
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
    """Write a copy with weights in 8 bits; activations are converted to 8 bits at run time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source))
    # The exporter leaves outdated shapes of transposed weights; without them, shapes are inferred again.
    del model.graph.value_info[:]
    with _quiet(""):
        # It recommends, by the root logger, a preprocessing that changes nothing here.
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
    """Silence the progress messages of libraries, which report errors as exceptions."""
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
    """An ONNX model that runs on the CPU with the given number of threads (0: all cores)."""

    def __init__(self, path: Path, threads: int = 0) -> None:
        onnxruntime = require_onnx()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = tuple(output.name for output in self._session.get_outputs())

    def __call__(self, tokens: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs by name for tokens <int64>[B, S] with a mask <int64>[B, S] of 1 and 0."""
        results = self._session.run(None, dict(zip(INPUTS, (tokens, mask), strict=True)))
        return dict(zip(self.outputs, results, strict=True))
