"""Find checkpoints: files and run directories by path, bundled encoders by name; and the options that name them."""

import argparse
import re
from pathlib import Path
from shlex import quote
from typing import Any

from fairseq_maelm.options import existing_path

# The file that makes a folder a checkpoint; see ``fairseq_maelm.checkpoints.folder``.
CHECKPOINT_FILE = "checkpoint.json"
LOG_FILE = "training.log"  # fairseq's log, which `maelm pretrain` and `maelm finetune` write next to their checkpoints

_PRETRAINED = Path(__file__).resolve().parents[1] / "pretrained"


def shipped_encoders() -> dict[str, Path]:
    """Return the bundled encoders' checkpoints by name."""
    return {path.parent.name: path for path in sorted(_PRETRAINED.glob(f"*/{CHECKPOINT_FILE}"))}


def find_checkpoint(path: Path) -> Path:
    """Return a checkpoint's file, given the file, its folder, or the name of an encoder that comes with this package.

    In the folder of a run, the best checkpoint is preferred to the last. A path that exists is preferred to a name. A
    FileNotFoundError says that there is no such file, folder or encoder, or no checkpoint in the folder.
    """
    if path.is_file():
        return path
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", CHECKPOINT_FILE):
        if (path / name).is_file():
            return path / name
    if (path / "config.json").is_file() and not (path / CHECKPOINT_FILE).exists():
        raise FileNotFoundError(
            f"{path} is a Hugging Face folder: first run `maelm import {quote(str(path))} --output FOLDER`"
        )
    if (path / LOG_FILE).is_file():
        raise FileNotFoundError(f"the training in {path} has saved no checkpoint yet: finish it first")
    if path.is_dir():
        raise FileNotFoundError(
            f"there is neither checkpoint_best.pt nor checkpoint_last.pt in {path}: give the path of a checkpoint file"
        )
    shipped = shipped_encoders()
    if str(path) in shipped:
        return shipped[str(path)]
    names = f": give a file, a folder, or one of {', '.join(shipped)}" if shipped else ""
    hub = f"; a model of the Hugging Face Hub must first be imported: `maelm import {path} --download --output FOLDER`"
    is_hub_name = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path)) and path.suffix != ".pt"
    raise FileNotFoundError(f"there is no checkpoint {path}{names}{hub if is_hub_name else ''}")


def vocabulary_folder(text: str) -> Path:
    """Convert an option's value, a path or a bundled encoder's name, to a vocabulary folder."""
    shipped = shipped_encoders()
    return shipped[text].parent if text in shipped and not Path(text).exists() else existing_path(text)


def checkpoint_path(text: str) -> Path:
    """Convert an option's value to the file of a checkpoint; see ``find_checkpoint``."""
    try:
        return find_checkpoint(Path(text))
    except FileNotFoundError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_checkpoint(parser: Any, kind: str = "checkpoint", required: bool = True) -> None:
    """Declare ``--checkpoint``: a file, a folder, or an encoder of this package."""
    parser.add_argument(
        "--checkpoint", required=required, type=checkpoint_path, metavar="PATH",
        help=f"{kind}: a file, the folder of a training run (its best checkpoint, or else its last), or the name of an "
        f"encoder that comes with this package",
    )  # fmt: skip


def add_vocabulary(parser: Any, required: bool = False) -> None:
    """Declare ``--vocabulary``; unless ``required``, it defaults to the checkpoint's folder."""
    default = "" if required else " (default: the folder of the checkpoint)"
    parser.add_argument(
        "--vocabulary", required=required, type=vocabulary_folder, metavar="FOLDER",
        help="folder with dict.txt and the tokenizer: prepared data, a training run, or the name of an encoder that "
        f"comes with this package{default}",
    )  # fmt: skip
