"""Load checkpoints as plain data, and build only the tasks and models that this package uses.

fairseq's releases use torch's default, ``weights_only=True`` since torch 2.6, but fairseq's main branch passes
``weights_only=False``, so a checkpoint can run any command. fairseq reads only its own files; here,
``--finetune-from-model`` and fairseq-validate also take ``checkpoint.json`` in a folder of ``maelm export --complete``.

fairseq-validate and similar programs build the task and the model that a file names, and resolve references in its
configuration. Several of fairseq's own tasks and models evaluate string options, so plain data can run code.
Tests: tests/fairseq_fixes/test_loading.py; tests/checkpoints/test_safety.py; tests/robustness/test_hostile.py,
test_fairseq_builds_nothing_foreign; tests/interop/export/test_complete_folder.py.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf

from fairseq_maelm.checkpoints.integrity import find_danger
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.plain_data import (
    CheckpointError,
    allow_namespaces,
    plain_sections,
    read_state,
    shown,
)
from fairseq_maelm.fairseq_fixes import changes, replaces

# Overrides the ``weights_only`` argument of torch.load (torch's notes on serialization).
_ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"

# fairseq's own tasks and models that this package uses; none of them evaluates an option.
OF_FAIRSEQ = {
    "task": ("masked_lm", "sentence_prediction"),
    "model": ("roberta", "roberta_base", "roberta_large", "roberta_prenorm", "xlm"),
}
_REGISTRIES = {"task": (TASK_REGISTRY,), "model": (ARCH_MODEL_REGISTRY, MODEL_REGISTRY)}

_load_otherwise = checkpoint_utils.load_checkpoint_to_cpu
_load_models = checkpoint_utils.load_model_ensemble_and_task


@changes(
    "safe globals of `torch.serialization`",
    why="since torch 2.6, checkpoints with fairseq's `argparse.Namespace` are refused",
    acts_on="everything that torch loads; set also when this package opens a .pt file",
)
def _load_namespaces() -> None:
    """Let fairseq's own calls of torch.load read its configurations."""
    allow_namespaces()


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


@replaces(
    checkpoint_utils,
    "load_checkpoint_to_cpu",
    why="with fairseq's main branch a checkpoint can run code; folders of `maelm export --complete` cannot be loaded",
    acts_on="all checkpoints",
    upstream="in part: not our folders",
)
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


def _classes(section: str, names: Iterable[Any]) -> list[Any]:
    """Return the classes that fairseq has registered under the names."""
    known = [name for name in names if isinstance(name, str)]
    return [registry[name] for name in known for registry in _REGISTRIES[section] if name in registry]


def _refuse_foreign(path: Path) -> None:
    """Raise a CheckpointError for a task or model of fairseq that this package does not use; plugins' are allowed."""
    sections = plain_sections(read_state(path), path)
    for section, names in OF_FAIRSEQ.items():
        name = sections.get(section, {}).get("_name")
        known = _classes(section, [name])
        # A plugin's architecture of a class that is used has other default sizes, and no other code.
        if known and known[0].__module__.startswith("fairseq.") and known[0] not in _classes(section, names):
            raise CheckpointError(
                f"{path} is a checkpoint of fairseq's {section} {shown(name)}, which this package does not load"
            )


@replaces(
    checkpoint_utils,
    "load_model_ensemble_and_task",
    why="fairseq-validate builds any task that a file names, and some of fairseq's tasks evaluate strings as code",
    acts_on="all checkpoints from which a program builds a task and model",
    upstream="no: it refuses fairseq's own tasks",
)
@functools.wraps(_load_models)
def _load_checked(
    filenames: Sequence[str],
    arg_overrides: dict[str, Any] | None = None,
    task: Any = None,
    strict: bool = True,
    suffix: str = "",
    num_shards: int = 1,
    state: Any = None,
) -> Any:
    for filename, shard in itertools.product(filenames, range(num_shards)):
        # Another file than the named one if there is a suffix, or a shard in the same folder.
        found = checkpoint_utils.get_maybe_sharded_checkpoint_filename(filename, suffix, shard, num_shards)
        _refuse_foreign(Path(found))
    return _load_models(filenames, arg_overrides, task, strict, suffix, num_shards, state)
