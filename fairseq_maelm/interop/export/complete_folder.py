"""Export folders that are also fairseq checkpoints (``maelm export --complete``), optionally in half precision."""

from itertools import chain
from pathlib import Path
from typing import Any

import torch
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf

from fairseq_maelm.checkpoints.folder import write_folder, write_sums
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.reader import Checkpoint
from fairseq_maelm.files.atomic import copy_file, read_json, write_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.interop.export.changed_weights import cast_floats
from fairseq_maelm.interop.export.model_card import HYPER_PARAMETERS, fill_template
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model
from fairseq_maelm.launch.run_record import VOCABULARY_FILES, setup_files
from fairseq_maelm.text.vocabulary import MASK_SYMBOL

# The model card's section on half-precision weights.
ROUNDING = (
    "## Precision\n\nThe weights are rounded to float16 and loaded as float32. The comparisons above use the "
    "checkpoint after this rounding."
)
# The options of tasks that name files or folders, which are private and absent elsewhere, and their values in a folder.
PATHS = {"data": ".", "general_data": None, "examples": None, "finetune_from_model": None, "save_dir": "."}
# Name in fairseq's extra state -> name in a checkpoint's history.
_HISTORY = {"val_loss": "val_loss", "best": "best", "previous_training_time": "training_seconds"}


def copy_setup_files(source: LoadedCheckpoint, folder: Path) -> None:
    """Copy the vocabulary and the other files that the checkpoint's task reads."""
    for name in {*VOCABULARY_FILES, *setup_files(TASK_REGISTRY[source.checkpoint.task_name])}:
        files = [place / name for place in (source.data, source.checkpoint.path.parent) if (place / name).is_file()]
        if files:
            (folder / name).parent.mkdir(exist_ok=True)
            copy_file(files[0], folder / name)
    if (folder / MANIFEST_FILE).is_file():
        manifest = read_json(folder / MANIFEST_FILE)
        for each in chain(*manifest.get("files", {}).values()):
            each["file"] = Path(each["file"]).name  # folders are private
        write_json(folder / MANIFEST_FILE, manifest)


def complete(source: LoadedCheckpoint, folder: Path, dtype: torch.dtype = torch.float32) -> LoadedCheckpoint:
    """Make a transformers folder a checkpoint too, without optimizer state, and return it as read from the folder."""
    expected = source.checkpoint
    weights = cast_floats(expected.weights, dtype)
    write_folder(folder, {**_public_state(expected), "model": weights})
    write_sums(folder)
    written = load_with_model(folder / CHECKPOINT_FILE)
    found = written.checkpoint
    same = expected.weights.keys() == found.weights.keys() and all(
        torch.equal(weight, found.weights[name]) for name, weight in expected.weights.items()
    )
    before, after = (_public_options(each.config) for each in (expected, found))
    same = same and all(before.get(section) == after.get(section) for section in ("task", "criterion"))
    if not same or expected.encoder_options != found.encoder_options or expected.view != found.view:
        raise ValueError(f"{CHECKPOINT_FILE} does not restore the checkpoint {expected.path}")
    return written


def complete_section(source: LoadedCheckpoint, name: str) -> str:
    """Return the model card's section on using the folder as a fairseq checkpoint."""
    use = 'states = hub.extract_features(hub.encode("A sentence."))'
    if source.model.lm_head is not None and not getattr(source.model.decoder, "autoregressive", False):
        use = f'hub.fill_mask("The {MASK_SYMBOL} is old.")'
    return fill_template("complete_folder.md", {"name": name, "use": use})


def _public_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint's state as JSON values, without the weights and the paths of private folders."""
    history, last = checkpoint.history, (checkpoint.state.get("optimizer_history") or [{}])[-1]
    iterator = {"epoch": history.get("epoch", 1), "iterations_in_epoch": 0, "shuffle": True}
    return {
        "args": None,
        "cfg": _public_options(checkpoint.config),
        "criterion": {},
        "task_state": {},
        "optimizer_history": [
            {
                "criterion_name": str(last.get("criterion_name")),
                "optimizer_name": str(last.get("optimizer_name")),
                "lr_scheduler_state": {},
                "num_updates": history.get("num_updates", 0),
            }
        ],
        "extra_state": {
            "train_iterator": iterator,
            **{theirs: history[ours] for theirs, ours in _HISTORY.items() if ours in history},
        },
    }


def _public_options(config: Any) -> dict[str, dict[str, Any]]:
    """Return the options of the task (without paths), the criterion and the model, and others that a card shows."""
    found: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    chosen = {
        section: {name: found[section][name] for name in options.split() if name in found.get(section, {})}
        for section, options in HYPER_PARAMETERS.items()
    }
    task = {name: PATHS.get(name, value) for name, value in found["task"].items()}
    criterion = {"criterion": found["criterion"]} if isinstance(found.get("criterion"), dict) else {}
    return {**chosen, **criterion, "task": task, "model": found["model"]}
