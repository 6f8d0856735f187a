"""How fast batches are read, masked and collated on one core, against fairseq's stock masked_lm; and what is padding.

    python benchmarks/data_path.py --data data --output benchmarks/results/data_path.json

``--data`` is a folder of `maelm prepare corpus`. All contenders make batches of the same size of the same text, one
after the other in every repeat; the processor time of the process counts, because the work has one thread. A second
table tells, for every break mode, how much of the encoder's and of the decoder's slots holds padding.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from fairseq_maelm.data.blocks import BREAK_MODES
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig
from fairseq_maelm.text.dictionary import load_dictionary

BERT = {"leave_unmasked_prob": 0.1, "random_token_prob": 0.1}
MASKS_ONLY = {"leave_unmasked_prob": 0.0, "random_token_prob": 0.0}


def ours(folder: Path, split: str, **options: Any) -> FairseqDataset:
    """Return the dataset of this package's task."""
    defaults = {name: field.default for name, field in MaelmTaskConfig.__dataclass_fields__.items()}
    config = SimpleNamespace(**{**defaults, "data": str(folder), "seed": 1, **options})
    task = MaelmTask(config, load_dictionary(str(folder)))
    task.load_dataset(split)
    return task.datasets[split]


def stock(folder: Path, split: str, **options: Any) -> FairseqDataset:
    """Return the dataset of fairseq's task masked_lm, with which RoBERTa is trained."""
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(folder), seed=1, **options))
    task.load_dataset(split)
    return task.datasets[split]


def batches_of(dataset: FairseqDataset, max_tokens: int) -> list[np.ndarray]:
    """Return the batches of the first epoch in random order, as fairseq-train takes them."""
    dataset.set_epoch(1)
    batches = list(dataset.batch_by_size(dataset.ordered_indices(), max_tokens, required_batch_size_multiple=8))
    return [batches[number] for number in np.random.default_rng(0).permutation(len(batches))]


def fetch(dataset: FairseqDataset, batch: np.ndarray) -> dict[str, Any]:
    """Set up a process like a worker of torch's data loader."""
    together = getattr(dataset, "__getitems__", None)
    return dataset.collater(together(batch) if together else [dataset[index] for index in batch])


def seconds_per_token(dataset: FairseqDataset, batches: list[np.ndarray]) -> float:
    """Processor time for each original token."""
    start, tokens = time.process_time(), 0
    for batch in batches:
        tokens += int(fetch(dataset, batch)["ntokens"])
    return (time.process_time() - start) / tokens


def measure_speed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each contender and break mode."""
    contenders: dict[str, tuple[Callable[..., FairseqDataset], dict[str, Any]]] = {
        "fairseq masked_lm, 80/10/10": (stock, BERT),
        "fairseq masked_lm, masks only": (stock, MASKS_ONLY),
        "MLM, 80/10/10": (ours, {"masked_input": "kept", **BERT}),
        "MAE-LM": (ours, MASKS_ONLY),
    }
    rows = []
    for mode in ("none", "complete_doc"):
        options = {"sample_break_mode": mode, "tokens_per_sample": arguments.tokens_per_sample, "mask_prob": 0.15}
        prepared = {}
        for name, (make, masking) in contenders.items():
            dataset = make(arguments.data, arguments.split, **options, **masking)
            prepared[name] = dataset, batches_of(dataset, arguments.max_tokens)[: arguments.batches]
        for dataset, batches in prepared.values():
            seconds_per_token(dataset, batches)  # brings files and caches into memory
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(arguments.repeats):
            for name, (dataset, batches) in prepared.items():
                times[name].append(seconds_per_token(dataset, batches))
        baseline = statistics.median(times["fairseq masked_lm, 80/10/10"])
        for name, seconds in times.items():
            median = statistics.median(seconds)
            rows.append(
                {
                    "break_mode": mode,
                    "contender": name,
                    "million_tokens_per_second_and_core": round(1e-6 / median, 2),
                    "best_repeat": round(1e-6 / min(seconds), 2),
                    "microseconds_per_sequence": round(1e6 * median * arguments.tokens_per_sample, 1),
                    "times_faster": round(baseline / median, 1),
                }
            )
    return rows


def padding_of(dataset: FairseqDataset, batches: list[np.ndarray]) -> dict[str, float]:
    """Percentages of the slots of encoder and decoder, and of both, that hold padding."""
    slots, tokens = np.zeros(2), np.zeros(2)
    for batch in batches:
        sample = fetch(dataset, batch)
        layout, source = sample["net_input"]["layout"], sample["net_input"]["src_tokens"]
        slots += source.numel(), len(source) * layout["padded_length"]
        tokens += layout["visible_tokens"], sample["ntokens"]
    encoder, decoder = 100 * (1 - tokens / slots)
    both = 100 * (1 - tokens.sum() / slots.sum())
    return {"encoder": round(encoder, 2), "decoder": round(decoder, 2), "both": round(both, 2)}


def measure_padding(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each break mode, length and masking rate."""
    rows = []
    for mode in BREAK_MODES:
        for length in (512, 128):
            for rate in (0.15, 0.4):
                options = {"sample_break_mode": mode, "tokens_per_sample": length, "mask_prob": rate}
                dataset = ours(arguments.data, arguments.split, **options)
                batches = batches_of(dataset, arguments.max_tokens)[: arguments.padding_batches]
                rows.append({"break_mode": mode, "length": length, "mask_prob": rate, **padding_of(dataset, batches)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table in Markdown."""
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    print(flush=True)


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="a folder of `maelm prepare corpus`")
    parser.add_argument("--output", required=True, type=Path, help="the result, as JSON")
    parser.add_argument("--split", default="train", help="which split (train)")
    parser.add_argument("--tokens-per-sample", type=int, default=512, help="longest sequence (512)")
    parser.add_argument("--max-tokens", type=int, default=32768, help="of a batch (32,768)")
    parser.add_argument("--batches", type=int, default=20, help="of a repeat (20)")
    parser.add_argument("--repeats", type=int, default=7, help="of each contender (7)")
    parser.add_argument("--padding-batches", type=int, default=400, help="batches whose padding is counted (400)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    speed = measure_speed(arguments)
    show(speed)
    padding = measure_padding(arguments)
    show(padding)
    result = {
        "speed": speed,
        "padding_percent": padding,
        "tokens_per_sample": arguments.tokens_per_sample,
        "max_tokens": arguments.max_tokens,
        "load_before_and_after": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {package: version(package) for package in ("numpy", "torch", "fairseq-fixed")},
        "date": time.strftime("%Y-%m-%d"),
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
