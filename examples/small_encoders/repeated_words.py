#!/usr/bin/env python3
"""Measure whether an encoder looks for a masked word elsewhere in the text: what comparing two texts begins with.

    python examples/small_encoders/repeated_words.py DATA CHECKPOINT [CHECKPOINT ...]

Takes places of the validation text whose token stands in the same stretch again, some tokens away, masks it there
alone, and predicts it twice: as the text is, and with the other occurrences replaced by other tokens. The difference of
the two losses is what a repetition is worth, in bits. An encoder that has not learned to match tokens gains none.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fairseq.data import data_utils
from tqdm import tqdm

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.models.hub import load_model
from fairseq_maelm.models.masked_tokens import masked_token_logits


class Case(NamedTuple):
    """A place to predict.

    Attributes:
        tokens: <int64>[L] of the stretch.
        place: of the token to predict.
        others: <int64>[n] where it stands as well, n >= 1.
    """

    tokens: np.ndarray
    place: int
    others: np.ndarray


def find_cases(stretches: np.ndarray, rare_from: int, distance: int, generator: np.random.Generator) -> list[Case]:
    """One place for each rare token that a stretch holds twice or more, if the others are far enough away.

    Args:
        stretches: <int64>[N, L] tokens.
        rare_from: tokens below are frequent; they are left out.
        distance: the least between the place and each other occurrence, in tokens.
        generator: chooses the place among the occurrences.
    """
    cases = []
    for tokens in stretches:
        kinds, counts = np.unique(tokens, return_counts=True)
        for kind in kinds[(counts > 1) & (kinds >= rare_from)]:
            places = np.flatnonzero(tokens == kind)
            place = int(generator.choice(places))
            others = places[places != place]
            if np.abs(others - place).min() >= distance:
                cases.append(Case(tokens, place, others))
    return cases


def inputs(case: Case, mask: int, replacements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stretch with the place masked: as it is, and with the other occurrences replaced."""
    repeated = case.tokens.copy()
    repeated[case.place] = mask
    replaced = repeated.copy()
    replaced[case.others] = replacements
    return repeated, replaced


def losses(checkpoint: Path, data: Path, cases: list[Case], rare_from: int, batch_size: int) -> np.ndarray:
    """Losses in bits, <float>[cases, 2]: with the repetition, and without it."""
    _, task, model = load_model(str(checkpoint), str(data.resolve()))
    generator = np.random.default_rng(0)
    measured = []
    for start in tqdm(range(0, len(cases), batch_size), desc=str(checkpoint), unit=" batches", mininterval=1):
        part = cases[start : start + batch_size]
        targets = torch.tensor([int(case.tokens[case.place]) for case in part])[:, None]
        pairs = []
        for case in part:
            drawn = generator.integers(rare_from, len(task.source_dictionary) - 1, len(case.others))
            pairs.append(inputs(case, model.mask_index, drawn))
        both = []
        for texts in zip(*pairs):
            logits = masked_token_logits(model, task.encoder_view, list(texts))
            both.append(-logits.log_softmax(dim=-1).gather(1, targets)[:, 0] / np.log(2))
        measured.append(torch.stack(both, dim=1))
    return torch.cat(measured).numpy()


def stretches_of(data: Path, length: int, bos: int, eos: int) -> np.ndarray:
    """The validation text in stretches <int64>[N, length], each between <s> and </s>."""
    lines = data_utils.load_indexed_dataset(str(data / "valid"), None, "mmap")
    text = np.concatenate([lines[number].numpy() for number in range(len(lines))]).astype(np.int64)
    inside = length - 2
    rows = text[: len(text) // inside * inside].reshape(-1, inside)
    return np.pad(np.pad(rows, ((0, 0), (1, 0)), constant_values=bos), ((0, 0), (0, 1)), constant_values=eos)


def main() -> None:
    """Read the command line, and print a line for each checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that the checkpoints were pretrained on")
    parser.add_argument("checkpoints", type=Path, nargs="+", help="of pretraining")
    parser.add_argument("--length", type=int, default=128, help="tokens of a stretch (128)")
    parser.add_argument("--rare-from", type=int, default=300, help="leave the most frequent tokens out (300)")
    parser.add_argument("--distance", type=int, default=6, help="the least between two occurrences (6)")
    parser.add_argument("--cases", type=int, default=2000, help="the most (2,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    # <s> and </s> stand at these places in every dictionary of fairseq.
    stretches = stretches_of(args.data, args.length, bos=0, eos=2)
    cases = find_cases(stretches, args.rare_from, args.distance, np.random.default_rng(0))[: args.cases]
    if not cases:
        raise SystemExit(f"no rare token stands twice in any stretch of {args.length} tokens of {args.data}/valid")
    for checkpoint in args.checkpoints:
        repeated, replaced = losses(checkpoint, args.data, cases, args.rare_from, args.batch_size).mean(axis=0)
        means = f"{repeated:.3f} bits, {replaced:.3f} without the repetition: {replaced - repeated:+.3f} bits each"
        print(f"{checkpoint}: {means}, {len(cases):,} cases")


if __name__ == "__main__":
    main()
