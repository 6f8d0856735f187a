"""The parser class of all commands; options that several commands share; options made from settings classes."""

import argparse
import dataclasses
import difflib
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")

USER_DIR = Path(__file__).resolve().parent  # --user-dir of fairseq's commands
PRECISIONS = ("fp32", "bf16")  # values of --precision, except in training


class UsageError(ValueError):
    """An option has a wrong value, or options contradict each other; the command exits with status 2."""


def refuse_repeated(names: list[str], what: str) -> None:
    """Raise a UsageError if several of ``what``, such as "model", have the same name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(f"several {what}s are named {', '.join(repeated)}: give each {what} its own name")


def by_name(pairs: Iterable[tuple[str, Any]], option_name: str) -> dict[str, Any]:
    """Return the values of NAME=VALUE by name; raise a UsageError if an option gives a name twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option_name} gives {name} twice, as {found[name]} and {value}: give it once")
        found[name] = value
    return found


class CommandParser(argparse.ArgumentParser):
    """A parser with errors in one line, defaults in the help, and no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _DefaultsHelpFormatter, "allow_abbrev": False, **settings})

    def error(self, message: str) -> typing.NoReturn:
        """Print a one-line error to standard error, suggesting the closest valid choice, and exit with status 2."""
        if wrong := re.fullmatch(r"(.*invalid choice: '(.+)') \(choose from (.+)\)", message):
            message += did_you_mean(wrong[2], [choice.strip(" '") for choice in wrong[3].split(",")])
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words after refusing unknown options, so that a misspelled option is not reported as missing."""
        words = sys.argv[1:] if args is None else list(args)
        for name in () if self._subparsers else (word.partition("=")[0] for word in words if " " not in word):
            if name == "--":
                break
            if name.startswith("--") and name not in self._option_string_actions:
                self.error(f"there is no option {name}{did_you_mean(name, self._option_string_actions)}")
        if not self._subparsers and (problem := given_twice(words, self._option_string_actions)):
            self.error(problem)
        return super().parse_known_args(words, namespace)


def given_twice(words: Sequence[str], actions: Mapping[str, argparse.Action]) -> str:
    """Return a message about the first option that is given twice, of which argparse would take the last; "" if none.

    ``words`` are a command line up to "--". An option may have several names and values; other names are options, too.
    """
    values: dict[Any, str] = {}
    for place, word in enumerate(words[: words.index("--")] if "--" in words else words):
        name, equals, value = word.partition("=")
        action = actions.get(name)
        if isinstance(action, (argparse._AppendAction, argparse._CountAction)) or (" " in word and action is None):
            continue
        if not re.match("-[-A-Za-z]", name):
            continue
        takes_none = (action is not None and action.nargs == 0) or place + 1 == len(words)
        shown = value if equals else "" if takes_none or words[place + 1].startswith("--") else words[place + 1]
        if (action or name) in values:
            both = f", with {values[action or name]} and {shown}" if shown else ""
            several = ", with all its values" if action is not None and action.nargs in ("+", "*") else ""
            return f"{name} is given twice{both}: give it once{several}"
        values[action or name] = shown
    return ""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a "did you mean" suffix for an error message, or an empty string if no choice is similar."""
    similar = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


class _DefaultsHelpFormatter(argparse.HelpFormatter):
    """Appends "(default: x)" to the help of every option that has a default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = action.default
        states_default = default not in (None, False, argparse.SUPPRESS) and default != () and default != []
        return f"{text} (default: %(default)s)" if states_default and "(default" not in text else text


# Limits of a number in the declaration of an option -> their words, and the comparison that holds within them.
_LIMITS = {
    "minimum": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "maximum": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def broken_limits(value: float, limits: Mapping[str, float]) -> str:
    """Return what a number should be, such as "at least 1 and below 8"; "" if it is that. NaN is within no limits."""
    if value == value and all(_LIMITS[name][1](value, limit) for name, limit in limits.items()):
        return ""
    return " and ".join(f"{_LIMITS[name][0]} {limit}" for name, limit in limits.items()) or "a number"


def number(kind: type, minimum: float | None = None, **limits: float) -> Callable[[str], Any]:
    """Return a function that converts option values to int or float, and rejects NaN and values outside the limits."""
    if minimum is not None:
        limits = {"minimum": minimum, **limits}

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'an integer' if kind is int else 'a number'}") from None
        if wanted := broken_limits(value, limits):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {value}")
        return value

    return convert


def named(text: str) -> tuple[str, str]:
    """Convert NAME=VALUE to the name and the value."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def existing_path(text: str) -> Path:
    """Convert an option's value to the path of a file or folder that must exist."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no {path}")
    return path


def new_folder(text: str) -> Path:
    """Convert an option's value to the path of an output folder that fairseq can read."""
    if ":" in text:
        raise argparse.ArgumentTypeError(
            f"{text} contains a colon, which fairseq uses to separate folders: choose another path"
        )
    return new_file(text)


def new_file(text: str) -> Path:
    """Convert an option's value to the path of an output, whose nearest existing parent must be a writable folder."""
    path = Path(text)
    above = next((above for above in path.parents if above.exists()), Path())
    if not above.is_dir() or not os.access(above, os.W_OK):
        problem = "does not permit you to write" if above.is_dir() else "is not a folder"
        raise argparse.ArgumentTypeError(f"{above} {problem}, so {path} cannot be written: choose another path")
    return path


