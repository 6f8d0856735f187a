"""A save folder holds what its checkpoints need: the vocabulary, labels and settings.

Reason: a checkpoint of fairseq holds the name of a data folder, and no vocabulary. On another machine, or once the data
are gone, no text can be encoded for it; with data of other labels it predicts the wrong ones without a word. So the
files from which a task is set up are copied into the save folder, under the names that they have in the data folder.
Test: tests/fairseq_fixes/test_companions.py, and tests/end_to_end/test_companions.py through the commands.
"""

import functools
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from fairseq_maelm.files import write_bytes
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE

VOCABULARY_FILES = (DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE)
# Of fairseq's own task; the tasks of this package name theirs as ``setup_files``.
_OF_SENTENCES = (MODEL_FILE, *(f"input0/{name}" for name in VOCABULARY_FILES), f"label/{DICTIONARY_FILE}")
# What this process is going to write with the first checkpoint: nothing is left by a run that never gets so far.
_missing: dict[Path, bytes] = {}


def setup_files(task: type) -> tuple[str, ...]:
    """Return the files, below the data folder, that tasks of a class are set up from; not all of them need exist."""
    default = _OF_SENTENCES if issubclass(task, SentencePredictionTask) else ()
    return tuple(getattr(task, "setup_files", default))


def read_setup_files(task: Any, folder: Path) -> dict[Path, bytes]:
    """Read what a task was set up from and its save folder lacks: file in the save folder -> content.

    Raises:
        ValueError: a file of the folder differs from that of the data.
    """
    missing: dict[Path, bytes] = {}
    for name in setup_files(type(task)):
        source, target = Path(utils.split_paths(task.cfg.data)[0], name), folder / name
        if not source.is_file():
            continue
        content = source.read_bytes()
        if not target.exists():
            missing[target] = content
        elif target.read_bytes() != content:
            raise ValueError(
                f"{target} is another than {source}: the checkpoints of {folder} belong to other data. Name another "
                "--save-dir, or give the data that they were trained on"
            )
    return missing


def write_with_first_checkpoint(files: dict[Path, bytes]) -> None:
    """Write files, as ``read_setup_files`` returns them, when this process saves its first checkpoint."""
    _missing.clear()
    _missing.update(files)


def write_setup_files(files: dict[Path, bytes]) -> None:
    """Write files, each whole or not at all."""
    for target, content in files.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)


def keep_setup_files() -> None:
    """Make fairseq write the files together with the first checkpoint."""
    # As it is by now: ``stopping`` has its own part in it.
    save_checkpoint = checkpoint_utils.save_checkpoint

    @functools.wraps(save_checkpoint)
    def save(*args: Any, **options: Any) -> Any:
        write_setup_files(_missing)
        _missing.clear()
        return save_checkpoint(*args, **options)

    checkpoint_utils.save_checkpoint = save
