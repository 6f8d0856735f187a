"""The command line of fairseq-train: options as words, and the configuration that fairseq makes of them."""

import argparse
import contextlib
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_maelm.options import USER_DIR, UsageError, given_twice

# The sections of fairseq's configuration that hold what commands set.
_SECTIONS = ("common", "checkpoint", "optimization", "dataset", "lr_scheduler", "distributed_training", "task", "model")


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


def configuration_of(words: Sequence[str]) -> Any:
    """Return fairseq-train's configuration for the given options; raise a ValueError if an option is wrong."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # takes seconds

    # Warnings about fairseq's use of Hydra, which users cannot change.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_namespace_to_omegaconf(parse_training(words))


def parsed_command(words: Sequence[str], more: Sequence[str], owned: Mapping[str, str]) -> Any:
    """Return the configuration of a command whose own ``words`` are followed by ``more``, the user's after ``--``.

    Options that are given twice are refused, and those that ``owned`` lists as decided by an option of the command.
    """
    if problem := repeated_option(more):
        raise UsageError(f"after --, {problem}")
    configuration = configuration_of([*words[1:], *more])
    if more and (name := overridden(configuration_of(words[1:]), configuration, owned)):
        raise UsageError(f"give {owned[name]} instead of --{name} after --: the command itself uses this setting")
    return configuration


def set_options(configuration: Any, options: Mapping[str, Any]) -> None:
    """Set options in fairseq's configuration, as if they stood in the command of which it was made."""
    for name, value in options.items():
        if value is None or value is False:
            continue
        option = name.replace("-", "_")
        having = [section for section in configuration.values() if OmegaConf.is_config(section) and option in section]
        if not having:
            raise ValueError(f"fairseq-train does not accept the options: unrecognized arguments: --{name} {value}")
        for section in having:
            section[option] = value
    # fairseq validates with as many examples, unless it is told otherwise.
    if "batch-size" in options and configuration.dataset.batch_size_valid is None:
        configuration.dataset.batch_size_valid = configuration.dataset.batch_size


def repeated_option(words: Sequence[str]) -> str:
    """Return a message about the first option of fairseq-train that is given twice, "" if none is."""
    from fairseq import options  # takes seconds

    return given_twice(words, options.get_training_parser()._option_string_actions) if words else ""


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
        reason = lines[-1].partition("error: ")[2]
        raise ValueError(f"fairseq-train does not accept the options: {reason}{_choices_of(reason)}") from error


def _choices_of(reason: str) -> str:
    """Say to which optimizers or learning-rate schedules unrecognized arguments belong, and how to omit them."""
    from fairseq.registry import REGISTRIES

    names = [word[2:] for word in reason.split() if word.startswith("--")] if "unrecognized arg" in reason else []
    for kind in ("lr_scheduler", "optimizer"):
        classes = REGISTRIES[kind]["dataclass_registry"]
        declared = {each: {field.name for field in fields(options)} for each, options in classes.items()}
        own = [name for name in names if any(name.replace("-", "_") in options for options in declared.values())]
        if own:
            having = sorted(each for each, options in declared.items() if own[0].replace("-", "_") in options)
            omit = " ".join(f"{name}=none" for name in own)
            option = kind.replace("_", "-")
            return f" (of --{option} {', '.join(having)}). To omit those of a recipe of maelm pretrain: --set {omit}"
    return ""
