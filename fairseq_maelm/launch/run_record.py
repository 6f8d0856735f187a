"""What a run was begun with: run.json next to its checkpoints, and copies of the files from which its task is set up.

run.json holds the options that decide the result, and checksums of the data and of the initial checkpoint. fairseq
knows its data by their path: if another text, other labels or other options are given at the same place, a resumed run
goes on with them, and a complete run stays as it is. Here alone it is decided whether a run is the one in a folder.
Runs of version 0.3 have all of this in their checkpoints.

fairseq's checkpoints store the path of a data folder, but no vocabulary. On another machine, or without the data, they
cannot encode text; with data that has other labels, they silently predict wrong labels. Therefore these files are
copied, under the same names as in the data folder.
Tests: tests/launch/test_run_record.py, tests/end_to_end/test_changed_inputs.py; test_ema.py through the commands.
"""

import argparse
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from omegaconf import OmegaConf

from fairseq_maelm.architecture.config import complete_config
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.plain_data import plain_sections
from fairseq_maelm.files.atomic import read_json, write_bytes
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE, checksums_of, quick_checksum, same_content
from fairseq_maelm.launch.last_update import Sections, depends_on_last_update
from fairseq_maelm.launch.save_folder import checkpoint_files, read_without_weights
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, SOURCE_FILE, TOKENIZER_FILE

RUN_FILE = "run.json"
VOCABULARY_FILES = (DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE, SOURCE_FILE)

# The sections of fairseq's configuration, and options of other sections, that decide the result of a run.
_SECTIONS = ("task", "model", "criterion", "optimizer", "lr_scheduler", "optimization", "ema")
_OTHERS = {
    "common": ("seed", "fp16"),
    "checkpoint": ("finetune_from_model", "best_checkpoint_metric"),
    "dataset": ("train_subset", "valid_subset", "batch_size", "max_tokens"),
    "distributed_training": ("distributed_world_size",),
}
# Options that may change when a run resumes: limits, and options of the hardware. Only total batch sizes are compared.
_FREE = {"max_update", "max_epoch", "stop_time_hours", "stop_min_lr", "update_freq", "distributed_world_size"}
_FREE |= {"attention", "compile", "checkpoint_activations"}
# Options of tasks that name folders of data, and the option of the initial checkpoint.
_FOLDERS = ("data", "general_data", "examples")
_CHECKPOINT = "finetune_from_model"
# Maximum numbers of options and files that a message lists; the rest are counted.
_SHOWN, _SHOWN_FILES = 6, 3
# The files of fairseq's own task; this package's tasks declare theirs as ``setup_files``.
_OF_SENTENCES = (MODEL_FILE, *(f"input0/{name}" for name in VOCABULARY_FILES), f"label/{DICTIONARY_FILE}")
# Files to write with the first checkpoint, so that a run without checkpoints leaves no files.
_waiting: dict[Path, bytes] = {}

# Option -> checksums by file name, for each folder that the option names.
Inputs = dict[str, list[dict[str, str]]]


class Record(NamedTuple):
    """What a run was begun with."""

    options: Sections  # section -> option -> value
    inputs: Inputs  # {} if fairseq alone or a version before 0.3 wrote the run


def record_of(cfg: Any) -> Record:
    """Return the record of a run with fairseq's configuration; missing inputs have no checksums."""
    inputs = {option: [_checksums(option, path) for path in paths] for option, paths in _paths(cfg).items()}
    return Record(options_of(cfg), inputs)


def options_of(cfg: Any) -> Sections:
    """Return the options that decide a run's result, as plain data and as they were before the task changed them."""
    found = dict[str, dict[str, Any]]()
    for name in (*_SECTIONS, *_OTHERS):
        section = cfg.get(name)
        if OmegaConf.is_config(section):
            section = OmegaConf.to_container(section, resolve=True, enum_to_str=True)
        elif name == "lr_scheduler" and isinstance(section, argparse.Namespace):  # of old classes of fairseq
            section = vars(section)
        if isinstance(section, Mapping):
            found[name] = {option: section[option] for option in _OTHERS.get(name, section) if option in section}
    task = found.get("task", {})
    task.update(task.pop("given", None) or {})
    return dict(json.loads(json.dumps(found, default=str)))


def _paths(cfg: Any) -> dict[str, list[str]]:
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


def read_record(folder: Path, suffix: str = "") -> Record | None:
    """Return the record of the run in a folder; None if the folder has no readable checkpoint with this suffix."""
    files = checkpoint_files(folder, suffix)
    if files and (folder / RUN_FILE).is_file():
        return Record(**read_json(folder / RUN_FILE))
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            state = read_without_weights(path)
            inputs = (state.get("task_state") or {}).get("inputs")
            return Record(options_of(plain_sections(state, path)), inputs if isinstance(inputs, dict) else {})
        except ValueError:  # ``choose_start`` reports the error
            continue
    return None


def changed_inputs(before: Record, cfg: Any) -> str:
    """Describe how the inputs in fairseq's configuration differ from those of a run; "" if they do not."""
    paths, now, found = _paths(cfg), record_of(cfg).inputs, list[str]()
    for option in (option for option in {**before.inputs, **now} if before.inputs):
        old, new = before.inputs.get(option, []), now.get(option, [])
        if len(old) == len(new):
            found += [_difference(*each, option) for each in zip(old, new, paths[option]) if all(each[:2])]
        elif option != _CHECKPOINT:  # a run may be resumed without it
            found.append(f"{option.replace('_', '-')} has {len(new)} folders instead of {len(old)}")
    return "; ".join(filter(None, found))


