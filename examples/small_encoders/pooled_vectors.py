#!/usr/bin/env python3
"""Measure how well the mean of an encoder's states tells texts apart, layer by layer: what search begins with.

    python examples/small_encoders/pooled_vectors.py DATA CHECKPOINT [CHECKPOINT ...]

Cuts stretches of the validation text in two and looks for the long part of each by its short one, among the long parts
of all: cosine of the means of the states, without any fine-tuning. Random weights of the first checkpoint's size are
measured beside the checkpoints; they hardly change what stands at a token, so that their means are bags of words.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import utils
from repeated_words import stretches_of
from torch import Tensor
from tqdm import tqdm

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.analysis.spectrum import effective_rank
from fairseq_maelm.models.hub import load_model


class Measured(NamedTuple):
    """A layer.

    Attributes:
        reciprocal_rank: mean over the short parts of 1 / rank of their own long part, in (0, 1].
        directions: how many hold nine tenths of the long parts' variance.
        cosine: mean of the cosines between different long parts; near 1 all texts look alike.
    """

    reciprocal_rank: float
    directions: int
    cosine: float


def parts_of(stretches: np.ndarray, short: int) -> tuple[Tensor, Tensor]:
    """Cut stretches in two, each part between <s> and </s> again.

    Args:
        stretches: <int64>[N, L], with <s> and </s> around L - 2 tokens.
        short: tokens of the first part.

    Returns:
        <int64>[N, short + 2] and <int64>[N, L - short].
    """
    begin, inside, end = stretches[:, :1], stretches[:, 1:-1], stretches[:, -1:]
    first, second = inside[:, :short], inside[:, short:]
    return tuple(torch.from_numpy(np.concatenate([begin, part, end], axis=1)) for part in (first, second))


def means(model: Any, tokens: Tensor, batch_size: int, title: str) -> Tensor:
    """<float32>[layers + 1, N, D]: means of the states, the embeddings first; tokens <int64>[N, S] have no padding."""
    found = []
    with torch.inference_mode():
        for batch in tqdm(tokens.split(batch_size), desc=title, unit=" batches", mininterval=1):
            _, extra = model.extract_features(batch, True)
            found.append(torch.stack([states.float().mean(dim=1) for states in extra["inner_states"]]))
    return torch.cat(found, dim=1)


def measure(short: Tensor, long: Tensor) -> Measured:
    """Compare the vectors <float>[N, D] of the short parts with those of the long ones, N >= 2."""
    unit = torch.nn.functional.normalize(long.double(), dim=1)
    scores = torch.nn.functional.normalize(short.double(), dim=1) @ unit.T
    ranks = (scores > scores.diagonal()[:, None]).sum(dim=1) + 1
    number, total = len(unit), unit.sum(dim=0)
    spread = torch.linalg.svdvals(long.double() - long.double().mean(dim=0))
    cosine = (total @ total - number) / (number * (number - 1))
    return Measured(float((1 / ranks).mean()), effective_rank(spread, 0.9), float(cosine))


def random_weights(config: Any, task: Any, seed: int) -> Any:
    """A model of this configuration as it is before pretraining."""
    utils.set_torch_seed(seed)
    return task.build_model(config.model, from_checkpoint=True)


def main() -> None:
    """Read the command line, and print a line for each layer of each encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that the checkpoints were pretrained on")
    parser.add_argument("checkpoints", type=Path, nargs="+", help="of pretraining")
    parser.add_argument("--length", type=int, default=128, help="tokens of a stretch (128)")
    parser.add_argument("--short", type=int, default=30, help="tokens of its short part (30)")
    parser.add_argument("--texts", type=int, default=1000, help="the most (1,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    if not 0 < args.short < args.length - 3:
        parser.error("--short must leave something of --length")
    # fairseq, once imported, lets every library's debugging messages through.
    logging.getLogger().setLevel(logging.WARNING)
    # <s> and </s> stand at these places in every dictionary of fairseq.
    stretches = stretches_of(args.data, args.length, bos=0, eos=2)[: args.texts]
    if len(stretches) < 2:
        raise SystemExit(f"{args.data}/valid has less than two stretches of {args.length} tokens")
    short, long = parts_of(stretches, args.short)
    encoders = []
    for checkpoint in args.checkpoints:
        config, task, model = load_model(str(checkpoint), str(args.data.resolve()))
        if not encoders:
            encoders.append(("random weights", random_weights(config, task, seed=1)))
        encoders.append((str(checkpoint), model))
    for name, model in encoders:
        vectors = [means(model.eval(), part, args.batch_size, name) for part in (short, long)]
        for layer, pair in enumerate(zip(*vectors)):
            found = measure(*pair)
            print(
                f"{name}, {f'layer {layer}' if layer else 'embeddings'}: reciprocal rank {found.reciprocal_rank:.3f}, "
                f"{found.directions} directions, mean cosine {found.cosine:.2f}"
            )


if __name__ == "__main__":
    main()
