"""What precision, optimizer, compilation and recomputing cost and save: time of each stage of an update, and memory.

    python benchmarks/training_options.py --settings fp32,adam fp32 bf16 fp32,recompute --output options.json
    python benchmarks/training_options.py --device cuda --encoder-layers 12 --decoder-layers 4 --batch 64 \\
        --vocabulary 32768 --settings bf16,adam bf16 bf16,compile bf16,recompute bf16,compile,recompute

Each setting is a model with the same weights, updated in turn on the same batch of random tokens with 15 % of them
masked; medians over the repeats count, and the first setting is the one the others are compared with. "kept" is what a
forward pass keeps for the backward pass, "peak" the GPU's peak memory. The first update of a compiled model includes
compiling: the break-even is the number of updates that win it back.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from fairseq_maelm.data.encoder_view import Shown, encoder_input
from fairseq_maelm.models.maelm import MaelmModel, complete_config
from fairseq_maelm.modules.execution import execute
from fairseq_maelm.optim.fused_adamw import FusedAdamW, FusedAdamWConfig

STAGES = ("forward", "backward", "scale and clip", "update")
WORDS = ("fp32", "bf16", "adam", "compile", "recompute")
OF_ADAM = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-6, "weight_decay": 0.01, "lr": [1e-5]}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=["fp32,adam", "fp32", "bf16", "fp32,recompute"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arch", default="maelm_base", help="width, heads and buckets are this architecture's")
    parser.add_argument("--encoder-layers", type=int, default=2)
    parser.add_argument("--decoder-layers", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4, help="sequences")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="write the metrics here, as JSON")
    chosen = parser.parse_args()
    for setting in chosen.settings:
        if unknown := set(setting.split(",")) - set(WORDS):
            parser.error(
                f"a setting is made of {', '.join(WORDS)} with commas between, and not of {', '.join(unknown)}"
            )
    return chosen


def random_batch(options: argparse.Namespace) -> tuple[dict[str, Any], torch.Tensor]:
    """Full sequences of random tokens with 15 % masked, and the targets <int64>[M]."""
    generator = np.random.default_rng(1)
    shape = (options.batch, options.length)
    tokens = generator.integers(4, options.vocabulary - 1, shape)
    masked = generator.random(shape).argsort(axis=1) < round(0.15 * options.length)
    lengths = np.full(options.batch, options.length)
    net_input = encoder_input(Shown(tokens, ~masked, ~masked), masked, lengths, pad=1)
    layout = {key: to(value, options.device) for key, value in net_input["layout"].items()}
    return {**net_input, "src_tokens": net_input["src_tokens"].to(options.device), "layout": layout}, torch.from_numpy(
        tokens[masked]
    ).to(options.device)


def to(value: Any, device: str) -> Any:
    """Move a tensor to a device; anything else stays."""
    return value.to(device) if torch.is_tensor(value) else value


class Contender:
    """A model with its optimizer, as a setting says."""

    def __init__(self, setting: str, options: argparse.Namespace) -> None:
        words = setting.split(",")
        self.setting, self.device = setting, options.device
        config = SimpleNamespace(
            _name=options.arch,
            encoder_layers=options.encoder_layers,
            decoder_layers=options.decoder_layers,
            max_positions=max(512, options.length),
            precision="bf16" if "bf16" in words else "fp32",
        )
        complete_config(config)
        dictionary = Dictionary()
        for number in range(options.vocabulary - 5):
            dictionary.add_symbol(f"piece{number}")
        dictionary.add_symbol("<mask>")
        torch.manual_seed(1)
        self.model = MaelmModel(config, dictionary).to(options.device).train()
        execute(self.model, compiles="compile" in words, recomputes="recompute" in words)
        params = list(self.model.parameters())
        if "adam" in words:
            self.optimizer = FairseqAdam(FairseqAdamConfig(**OF_ADAM, use_old_adam=True, tpu=False), params)
        else:
            self.optimizer = FusedAdamW(FusedAdamWConfig(**OF_ADAM), params)
        self.seconds: list[dict[str, float]] = []
        self.peak: int | None = None

    def update(self, net_input: dict[str, Any], target: torch.Tensor) -> None:
        """Make one update as fairseq's trainer does, and note the time of its stages."""
        loss: torch.Tensor | None = None

        def forward() -> None:
            nonlocal loss
            loss = F.cross_entropy(self.model(**net_input)[0].float(), target, reduction="sum")

        def scale_and_clip() -> None:
            self.optimizer.multiply_grads(1.0 / target.numel())
            self.optimizer.clip_grad_norm(2.0)

        self.optimizer.zero_grad()
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        work: tuple[Callable[[], Any], ...] = (
            forward,
            lambda: self.optimizer.backward(loss),
            scale_and_clip,
            self.optimizer.step,
        )
        self.seconds.append({stage: self._time(call) for stage, call in zip(STAGES, work)})
        if self.device != "cpu":
            self.peak = max(self.peak or 0, torch.cuda.max_memory_allocated())

    def _time(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def kept(self, net_input: dict[str, Any]) -> int:
        """Bytes that a forward pass keeps for the backward pass, weights apart."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        storages: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = self.model(**net_input)
        del result
        return sum(storages.values())

    def metrics(self, net_input: dict[str, Any]) -> dict[str, Any]:
        """Medians without the first update, which warms up."""
        first, rest = self.seconds[0], self.seconds[1:]
        medians = {stage: statistics.median(each[stage] for each in rest) for stage in STAGES}
        total = statistics.median(sum(each.values()) for each in rest)
        return {
            "setting": self.setting,
            "seconds": medians,
            "seconds of an update": total,
            "seconds of the first update": sum(first.values()),
            "kept bytes": self.kept(net_input),
            "peak bytes": self.peak,
        }


def compare(metrics: list[dict[str, Any]], tokens: int) -> None:
    """Add what relates the settings to the first one."""
    base = metrics[0]
    for each in metrics:
        saved = base["seconds of an update"] - each["seconds of an update"]
        each["tokens a second"] = tokens / each["seconds of an update"]
        each["times as fast"] = base["seconds of an update"] / each["seconds of an update"]
        each["break-even updates"] = each["seconds of the first update"] / saved if saved > 0 else None


def processor() -> dict[str, Any]:
    """The machine, and whether it computes in bfloat16 itself: without these instructions bf16 is slower than fp32."""
    flags: set[str] = set()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    names = sorted(flags & {"avx512f", "avx512_bf16", "amx_bf16"})
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"machine": platform.machine(), "instructions": names, "gpu": gpu, "load": os.getloadavg()[0]}


def main() -> None:
    """Measure, print a table, and write the metrics."""
    options = arguments()
    torch.set_num_threads(options.threads)
    machine = processor()
    net_input, target = random_batch(options)
    contenders = [Contender(setting, options) for setting in options.settings]
    for _ in range(options.repeats + 1):
        for contender in contenders:
            contender.update(net_input, target)
    metrics = [contender.metrics(net_input) for contender in contenders]
    compare(metrics, options.batch * options.length)
    columns = "  ".join(f"{stage:>14}" for stage in STAGES)
    print(f"{'setting':<24}{columns}{'total s':>10}{'times':>7}{'kept MB':>10}{'peak MB':>10}")
    for each in metrics:
        stages = "  ".join(f"{each['seconds'][stage]:>14.4f}" for stage in STAGES)
        total, peak = each["seconds of an update"], (each["peak bytes"] or 0) / 1e6
        kept = each["kept bytes"] / 1e6
        print(f"{each['setting']:<24}{stages}{total:>10.4f}{each['times as fast']:>7.2f}{kept:>10.1f}{peak:>10.1f}")
    if options.output:
        settings = {key: value for key, value in vars(options).items() if key != "output"}
        record = {"machine": machine, "torch": torch.__version__, "options": settings, "metrics": metrics}
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
