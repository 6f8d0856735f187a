"""Load checkpoints as plain data, so that an untrusted file cannot run code; also load folders of complete exports.

Reasons: fairseq's releases use torch's default, ``weights_only=True`` since torch 2.6, but fairseq's main branch passes
``weights_only=False``, so a checkpoint can run any command. fairseq reads only its own files; here,
``--finetune-from-model`` and fairseq-validate also take ``checkpoint.json`` in a folder of ``maelm export --complete``.
Tests: tests/checkpoints/test_safety.py, tests/interop/export/test_complete_folder.py.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_maelm.checkpoints.integrity import find_danger
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.plain_data import CheckpointError, plain_sections, read_state
from fairseq_maelm.fairseq_fixes.replacements import replaces

# Overrides the ``weights_only`` argument of torch.load (torch's notes on serialization).
_ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"

_load_otherwise = checkpoint_utils.load_checkpoint_to_cpu


@contextlib.contextmanager
def _only_plain_data() -> Iterator[None]:
    before = os.environ.get(_ONLY_WEIGHTS)
    os.environ[_ONLY_WEIGHTS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ONLY_WEIGHTS]
        else:
            os.environ[_ONLY_WEIGHTS] = before


@replaces(checkpoint_utils, "load_checkpoint_to_cpu")
@functools.wraps(_load_otherwise)
def load_plain_data(path: str, arg_overrides: dict[str, Any] | None = None, load_on_all_ranks: bool = False) -> Any:
    """Load a checkpoint like fairseq; raise a CheckpointError if it holds anything but plain data."""
    if Path(path).name != CHECKPOINT_FILE:
        # A path that does not exist here may be remote; fairseq handles it.
        if Path(path).exists() and (danger := find_danger(Path(path))):
            raise CheckpointError(f"{path} {danger}")
        with _only_plain_data():
            return _load_otherwise(path, arg_overrides, load_on_all_ranks)
    state = read_state(Path(path))
    # References between options are rejected before anything can resolve them.
    state["cfg"] = OmegaConf.create(plain_sections(state, Path(path)))
    if arg_overrides is not None:
        checkpoint_utils.overwrite_args_by_name(state["cfg"], arg_overrides)
    return checkpoint_utils._upgrade_state_dict(state)
