"""Examples of a prompted task as fairseq's data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.finetuning.prompting.scoring import prompt_input


class PromptDataset(FairseqDataset):
    """A split, in memory: few-shot sets are small.

    Args:
        examples: for each of them one sequence <int64>[n] for every number of masks; see ``Prompter.encode``.
        targets: <float32>[examples], classes or numbers.
        symbols: of the vocabulary.
        view: what the encoder sees at masks.
        seed: of the order; None to order by length, for validation.
    """

    def __init__(
        self,
        examples: Sequence[Sequence[np.ndarray]],
        targets: np.ndarray,
        symbols: Symbols,
        view: EncoderView,
        seed: int | None = None,
    ) -> None:
        self.examples = examples
        self.targets = targets
        self.symbols = symbols
        self.view = view
        self.seed = seed
        self.epoch = 1
        self.sizes = np.array([max(map(len, example)) for example in examples], dtype=np.int64)

    def set_epoch(self, epoch: int) -> None:
        """Take another order from now on; called by fairseq before an epoch's batches are made."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: every epoch has other batches, and a resumed run the same ones as an uninterrupted run."""
        return False

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> int:
        """The index itself: the collater reads a batch at once."""
        return int(index)

    def num_tokens(self, index: int) -> int:
        """What an example adds to ``--max-tokens``: the tokens of all its sequences."""
        return sum(map(len, self.examples[index]))

    def size(self, index: int) -> int:
        """Tokens of the longest sequence, which must not exceed ``--max-positions``."""
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """<int64>[examples], for training in a new random order each epoch."""
        if self.seed is None:
            return np.argsort(self.sizes, kind="stable")
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self))

    def collater(self, samples: Sequence[int]) -> dict[str, Any]:
        """Collate a batch.

        Args:
            samples: <int>[B] indices of the examples.

        Returns:
            fairseq's sample: ``id`` <int64>[B], ``nsentences`` B, ``ntokens``, ``target`` <float32>[B] and
            ``net_input`` as ``prompt_input`` gives it. Empty for no example, which is how fairseq gives ranks equally
            many batches.
        """
        if not len(samples):
            return {}
        indices = np.array(samples, dtype=np.int64)
        net_input = prompt_input([self.examples[index] for index in indices], self.symbols, self.view)
        return {
            "id": torch.from_numpy(indices),
            "nsentences": len(indices),
            "ntokens": int(net_input["layout"]["full_lengths"].sum()),
            "net_input": net_input,
            "target": torch.from_numpy(self.targets[indices]),
        }
