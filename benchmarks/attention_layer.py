"""What a layer costs on a CPU beyond its matrix products: this package's, torch's operations alone, fairseq's stock.

    python benchmarks/attention_layer.py --output benchmarks/results/attention_layer.json

One forward and backward pass of post-norm layers with a learned relative bias (fairseq's has none), in turn with the
bare matrix products of the same passes. The processor time of the process counts, so that other processes disturb
little; medians of the repeats, and medians of the ratios within each repeat. Memory is what autograd keeps per layer
between the passes.
"""

import argparse
import json
import os
import platform
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import TransformerEncoderLayer
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias, spread
from fairseq_maelm.modules.attention.layers import LayerConfig
from fairseq_maelm.modules.transformer import TransformerLayer

BARE = "matrix products alone"


class TorchLayer(nn.Module):
    """The same layer by torch's public operations, with a dense bias <float>[B, H, S, S] that wants a gradient."""

    def __init__(self, shape: LayerConfig) -> None:
        super().__init__()
        self.shape = shape
        self.like = TransformerLayer(shape)

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D]."""
        batch, length, width = states.shape
        like, dropout = self.like, self.shape.dropout
        heads = self.shape.attention_heads
        qkv = like.self_attn.qkv_proj(states).view(batch, length, 3, heads, width // heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        bias = bias.to(query.dtype)
        attended = F.scaled_dot_product_attention(query, key, value, bias, self.shape.attention_dropout)
        attended = like.self_attn.out_proj(attended.transpose(1, 2).flatten(2))
        states = like.self_attn_layer_norm(states + F.dropout(attended, dropout))
        transformed = like.fc2(F.gelu(like.fc1(states)))
        return like.final_layer_norm(states + F.dropout(transformed, dropout))


class FairseqLayer(nn.Module):
    """fairseq's stock encoder layer, in its own layout and without relative bias."""

    def __init__(self, shape: LayerConfig) -> None:
        super().__init__()
        self.layer = TransformerEncoderLayer(
            Namespace(
                encoder_embed_dim=shape.embed_dim,
                encoder_attention_heads=shape.attention_heads,
                encoder_ffn_embed_dim=shape.ffn_embed_dim,
                dropout=shape.dropout,
                attention_dropout=shape.attention_dropout,
                activation_dropout=0.0,
                activation_fn="gelu",
                encoder_normalize_before=False,
            )
        )

    def forward(self, states: Tensor) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D]."""
        return self.layer(states.transpose(0, 1), None).transpose(0, 1)


class Case:
    """The input of one measurement: visible tokens as after masking 15 % of 512, or as many as asked for."""

    def __init__(self, options: argparse.Namespace, dropout: float, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        batch, length, width = options.batch, options.length, options.width
        self.shape = LayerConfig(
            embed_dim=width,
            ffn_embed_dim=4 * width,
            attention_heads=width // 64,
            dropout=dropout,
            attention_dropout=dropout,
        )
        self.layers, self.dtype = options.layers, dtype
        self.states = torch.randn(batch, length, width, generator=generator)
        self.gradient = torch.randn(batch, length, width, generator=generator)
        self.span = max(512, length)
        drawn = [torch.randperm(self.span, generator=generator)[:length].sort().values for _ in range(batch)]
        self.positions = torch.stack(drawn)
        self.table = torch.randn(self.shape.attention_heads, 2 * self.span - 1, generator=generator)

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast where the case is not in single precision."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast("cpu", self.dtype)

    def run(self, layers: nn.ModuleList, make_bias: Callable[[Tensor], tuple[Any, ...]]) -> None:
        """Run one forward and backward pass."""
        layers.zero_grad(set_to_none=True)
        states, table = self.states.clone().requires_grad_(), self.table.clone().requires_grad_()
        with self.precision():
            bias = make_bias(table)
            for layer in layers:
                states = layer(states, *bias)
        states.backward(self.gradient.to(states.dtype))


def bare_products(case: Case) -> Callable[[], None]:
    """Run only the matrix products of a forward and a backward pass."""
    batch, length, width = case.states.shape
    heads, rows = case.shape.attention_heads, batch * length
    inner = case.shape.ffn_embed_dim
    sizes = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
    linear = [tuple(torch.randn(*size).to(case.dtype) for size in ((rows, i), (rows, o), (i, o))) for i, o in sizes]
    head = torch.randn(batch * heads, length, width // heads).to(case.dtype)
    logits = torch.randn(batch * heads, length, length).to(case.dtype)

    def products() -> None:
        for _ in range(case.layers):
            for states, gradient, weight in linear:
                _ = states @ weight, gradient @ weight.t(), states.t() @ gradient
            for _ in range(2):
                torch.bmm(head, head.transpose(1, 2))
                torch.bmm(logits, head)
            for _ in range(2):
                torch.bmm(logits.transpose(1, 2), head)

    return products


def contenders(case: Case) -> Iterator[tuple[str, nn.ModuleList, Callable[[Tensor], tuple[Any, ...]]]]:
    """Name, layers and how the bias is made for them."""
    index = case.positions[:, None, :] - case.positions[:, :, None] + case.span - 1
    kinds: list[tuple[str, type[nn.Module], Callable[[Tensor], tuple[Any, ...]]]] = [
        ("fairseq's layer, no relative bias", FairseqLayer, lambda table: ()),
        ("torch's operations", TorchLayer, lambda table: (spread(table, index),)),
        ("fairseq_maelm", TransformerLayer, lambda table: (AttentionBias(table, case.positions),)),
    ]
    for name, kind, make_bias in kinds:
        yield name, nn.ModuleList(kind(case.shape) for _ in range(case.layers)), make_bias


def kept_bytes(run: Callable[[], None]) -> int:
    """Bytes that autograd keeps for the backward pass, each memory block counted once, parameters included."""
    storages: dict[int, int] = {}

    def see(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        run()
    return sum(storages.values())


def measure(case: Case, repeats: int) -> dict[str, dict[str, float]]:
    """Median processor time, ratio to the bare products, and memory of every contender."""
    runs: dict[str, Callable[[], None]] = {BARE: bare_products(case)}
    for name, layers, make_bias in contenders(case):
        runs[name] = lambda layers=layers, make_bias=make_bias: case.run(layers, make_bias)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            # The first round warms up.
            if repeat:
                seconds[name].append(time.process_time() - start)
    return {
        name: {
            "processor_seconds": statistics.median(times),
            "ratio": statistics.median(each / bare for each, bare in zip(times, seconds[BARE])),
            "fastest_seconds": min(times),
            "kept_megabytes_per_layer": kept_bytes(runs[name]) / 1e6 / case.layers,
        }
        for name, times in seconds.items()
    }


def main() -> None:
    """Measures all cases, prints a table and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=435, help="tokens of each sequence that the encoder sees")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for dtype in options.dtypes:
        for dropout in options.dropouts:
            case = Case(options, dropout, getattr(torch, dtype))
            results[f"{dtype}, dropout {dropout}"] = measure(case, options.repeats)
    print(f"{'':22}{'contender':36}{'seconds':>9}{'ratio':>7}{'fastest':>9}{'MB/layer':>10}")
    for title, rows in results.items():
        for name, row in rows.items():
            print(
                f"{title:22}{name:36}{row['processor_seconds']:9.3f}{row['ratio']:7.2f}{row['fastest_seconds']:9.3f}"
                f"{row['kept_megabytes_per_layer']:10.1f}"
            )
    if options.output:
        settings = {key: value for key, value in vars(options).items() if key != "output"}
        machine = {
            "processor": platform.processor() or platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "torch": torch.__version__,
        }
        document = {"settings": settings, "machine": machine, "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
