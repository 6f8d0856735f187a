"""Check which task and model a checkpoint names before fairseq builds them.

Reason: fairseq-validate and similar programs build the task and the model that a file names, and resolve references in
its configuration. Several of fairseq's own tasks and models evaluate string options, so plain data can run code.
Tests: tests/fairseq_fixes/test_untrusted_models.py; tests/robustness/test_hostile.py,
test_fairseq_builds_nothing_foreign.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_maelm.checkpoints.plain_data import CheckpointError, plain_sections, read_state, shown
from fairseq_maelm.fairseq_fixes.replacements import replaces

# fairseq's own tasks and models that this package uses; none of them evaluates an option.
OF_FAIRSEQ = {
    "task": ("masked_lm", "sentence_prediction"),
    "model": ("roberta", "roberta_base", "roberta_large", "roberta_prenorm", "xlm"),
}
_REGISTRIES = {"task": (TASK_REGISTRY,), "model": (ARCH_MODEL_REGISTRY, MODEL_REGISTRY)}

_load = checkpoint_utils.load_model_ensemble_and_task


def _classes(section: str, names: Iterable[Any]) -> list[Any]:
    """Return the classes that fairseq has registered under the names."""
    known = [name for name in names if isinstance(name, str)]
    return [registry[name] for name in known for registry in _REGISTRIES[section] if name in registry]


def refuse_foreign(path: Path) -> None:
    """Raise a CheckpointError if a checkpoint names one of fairseq's tasks or models that this package does not use.

    Tasks and models from other plugins are allowed, since users install those themselves.
    """
    sections = plain_sections(read_state(path), path)
    for section, names in OF_FAIRSEQ.items():
        name = sections.get(section, {}).get("_name")
        known = _classes(section, [name])
        # A plugin's architecture of a class that is used has other default sizes, and no other code.
        if known and known[0].__module__.startswith("fairseq.") and known[0] not in _classes(section, names):
            raise CheckpointError(
                f"{path} is a checkpoint of fairseq's {section} {shown(name)}, which this package does not load"
            )


@replaces(checkpoint_utils, "load_model_ensemble_and_task")
@functools.wraps(_load)
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
        refuse_foreign(Path(found))
    return _load(filenames, arg_overrides, task, strict, suffix, num_shards, state)
