"""What all commands that train have in common: recipes in YAML, options as words, the machine, and the start."""

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

USER_DIR = Path(__file__).resolve().parent

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"fp16": True, "fp16-init-scale": 4, "fp16-scale-window": 128},
}


class Machine(NamedTuple):
    """Where a run is computed.

    Attributes:
        gpus: how many; 0 is the CPU.
        precision: a name of PRECISIONS.
        threads: of a run.
    """

    gpus: int
    precision: str
    threads: int = 1

    def options(self) -> dict[str, Any]:
        """For fairseq-train."""
        device = {"num-workers": 2} if self.gpus else {"cpu": True, "num-workers": 0}
        return {"distributed-world-size": max(1, self.gpus), **device, **PRECISIONS[self.precision]}


def spelled(value: Any) -> str:
    """A value as it stands in command lines, in paths and in tables."""
    return repr(value) if isinstance(value, float) else str(value)


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as words; True is a flag, and what is False or None is left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", spelled(value)]
    return words


def number_if_it_is_one(value: Any) -> Any:
    """A number for text that spells one: YAML takes 2e-5 for text, and 2.0e-5 for a number."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def load_yaml(path: Path, own: Path) -> dict[str, Any]:
    """Read the content of a recipe, that of its ``defaults`` included.

    Args:
        path: of the file, or the name of one in ``own``.
        own: the folder of the package's recipes of that sort.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no table of names and values.
    """
    file = path if path.is_file() else own / f"{path}.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"there is no recipe {path}: give a file, or one of {', '.join(names_in(own))}")
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
    """Return the names of the recipes in a folder; what begins with an underscore is only built upon."""
    return sorted(path.stem for path in folder.glob("[!_]*.yaml"))


def mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    """Return a value that must be a table with names.

    Raises:
        ValueError: it is none; the message says ``what`` it is.
    """
    if not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise ValueError(f"{what} must be a table of names and values")
    return value


def add_machine_arguments(parser: Any) -> None:
    """Declare where a training is computed, and whether it is."""
    parser.add_argument("--gpus", type=int, metavar="N", help="0 is the CPU")
    parser.add_argument("--precision", choices=PRECISIONS, help="fp16 on GPUs, fp32 without")
    parser.add_argument("--dry-run", action="store_true", help="check everything, write the command, train nothing")


def machine_of(args: argparse.Namespace, gpus_by_default: int) -> Machine:
    """Return the machine that the arguments describe.

    Raises:
        ValueError: there is none like it.
    """
    gpus = gpus_by_default if args.gpus is None else args.gpus
    if gpus < 0:
        raise ValueError(f"--gpus must be 0 or more, not {gpus}")
    precision = args.precision or ("fp16" if gpus else "fp32")
    if precision == "fp16" and not gpus:
        raise ValueError("--precision fp16 needs a GPU: take bf16 or fp32")
    return Machine(gpus, precision)


def run_or_show(words: list[str], show: bool) -> None:
    """Run a command of fairseq-train in this process, which has imported most of it by now, or write the command."""
    if show:
        sys.stdout.write(f"{shlex.join(words)}\n")
        return
    from fairseq_cli import train  # seconds of imports

    from fairseq_maelm.registration import register

    # fairseq imports a --user-dir once, and this package is imported already.
    register()
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
