"""Functions shared by all training commands: YAML recipes, command-line options, and the hardware to use."""

import argparse
import contextlib
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from fairseq_maelm.options import USER_DIR, UsageError, number

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"fp16": True, "fp16-init-scale": 4, "fp16-scale-window": 128},
}
# Options of fairseq-train that follow from options of all training commands.
OF_MACHINE = {
    **dict.fromkeys(("distributed-world-size", "cpu"), "--gpus"),
    **dict.fromkeys(("fp16", "bf16", "precision"), "--precision"),
}
# The sections of fairseq's configuration that hold what commands set.
_SECTIONS = ("common", "checkpoint", "optimization", "dataset", "lr_scheduler", "distributed_training", "task", "model")
# With these variables fairseq takes the number of GPUs from torchrun or SLURM.
_OF_TORCHRUN = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
_OF_SLURM = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}


class Machine(NamedTuple):
    """The hardware and precision of a run."""

    gpus: int  # number of GPUs, 0 for the CPU
    precision: str  # one of PRECISIONS
    threads: int = 1  # of the CPU

    def options(self) -> dict[str, Any]:
        """Return the options of fairseq-train for this machine."""
        device = {"num-workers": 2} if self.gpus else {"cpu": True, "num-workers": 0}
        return {"distributed-world-size": max(1, self.gpus), **device, **PRECISIONS[self.precision]}


def add_machine_arguments(parser: Any, gpus: str = "those of the machine") -> None:
    """Declare ``--gpus``, ``--precision`` and ``--dry-run``; ``gpus`` is the help text for the default number."""
    parser.add_argument(
        "--gpus", type=number(int, 0), metavar="N", help=f"number of GPUs, 0 for the CPU (default: {gpus})"
    )
    add_precision(parser)
    add_dry_run(parser, "print the command")


def add_precision(parser: Any) -> None:
    """Declare ``--precision``."""
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="precision of the computation (default: fp16 on GPUs, fp32 on CPUs)"
    )


def add_dry_run(parser: Any, shown: str) -> None:
    """Declare ``--dry-run``."""
    parser.add_argument("--dry-run", action="store_true", help=f"check everything and {shown}, without training")


def count_gpus(asked: int | None, most: int | None = None, only_show: bool = False) -> int:
    """Return the number of GPUs to use: ``asked`` or, if None, all that fairseq would use but at most ``most``.

    If this machine has no GPU and ``only_show`` is true, any number is accepted, for commands meant for other machines.

    Raises:
        UsageError: this machine has fewer GPUs than asked for, and neither torchrun nor SLURM provides other machines;
            or fairseq would use another number of GPUs, that of torchrun or SLURM.
    """
    import torch  # takes seconds

    visible = torch.cuda.device_count()  # respects CUDA_VISIBLE_DEVICES
    launched = _launched(visible)
    if asked is None:
        found = visible if launched is None else launched
        return found if most is None else min(most, found)
    # Otherwise an update would have another size than the recipe's.
    if asked > 1 and launched not in (None, asked):
        raise UsageError(
            f"--gpus {asked}, but fairseq would use {launched}, the number of torchrun or SLURM: give --gpus "
            f"{launched}, or hide GPUs with CUDA_VISIBLE_DEVICES"
        )
    elsewhere = ({"WORLD_SIZE"} | _OF_SLURM) & os.environ.keys()
    if asked > visible and not elsewhere and (visible or not only_show):
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "" if shown is None else f" with CUDA_VISIBLE_DEVICES={shown}"
        raise UsageError(f"--gpus {asked}, but torch finds {visible or 'no GPU'} here{reason}")
    return asked


def _launched(visible: int) -> int | None:
    """Return the number of GPUs that fairseq uses whatever its option says; None if the option decides.

    This is the number of torchrun's processes, or in SLURM, with one task on each node, that of all nodes' GPUs.
    """
    given = os.environ
    if given.keys() >= _OF_TORCHRUN:
        return int(given["WORLD_SIZE"])
    if not visible or not given.keys() & _OF_SLURM or shutil.which("scontrol") is None:
        return None
    nodes = int(given.get("SLURM_NNODES", 1))
    tasks = given.get("SLURM_NTASKS_PER_NODE") or int(given.get("SLURM_NTASKS", nodes)) // nodes
    return nodes * visible if int(tasks) == 1 else None


