"""A save folder holds what its checkpoints need besides themselves: the vocabulary, labels and settings.

Reason: a checkpoint of fairseq holds the name of a data folder, and no vocabulary. On another machine, or once the data
are gone, nobody can read text into it; beside data of other labels it predicts the wrong ones without a word. So the
files from which a task is set up are copied into the save folder, under the names that they have in the data folder:
it can be given, or is taken by itself, wherever a vocabulary's folder is asked for.
Versions: fairseq 0.12.2 and fairseq-fixed 0.12.3.1.
Test: tests/fairseq_fixes/test_companions.py, and tests/end_to_end/test_companions.py through the commands.
"""

from pathlib import Path
from typing import Any, Dict, Tuple

from fairseq import utils
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from fairseq_maelm.files import write_bytes
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE

VOCABULARY_FILES = (DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE)
# Of fairseq's own task; the tasks of this package name theirs as ``setup_files``.
_OF_SENTENCES = (MODEL_FILE, *(f"input0/{name}" for name in VOCABULARY_FILES), f"label/{DICTIONARY_FILE}")


def keep_setup_files(task: Any, folder: Path) -> None:
    """Copy what a task was set up from into the folder of its checkpoints; files that are there already must be equal.

    Args:
        task: of the training.
        folder: its save folder, which no other run uses.

    Raises:
        ValueError: a file of the folder is another than the data's; nothing is changed.
        OSError: a file cannot be read or written.
    """
    wanted: Dict[Path, bytes] = {}
    for name in _names(task):
        source, target = Path(utils.split_paths(task.cfg.data)[0], name), folder / name
        if not source.is_file():
            continue
        content = source.read_bytes()
        if not target.exists():
            wanted[target] = content
        elif target.read_bytes() != content:
            raise ValueError(
                f"{target} is another than {source}: the checkpoints of {folder} belong to other data. Name another "
                "--save-dir, or give the data that they were trained on"
            )
    for target, content in wanted.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)


def _names(task: Any) -> Tuple[str, ...]:
    default = _OF_SENTENCES if isinstance(task, SentencePredictionTask) else ()
    return tuple(getattr(task, "setup_files", default))
