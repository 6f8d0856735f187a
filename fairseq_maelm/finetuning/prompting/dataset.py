"""Examples of a prompted task as fairseq's data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.finetuning.prompting.scoring import prompt_input


class PromptDataset(BatchDataset):
    """A split, in memory: few-shot sets are small. An example adds the tokens of all its sequences to ``--max-tokens``.

    Args:
        examples: for each of them one sequence <int64>[n] for every number of masks; see ``Prompter.encode``.
        targets: <float32>[examples], classes or numbers.
        symbols: of the vocabulary.
        view: what the encoder sees at masks.
        seed: of the order; None to order by length, for validation.
    """

    largest_item, remedy = "an example", "a smaller --max-length"

    def __init__(
        self,
        examples: Sequence[Sequence[np.ndarray]],
        targets: np.ndarray,
        symbols: Symbols,
        view: EncoderView,
        seed: int | None = None,
    ) -> None:
        sizes, counts = (np.array([of(map(len, each)) for each in examples], dtype=np.int64) for of in (max, sum))
        super().__init__(sizes, "shortest" if seed is None else "shuffled", seed or 0, counts)
        self.examples, self.targets, self.symbols, self.view = examples, targets, symbols, view

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Collate a batch.

        Args:
            indices: <int64>[B] of the examples.

        Returns:
            ``ntokens``, ``target`` <float32>[B] and ``net_input`` as ``prompt_input`` gives it.
        """
        net_input = prompt_input([self.examples[index] for index in indices], self.symbols, self.view)
        return {
            "ntokens": int(net_input["layout"]["full_lengths"].sum()),
            "net_input": net_input,
            "target": torch.from_numpy(self.targets[indices]),
        }
