"""Resume at the same position in the data with another number of ranks or another batch size.

Reason: checkpoints store how many batches each rank has read in the epoch, and fairseq skips as many on each rank of a
resumed run. With more ranks than before it leaves batches out, or fails because it skips all of them; with fewer ranks
it reads batches twice. All ranks together read the batches of an epoch in an order that does not depend on the number
of ranks, so the position can be converted. If the number of batches has changed, the same fraction is skipped.
Tests: tests/fairseq_fixes/test_resumed_position.py, and tests/end_to_end/test_distributed.py through the command.
"""

import functools
from typing import Any

from fairseq.data.iterators import EpochBatchIterator

from fairseq_maelm.fairseq_fixes.replacements import replaces

_PLACE, _RANKS, _BATCHES = "iterations_in_epoch", "ranks", "batches"

_state_dict = EpochBatchIterator.state_dict
_load_state_dict = EpochBatchIterator.load_state_dict


@replaces(EpochBatchIterator, "state_dict")
@functools.wraps(_state_dict)
def _with_sizes(self: EpochBatchIterator) -> dict[str, Any]:
    return {**_state_dict(self), _RANKS: self.num_shards, _BATCHES: len(self.frozen_batches)}


@replaces(EpochBatchIterator, "load_state_dict")
@functools.wraps(_load_state_dict)
def _to_same_position(self: EpochBatchIterator, state_dict: dict[str, Any]) -> None:
    # Checkpoints of fairseq alone have no sizes.
    if _RANKS in state_dict and _BATCHES in state_dict:
        read = state_dict[_PLACE] * state_dict[_RANKS] * len(self.frozen_batches)
        # Rounded down: rather than leave batches out, the ranks repeat less than one batch each.
        state_dict = {**state_dict, _PLACE: read // (max(state_dict[_BATCHES], 1) * self.num_shards)}
    _load_state_dict(self, state_dict)