def _difference(old: dict[str, str], new: dict[str, str], path: str, option: str) -> str:
    names = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    if option == _CHECKPOINT:
        return path if names else ""
    return f"{_first(names, _SHOWN_FILES)} in {path}" if names else ""


def _first(names: list[str], most: int, final: str = "") -> str:
    """List the first names, and count the rest."""
    return ", ".join([*names[:most], *([f"{final}{len(names) - most} more"] if len(names) > most else [])])


def changed_options(before: Record, cfg: Any, owned: Mapping[str, str]) -> str:
    """Describe the options that decide a run's result and differ from its record, as ``lr 0.001 (now 0.002)``.

    ``owned`` maps options of fairseq-train to the options of the command that decide them.
    """
    now = options_of(cfg)
    free = _FREE - {"max_update"} if depends_on_last_update(now, before.options) else _FREE
    # Inputs that were compared may be elsewhere now.
    free = free | {option for option, each in before.inputs.items() if all(each)}
    old, new = _compared(before.options, free), _compared(now, free)
    differ = {name: (old[name], new[name]) for name in new if name in old and old[name] != new[name]}
    if ("task", "data") in differ and not any(map(os.path.exists, differ["task", "data"][0].split(":"))):
        del differ["task", "data"]  # moved
    if ("lr_scheduler", "total_num_update") in differ:
        differ.pop(("lr_scheduler", "warmup_updates"), None)  # a fraction of it
    described, derived = dict[str, str](), dict[str, str]()
    for (section, option), values in differ.items():
        name = section if option == "_name" else option.replace("_", "-")
        own = owned.get(name, name)
        decides = next((first for first, other in owned.items() if other == own), name)
        if decides != name:
            first = tuple(_value_of(each, decides.replace("-", "_")) for each in (before.options, now))
            if first[0] == first[1]:  # it follows from another option
                derived[name] = _changed(name, *values)
                continue
            values = first
        described[own] = _changed(own, *values)
    return _first(list((described or derived).values()), _SHOWN, "and ")


def _compared(options: Sections, free: Collection[str]) -> dict[tuple[str, str], Any]:
    """Return what must not change when a run resumes: (section, option) -> value."""
    # Fill in sizes that were not given, as the model does.
    model = argparse.Namespace(**options.get("model", {}))
    complete_config(model)
    sections = {**options, "model": vars(model)}
    chosen = {(name, option): value for name, section in sections.items() for option, value in section.items()}
    for interpolated in (_CHECKPOINT, "save_dir"):  # fairseq's section "checkpoint" has them
        chosen.pop(("task", interpolated), None)
    gpus = sections.get("distributed_training", {}).get("distributed_world_size", 1)
    steps = gpus * sections["optimization"]["update_freq"][-1]
    for option, size in (("batch_size", "batch_size"), ("max_tokens", "batch of tokens")):
        share = chosen.pop(("dataset", option), None)
        chosen["dataset", size] = None if share is None else share * steps
    for name in (("task", "data"), ("task", "general_data"), ("checkpoint", _CHECKPOINT)):
        if chosen.get(name):
            chosen[name] = ":".join(map(os.path.realpath, chosen[name].split(":")))
    return {name: value for name, value in chosen.items() if name[1] not in free}


def _value_of(options: Sections, name: str) -> Any:
    """Return the value of an option in the first section that has it."""
    return next((section[name] for section in options.values() if name in section), None)


def _changed(name: str, *values: Any) -> str:
    single = (value[0] if isinstance(value, list) and len(value) == 1 else value for value in values)
    return "{} {} (now {})".format(name, *(f"{each:g}" if isinstance(each, float) else each for each in single))


def setup_files(task: type) -> tuple[str, ...]:
    """Return the files that set up a task, as paths relative to the data folder; some may not exist."""
    default = _OF_SENTENCES if issubclass(task, SentencePredictionTask) else ()
    return tuple(getattr(task, "setup_files", default))


def read_setup_files(task: Any, folder: Path) -> dict[Path, bytes]:
    """Return the content of the setup files that a save folder lacks, by their path in it; refuse those that differ."""
    missing: dict[Path, bytes] = {}
    for name in setup_files(type(task)):
        source, target = Path(utils.split_paths(task.cfg.data)[0], name), folder / name
        if not source.is_file():
            continue
        content = source.read_bytes()
        if not target.exists():
            missing[target] = content
        elif target.read_bytes() != content and not (name == MANIFEST_FILE and same_content(target, source)):
            raise ValueError(
                f"{target} differs from {source}: the checkpoints in {folder} were trained on other data. Give another "
                "--save-dir, or the data that they were trained on"
            )
    return missing


def write_with_first_checkpoint(task: Any, cfg: Any, folder: Path) -> None:
    """Schedule the record and the setup files of a run to be written when this process saves its first checkpoint."""
    content = json.dumps(record_of(cfg)._asdict(), indent=2)
    files = {**read_setup_files(task, folder), folder / RUN_FILE: f"{content}\n".encode("ascii")}
    _waiting.clear()
    _waiting.update(files)


def write_waiting_files() -> None:
    """Write the scheduled files, if any; called before each checkpoint is saved."""
    for target, content in _waiting.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)
    _waiting.clear()
