"""Batches from fairseq's data loaders: the same sequences of the same text for every contender."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from training_step.settings import Settings

# The first blocks of the training split, in the order of the text, make at most so many batches.
BATCHES = 2000
# Batches made in advance, taken in turn.
PREPARED = 4


def full_batches(dataset: Any, settings: Settings) -> list[list[int]]:
    """Return the indices of the first batches of sequences of full length; raise a ValueError if the split has none."""
    wanted = min(len(dataset), BATCHES * settings.sequences)
    full = [index for index in range(wanted) if dataset.num_tokens(index) == settings.length]
    ends = range(settings.sequences, len(full) + 1, settings.sequences)
    batches = [full[end - settings.sequences : end] for end in ends]
    if not batches:
        raise ValueError(
            f"the training text makes {len(full)} sequences of {settings.length} tokens, fewer than a batch of "
            f"{settings.sequences}: give more text"
        )
    return batches


class Batches:
    """The batches of one contender: in fairseq's iterator of an epoch, those of ``full_batches`` replace its own.

    A ValueError says that there are too few sequences, or that fairseq keeps its batches elsewhere.
    """

    def __init__(self, iterator: Any, dataset: Any, settings: Settings) -> None:
        if not hasattr(iterator, "_frozen_batches"):
            raise ValueError("this fairseq's epoch iterator has no _frozen_batches: the benchmark cannot set batches")
        self._iterator = iterator
        # As a list they stay the same in later epochs; fairseq's own function would make others.
        iterator.batch_sampler = full_batches(dataset, settings)
        iterator._frozen_batches = tuple(iterator.batch_sampler)
        self._sequences = settings.sequences
        self._epoch: Iterator[Any] = iter(())
        self.prepared = [self.load() for _ in range(PREPARED)]
        self._in_turn = itertools.cycle(self.prepared)

    def load(self) -> Any:
        """Return the next batch of the epoch's iterator, which starts again after the last batch."""
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = iter(self._iterator.next_epoch_itr(shuffle=False))
            batch = next(self._epoch)
        return batch

    def convert(self, conversion: Callable[[Any], Any]) -> None:
        """Change every batch that was made in advance, for instance move it to the device."""
        self.prepared = [conversion(batch) for batch in self.prepared]
        self._in_turn = itertools.cycle(self.prepared)

    def take_prepared(self) -> Any:
        """Return the next of the batches that were made in advance."""
        return next(self._in_turn)

    def sizes(self, unpredicted: int | None) -> dict[str, float]:
        """Return the means, over the batches made in advance, of one sequence's "visible" and "predicted" tokens.

        Costs depend on these. ``unpredicted`` is the target at positions that are not predicted; None if there are
        none.
        """
        sequences = len(self.prepared) * self._sequences
        visible = sum(int(batch["net_input"]["src_lengths"].sum()) for batch in self.prepared)
        targets = [batch["target"] for batch in self.prepared]
        predicted = sum(each.numel() if unpredicted is None else int((each != unpredicted).sum()) for each in targets)
        return {"visible": visible / sequences, "predicted": predicted / sequences}
