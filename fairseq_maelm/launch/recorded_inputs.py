"""Record the checksums of a run's data and initial checkpoint, and refuse to continue the run with other ones.

fairseq knows its data by their path. If another text or other labels are prepared at the same path, a resumed
run goes on with them, at the position in the old data, and a complete run stays as it is.
Test: tests/end_to_end/test_changed_inputs.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq import utils

from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.files.prepared_folder import checksums_of, quick_checksum
from fairseq_maelm.launch.save_folder import read_without_weights

# Option -> checksums by file name, for each folder that the option names.
Inputs = dict[str, list[dict[str, str]]]

# Options of tasks that name folders of data.
_FOLDERS = ("data", "general_data", "examples")
_CHECKPOINT = "finetune_from_model"
_IN_STATE = "inputs"
# Maximum number of files that a message lists; the rest are counted.
_SHOWN = 3


def inputs_of(cfg: Any) -> Inputs:
    """Return the checksums of the inputs that fairseq's configuration names; missing inputs have none."""
    return {option: [_checksums(option, path) for path in paths] for option, paths in _paths_of(cfg).items()}


def _paths_of(cfg: Any) -> dict[str, list[str]]:
    given = {option: getattr(cfg.task, option, None) for option in _FOLDERS}
    named = {option: utils.split_paths(paths) for option, paths in given.items() if paths}
    checkpoint = cfg.checkpoint.finetune_from_model
    return {**named, **({_CHECKPOINT: [checkpoint]} if checkpoint else {})}


def _checksums(option: str, name: str) -> dict[str, str]:
    path = Path(name)
    if option != _CHECKPOINT:
        return checksums_of(path)
    # A checkpoint may be renamed.
    files = sorted(path.parent.glob("*.safetensors")) if path.name == CHECKPOINT_FILE else [path]
    return {str(number): quick_checksum(file) for number, file in enumerate(files) if file.is_file()}


def record_inputs(trainer: Any, path: Path | None) -> None:
    """Store the inputs of a run in all checkpoints that are saved from now on.

    Args:
        trainer: fairseq's trainer.
        path: the checkpoint that the run continues from, or None.

    Raises:
        ValueError: the checkpoint has recorded other inputs.
    """
    if path is not None and (changes := changed_inputs(recorded_inputs(read_without_weights(path)), trainer.cfg)):
        raise ValueError(
            f"the inputs have changed since the run in {path.parent} began: {changes}. Give the inputs of this run, or "
            "name another --save-dir; --reset-dataloader continues with the new inputs"
        )
    trainer.task.state.merge_state_dict({_IN_STATE: inputs_of(trainer.cfg)})


def recorded_inputs(state: Mapping[str, Any]) -> Inputs:
    """Return the inputs in a checkpoint's content; {} if fairseq alone or an older version wrote it."""
    inputs = (state.get("task_state") or {}).get(_IN_STATE)
    return inputs if isinstance(inputs, dict) else {}


def changed_inputs(before: Inputs, cfg: Any) -> str | None:
    """Describe how the inputs in fairseq's configuration differ from recorded ones; None if they do not."""
    paths, now = _paths_of(cfg), inputs_of(cfg)
    found = []
    for option in (option for option in {**before, **now} if before):
        old, new = before.get(option, []), now.get(option, [])
        if len(old) == len(new):
            found += [_difference(*each, option) for each in zip(old, new, paths[option]) if all(each[:2])]
        elif option != _CHECKPOINT:  # a run may be resumed without it
            name = option.replace("_", "-")
            found.append(f"{name} has {len(new)} folders instead of {len(old)}")
    return "; ".join(filter(None, found)) or None


def _difference(old: dict[str, str], new: dict[str, str], path: str, option: str) -> str:
    names = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    if option == _CHECKPOINT:
        return path if names else ""
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return f"{', '.join([*names[:_SHOWN], *more])} in {path}" if names else ""
