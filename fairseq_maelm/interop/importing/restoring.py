"""Import of a folder of ``maelm export --complete``, which has a whole checkpoint."""

from pathlib import Path
from typing import Any

from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE, shipped_encoders
from fairseq_maelm.interop.export.run import write_checkpoint
from fairseq_maelm.interop.importing.checkpoint import fairseq_options, task_options
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model
from fairseq_maelm.models.config import MaelmModelConfig
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import MODEL_FILE

_VIEW = ("masked_input", "encoder_mask_fraction", "encoder_positions")


def find_complete(path: Path) -> Path | None:
    """Return the checkpoint.json in a folder, or of the encoder with this name that comes with the package, if any."""
    if path.exists():
        return path / CHECKPOINT_FILE if (path / CHECKPOINT_FILE).is_file() else None
    return shipped_encoders().get(str(path))


def restore(checkpoint: Path, folder: Path) -> LoadedCheckpoint:
    """Write the checkpoint of a checkpoint.json and its vocabulary to a folder for fairseq, and return the source."""
    source = load_with_model(checkpoint)
    write_checkpoint(source, folder, folder)
    if (folder / MODEL_FILE).is_file():
        # It was made from the sentencepiece model for transformers.
        (folder / TOKENIZER_FILE).unlink(missing_ok=True)
    return source


def options_of(source: LoadedCheckpoint) -> tuple[list[str], list[str]]:
    """Return the options of fairseq-train that build a checkpoint's model, and those that continue its pretraining."""
    config = source.checkpoint.config
    defaults: dict[str, Any] = {name: field.default for name, field in MaelmModelConfig.__dataclass_fields__.items()}
    declared = [name for name, value in defaults.items() if not name.startswith("_") and "${" not in str(value)]
    view = {name: config.task[name] for name in _VIEW if config.task.get(name) is not None}
    return fairseq_options({name: config.model[name] for name in declared}), task_options(view)
