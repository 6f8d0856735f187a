"""What all commands that train share: recipes in YAML, options as words, the machine, and the start."""

import argparse
import contextlib
import io
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from fairseq_maelm.arguments import UsageError, number

USER_DIR = Path(__file__).resolve().parent

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"fp16": True, "fp16-init-scale": 4, "fp16-scale-window": 128},
}


class Machine(NamedTuple):
    """Where a run is computed: on a number of GPUs, 0 for the CPU, in a precision of PRECISIONS, on CPU threads."""

    gpus: int
    precision: str
    threads: int = 1

    def options(self) -> dict[str, Any]:
        """Return the options of fairseq-train."""
        device = {"num-workers": 2} if self.gpus else {"cpu": True, "num-workers": 0}
        return {"distributed-world-size": max(1, self.gpus), **device, **PRECISIONS[self.precision]}


def add_machine_arguments(parser: Any) -> None:
    """Declare where a training is computed, and whether it is."""
    parser.add_argument("--gpus", type=number(int, 0), metavar="N", help="number of GPUs; 0 is the CPU")
    add_precision(parser)
    add_dry_run(parser, "write the command")


def add_precision(parser: Any) -> None:
    """Declare ``--precision``."""
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="precision of the computation (default: fp16 on GPUs, fp32 without)"
    )


def add_dry_run(parser: Any, shown: str) -> None:
    """Declare ``--dry-run``."""
    parser.add_argument("--dry-run", action="store_true", help=f"check everything and {shown}, without training")


def count_gpus(asked: int | None, most: int | None = None) -> int:
    """Return how many GPUs to use: as many as asked for, or those that torch may see, ``most`` at the most.

    Raises:
        UsageError: there are fewer here, and nothing says that other machines take part.
    """
    import torch  # seconds

    visible = torch.cuda.device_count()  # minds CUDA_VISIBLE_DEVICES
    if asked is None:
        return visible if most is None else min(most, visible)
    elsewhere = {"WORLD_SIZE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"} & os.environ.keys()
    if visible and asked > visible and not elsewhere:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "" if shown is None else f" with CUDA_VISIBLE_DEVICES={shown}"
        raise UsageError(f"--gpus {asked}, but torch finds {visible} here{reason}")
    return asked


def machine_of(gpus: int, precision: str | None, threads: int = 1) -> Machine:
    """Return a machine; without a precision, the fastest that it has.

    Raises:
        UsageError: the machine has no such precision.
    """
    if precision == "fp16" and not gpus:
        raise UsageError("--precision fp16 needs a GPU: give --gpus, or take bf16 or fp32")
    return Machine(gpus, precision or ("fp16" if gpus else "fp32"), threads)


def spelled(value: Any) -> str:
    """Spell a value for command lines, paths and tables."""
    return repr(value) if isinstance(value, float) else str(value)


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as words; True is a flag, and what is False or None is left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", spelled(value)]
    return words


def number_if_it_is_one(value: Any) -> Any:
    """Return a number for text that spells one: YAML takes 2e-5 for text, and 2.0e-5 for a number."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def recipe_type(own: Path) -> Callable[[str], Path]:
    """Return a converter of option values to recipes: a file, or the name of one in the folder ``own``."""

    def convert(text: str) -> Path:
        try:
            _recipe_file(Path(text), own)
        except FileNotFoundError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return Path(text)

    return convert


def _recipe_file(path: Path, own: Path) -> Path:
    file = path if path.is_file() else own / f"{path}.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"there is no recipe {path}: give a file, or one of {', '.join(names_in(own))}")
    return file


def load_yaml(path: Path, own: Path) -> dict[str, Any]:
    """Read the content of a recipe, that of its ``defaults`` included.

    Args:
        path: of the file, or the name of one in ``own``.
        own: the folder of the package's recipes of that sort.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a table of names and values.
    """
    file = _recipe_file(path, own)
    try:
        content = dict(mapping_of(yaml.safe_load(file.read_text(encoding="utf-8")), "its content"))
        names = content.pop("defaults", [])
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("defaults must be a list of names of recipes")
        beside = [file.parent / f"{name}.yaml" for name in names]
        bases = [
            load_yaml(near if near.is_file() and near != file else Path(name), own) for near, name in zip(beside, names)
        ]
        merged: Any = OmegaConf.to_container(OmegaConf.merge(*bases, content)) if bases else content
        return merged
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"the recipe {path}: {error}") from error


def names_in(folder: Path) -> list[str]:
    """Return the names of the recipes in a folder; those that begin with an underscore are only built upon."""
    return sorted(path.stem for path in folder.glob("[!_]*.yaml"))


def mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    """Return a value that must be a table with names.

    Raises:
        ValueError: it is not; the message begins with ``what``.
    """
    if not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise ValueError(f"{what} must be a table of names and values")
    return value


def parse_training(words: Sequence[str]) -> argparse.Namespace:
    """Read the options of fairseq-train by its own parser; raise a ValueError for wrong ones."""
    from fairseq import options  # seconds of imports

    from fairseq_maelm.registration import register

    # fairseq imports a --user-dir once, and this package is imported already.
    register()
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return options.parse_args_and_arch(options.get_training_parser(), list(words))
    except SystemExit as error:
        lines = [line for line in messages.getvalue().splitlines() if "error: " in line] or ["error: wrong options"]
        raise ValueError(f"fairseq-train does not take the options: {lines[-1].partition('error: ')[2]}") from error


def run_or_show(words: list[str], show: bool) -> None:
    """Run a command of fairseq-train in this process, which has imported most of it by now, or write the command."""
    if show:
        sys.stdout.write(f"{shlex.join(words)}\n")
        return
    from fairseq_cli import train  # seconds of imports

    # Of fairseq's use of Hydra, which no user of either can change.
    warnings.filterwarnings("ignore", r"[\s\S]*(hydra|Hydra|'config'|strict flag)", UserWarning)
    parse_training(words[1:])
    # As fairseq-train logs: importing it changes nothing where logging was set up before.
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
        stream=sys.stdout,
        force=True,
    )
    sys.argv = words
    train.cli_main()