def machine_of(gpus: int, precision: str | None, threads: int = 1) -> Machine:
    """Return a machine, by default with fp16 on GPUs and fp32 on CPUs; raise a UsageError for fp16 without a GPU."""
    if precision == "fp16" and not gpus:
        raise UsageError("--precision fp16 needs a GPU: give --gpus, or use bf16 or fp32")
    return Machine(gpus, precision or ("fp16" if gpus else "fp32"), threads)


def spelled(value: Any) -> str:
    """Return a value as text for command lines, paths and tables."""
    return repr(value) if isinstance(value, float) else str(value)


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line words; True gives a flag, False and None are omitted."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", spelled(value)]
    return words


def fairseq_train(data: Any, save_dir: Path, options: Mapping[str, Any]) -> list[str]:
    """Return a fairseq-train command; running the same command again resumes the run."""
    return [
        *("fairseq-train", str(data), "--user-dir", str(USER_DIR), "--save-dir", str(save_dir)),
        *words_of(options),
    ]


def number_if_it_is_one(value: Any) -> Any:
    """Convert text that is a number, such as 2e-5, which YAML reads as text; return other values unchanged."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def recipe_type(own: Path) -> Callable[[str], Path]:
    """Return a function that converts an option's value, a path or the name of a recipe in ``own``, to a path."""

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


def load_yaml(path: Path, own: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe, merged with the recipes in its ``defaults``.

    Args:
        path: path of the recipe, or its name in ``own``.
        own: folder of the package's recipes.
        within: files of the recipes whose defaults are being read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a mapping of names to values, or is among its own defaults.
    """
    file = _recipe_file(path, own)
    if file in within:
        raise ValueError(f"the recipe {path} is among its own defaults: remove it there")
    files = (*within, file)
    try:
        content = dict(mapping_of(yaml.safe_load(file.read_text(encoding="utf-8")), "its content"))
        names = content.pop("defaults", [])
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("defaults must be a list of recipe names")
        neighbors = [(file.parent / f"{name}.yaml", Path(name)) for name in names]
        bases = [load_yaml(near if near.is_file() and near != file else name, own, files) for near, name in neighbors]
        merged: Any = OmegaConf.to_container(OmegaConf.merge(*bases, content)) if bases else content
        return merged
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"the recipe {path}: {error}") from error


def names_in(folder: Path) -> list[str]:
    """Return the names of a folder's recipes, except those with a leading underscore, which are bases of others."""
    return sorted(path.stem for path in folder.glob("[!_]*.yaml"))


def mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a dict with names as keys; otherwise raise a ValueError that begins with ``what``."""
    if not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise ValueError(f"{what} must be a mapping of names to values")
    return value


def configuration_of(words: Sequence[str]) -> Any:
    """Return fairseq-train's configuration for the given options; raise a ValueError if an option is wrong."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # takes seconds

    # Warnings about fairseq's use of Hydra, which users cannot change.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_namespace_to_omegaconf(parse_training(words))


def overridden(before: Any, after: Any, names: Iterable[str]) -> str | None:
    """Return the first of the named options that differs between two configurations of fairseq, or None.

    An option may have several names on the command line, so that the configurations are compared.
    """
    for name in names:
        option, sections = ("_name", ("model",)) if name == "arch" else (name.replace("-", "_"), _SECTIONS)
        # Models of fairseq have a Namespace.
        values = ([getattr(each[section], option, None) for section in sections] for each in (before, after))
        if next(values) != next(values):
            return name
    return None


def parse_training(words: Sequence[str]) -> argparse.Namespace:
    """Parse options with fairseq-train's own parser; raise a ValueError if an option is wrong."""
    from fairseq import options  # takes seconds

    from fairseq_maelm.registration import register_names

    reference = next((word for word in words if "${" in word), None)
    if reference is not None:
        raise ValueError(f"fairseq-train would replace ${{...}} in {reference}: rename the folder or file")
    # This package is already imported, so fairseq must not import it again as --user-dir.
    register_names()
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return options.parse_args_and_arch(options.get_training_parser(), list(words))
    except SystemExit as error:
        lines = [line for line in messages.getvalue().splitlines() if "error: " in line] or ["error: wrong options"]
        raise ValueError(f"fairseq-train does not accept the options: {lines[-1].partition('error: ')[2]}") from error
