"""Register this package in every process that fairseq starts for a GPU of this machine.

Reason: these processes import the script that was started, and ``maelm`` imports this package. fairseq then finds its
--user-dir already imported, so it registers nothing, and every run of ``maelm pretrain`` or ``maelm finetune`` on
several GPUs would end with "Could not infer task type".
Test: tests/fairseq_fixes/test_spawned_ranks.py.
"""

from typing import Any

from fairseq.distributed import utils as distributed_utils

from fairseq_maelm.fairseq_fixes.replacements import replaces
from fairseq_maelm.registration import register

_start = distributed_utils.distributed_main


# Without functools.wraps: pickle finds a function by its name, and a new process must find this one.
@replaces(distributed_utils, "distributed_main")
def start_rank(number: int, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Register this package, then run ``main`` as a rank, the one with this number on this machine."""
    register()
    _start(number, main, cfg, kwargs)
