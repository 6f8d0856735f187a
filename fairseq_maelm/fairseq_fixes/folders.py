"""Let fairseq load a checkpoint from the folder of ``maelm export --complete``.

Reason: fairseq reads only its own files, with pickle. ``--finetune-from-model`` and fairseq-validate take such a
folder's checkpoint.json without a copy in another format.
Test: tests/interop/export/test_complete.py.
"""

import functools
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_maelm.checkpoint_data import plain_sections, read_state
from fairseq_maelm.checkpoint_path import CHECKPOINT_FILE

_load = checkpoint_utils.load_checkpoint_to_cpu


@functools.wraps(_load)
def _load_either(path: str, arg_overrides: dict[str, Any] | None = None, load_on_all_ranks: bool = False) -> Any:
    if Path(path).name != CHECKPOINT_FILE:
        return _load(path, arg_overrides, load_on_all_ranks)
    state = read_state(Path(path))
    # References to other options are refused before anything could resolve them.
    state["cfg"] = OmegaConf.create(plain_sections(state, Path(path)))
    if arg_overrides is not None:
        checkpoint_utils.overwrite_args_by_name(state["cfg"], arg_overrides)
    return checkpoint_utils._upgrade_state_dict(state)


def load_folders() -> None:
    """Make fairseq use the function of this module."""
    checkpoint_utils.load_checkpoint_to_cpu = _load_either