def device_name(text: str) -> str:
    """Convert an option's value to the name of a device that torch can use; "auto" is the GPU if there is one."""
    import torch  # takes seconds, which commands without a device must not wait for

    gpus = torch.cuda.device_count()
    if text == "auto":
        return "cuda" if gpus else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise argparse.ArgumentTypeError(f"{text} cannot be used: give cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        found = f"it finds cuda:0 to cuda:{gpus - 1}" if gpus else "it finds no GPU: give cpu"
        raise argparse.ArgumentTypeError(f"torch cannot find {text}; {found}")
    return text


def add_output(parser: Any, text: str, metavar: str = "FOLDER", required: bool = True) -> None:
    """Declare ``--output``, a folder or a file; unless ``required``, it defaults to standard output."""
    default = "" if required else " (default: standard output)"
    kind = new_folder if metavar == "FOLDER" else new_file
    parser.add_argument("--output", required=required, type=kind, metavar=metavar, help=f"{text}{default}")


def add_device(parser: Any) -> None:
    """Declare ``--device``; --help does not import torch, because argparse exits before it converts the default."""
    text = "device to compute on: cpu, cuda or cuda:N (default: cuda if there is a GPU, otherwise cpu)"
    parser.add_argument("--device", type=device_name, default="auto", metavar="DEVICE", help=text)


def add_json(parser: Any) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="write the results as JSON")


def add_allow_unknown(parser: Any) -> None:
    """Declare ``--allow-unknown``; see ``fairseq_maelm.text.unknown``."""
    parser.add_argument(
        "--allow-unknown", action="store_true", help="go on if the vocabulary does not know most of the text"
    )


def add_replace(parser: Any) -> None:
    """Declare ``--replace``."""
    parser.add_argument("--replace", action="store_true", help="rename an existing output instead of refusing to run")


def available_cores() -> int:
    """Return the number of cores that this process may use, which a shared machine may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def option(default: Any = dataclasses.MISSING, *, help: str, **more: Any) -> Any:
    """Declare a dataclass field that is also a command-line option; without ``default`` it is required.

    ``more`` are the limits of a number, ``minimum``, ``maximum``, ``above`` and ``below``; ``type``, ``metavar``,
    ``choices`` and ``nargs`` as in argparse; ``positional``, true for an argument without ``--``; ``group``, the
    option's heading in the help.
    """
    return dataclasses.field(default=default, metadata={"help": help, **more})


def check_options(values: Any, settings: type) -> None:
    """Raise a ValueError if an attribute is outside of the limits or choices with which a dataclass declares it."""
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        limits = {name: field.metadata[name] for name in _LIMITS if name in field.metadata}
        kinds = [*typing.get_args(hints[field.name]), hints[field.name]]
        enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
        choices = [str(each.value) for each in enums[0]] if enums else []
        value = getattr(values, field.name, None) if limits or choices else None
        if value is None:
            continue
        wanted = broken_limits(value, limits) if limits else ""
        if choices and str(value) not in choices:
            wanted = f"one of {', '.join(choices)}"
        if wanted:
            raise ValueError(f"--{field.name.replace('_', '-')} must be {wanted}, not {value}")


def add_settings(parser: argparse.ArgumentParser, settings: type) -> None:
    """Declare an option for each field that ``option`` declares: flags for bool, lists for tuple[X, ...]."""
    hints = typing.get_type_hints(settings)
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        more = dict(field.metadata)
        if "help" not in more:
            continue
        title = more.pop("group", "")
        if title and title not in groups:
            groups[title] = parser.add_argument_group(title)
        (groups[title] if title else parser).add_argument(*_name_and_type(field, hints[field.name], more), **more)


def _name_and_type(field: Any, hint: Any, more: dict[str, Any]) -> list[str]:
    """Add a field's keywords for argparse to ``more``, and return the field's name on the command line."""
    is_positional = more.pop("positional", False)
    limits = {name: more.pop(name) for name in _LIMITS if name in more}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if typing.get_origin(hint) is tuple:
        more.setdefault("nargs", "+")
        hint = typing.get_args(hint)[0]
    if hint is bool:
        more["action"] = "store_true"
    elif hint in (int, float):
        more.setdefault("type", number(hint, **limits))
        more.setdefault("metavar", "N" if hint is int else "X")
    elif hint is not str:
        more.setdefault("type", hint)
    if field.default is not dataclasses.MISSING:
        more["default"] = field.default
    if is_positional:
        return [field.name]
    more["required"] = "default" not in more
    return [f"--{field.name.replace('_', '-')}"]


def settings_of(settings: type[_Settings], args: argparse.Namespace) -> _Settings:
    """Build a settings dataclass from the options of ``add_settings``; raise a UsageError if a value is rejected."""
    names = [field.name for field in dataclasses.fields(settings) if "help" in field.metadata]  # type: ignore[arg-type]
    values = [getattr(args, name) for name in names]
    try:
        return settings(**{name: tuple(x) if isinstance(x, list) else x for name, x in zip(names, values)})
    except ValueError as error:
        raise UsageError(str(error)) from error
