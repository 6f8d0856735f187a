"""Copy the vocabulary, labels and settings that checkpoints need into the save folder.

fairseq's checkpoints store the path of a data folder, but no vocabulary. On another machine, or without the
data, they cannot encode text; with data that has other labels, they silently predict wrong labels. Therefore the files
from which a task is set up are copied into the save folder, under the same names as in the data folder.
Test: tests/launch/test_setup_files.py, and tests/end_to_end/test_ema.py through the commands.
"""

from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE, same_content
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, SOURCE_FILE, TOKENIZER_FILE

VOCABULARY_FILES = (DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE, SOURCE_FILE)
# The files of fairseq's own task; this package's tasks declare theirs as ``setup_files``.
_OF_SENTENCES = (MODEL_FILE, *(f"input0/{name}" for name in VOCABULARY_FILES), f"label/{DICTIONARY_FILE}")
# Files to write with the first checkpoint, so that a run without checkpoints leaves no files.
_waiting: dict[Path, bytes] = {}


def setup_files(task: type) -> tuple[str, ...]:
    """Return the files that set up a task, as paths relative to the data folder; some may not exist."""
    default = _OF_SENTENCES if issubclass(task, SentencePredictionTask) else ()
    return tuple(getattr(task, "setup_files", default))


def read_setup_files(task: Any, folder: Path) -> dict[Path, bytes]:
    """Return the setup files that are missing in a save folder: path in the save folder -> content.

    Raises:
        ValueError: a file in the save folder differs from the file in the data folder.
    """
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


def write_with_first_checkpoint(files: dict[Path, bytes]) -> None:
    """Schedule files from ``read_setup_files`` to be written when this process saves its first checkpoint."""
    _waiting.clear()
    _waiting.update(files)


def write_waiting_files() -> None:
    """Write the scheduled files, if any; called before each checkpoint is saved."""
    for target, content in _waiting.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)
    _waiting.clear()
