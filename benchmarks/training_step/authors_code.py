"""Makes the authors' fairseq fork run on today's Python, torch, numpy and hydra, from outside, its files untouched.

It was written for Python 3.8 to 3.10 and hydra 1.0, and its committed extensions are for CPython 3.10. What is put in
place here touches no training step but one line of its log:

* dataclass fields with another dataclass as default, which Python 3.11 refuses unless that class has a hash;
* numpy's old aliases of Python's types; the package six, imported by SQuAD code that pretraining does not reach;
* the two Cython extensions of batching: those of the installed fairseq have the same functions. Without them the fork
  says ``python setup.py build_ext --inplace``;
* options to configuration: hydra 1.1 and later want the overrides written otherwise, omegaconf 2.1 and later objects
  allowed by a flag;
* ``scale_grad_norm``, which its trainer calls in every step and only its half-precision optimizer has.
"""

import argparse
import dataclasses
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

EXTENSIONS = ("data_utils_fast", "token_block_utils_fast")
NUMPY_ALIASES = {"int": int, "float": float, "bool": bool, "object": object}


def installed_fairseq(code: Path) -> Path:
    """Return the folder of the installed package fairseq, which the fork hides; raise a ValueError if there is none."""
    for folder in sys.path:
        candidate = Path(folder or ".").resolve() / "fairseq"
        if candidate.parent != code.resolve() and (candidate / "__init__.py").is_file():
            return candidate
    raise ValueError("the package fairseq is not installed; its extensions are needed to run the authors' code")


def import_fork(code: Path) -> None:
    """Import the fork as ``fairseq``.

    A ValueError says that the folder holds no fairseq with the model ``ae``, or that another fairseq is imported
    already.
    """
    if not (code / "fairseq" / "models" / "ae").is_dir():
        raise ValueError("there is no fairseq/models/ae in --authors-code: give a copy of the authors' repository")
    if "fairseq" in sys.modules:
        raise ValueError("another fairseq is imported already: the authors' code needs a separate process")
    _hash_dataclasses()
    _alias_numpy()
    sys.modules["six"] = _six()
    extensions = installed_fairseq(code) / "data"
    for name in EXTENSIONS:
        _load_extension(extensions, name)
    sys.path.insert(0, str(code))
    import fairseq.data
    from fairseq.optim import FairseqOptimizer

    for name in EXTENSIONS:
        setattr(fairseq.data, name, sys.modules[f"fairseq.data.{name}"])
    # Only full precision lacks it, where nothing has to be scaled.
    FairseqOptimizer.scale_grad_norm = lambda self, norm: norm


def _hash_dataclasses() -> None:
    make = dataclasses.dataclass

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        def decorate(cls: Any) -> Any:
            of_fork = cls.__module__.partition(".")[0] == "fairseq" and "__hash__" not in vars(cls)
            return make(cls, **({"unsafe_hash": True} if of_fork else {}), **options)

        return decorate if cls is None else decorate(cls)

    # Libraries that the fork imports are to get Python's own.
    import hydra  # noqa: F401
    import torch  # noqa: F401

    dataclasses.dataclass = dataclass  # type: ignore[assignment]


def _alias_numpy() -> None:
    import numpy

    for name, kind in NUMPY_ALIASES.items():
        if name not in vars(numpy):
            setattr(numpy, name, kind)


def _six() -> ModuleType:
    module = ModuleType("six")
    module.PY2, module.PY3 = False, True  # type: ignore[attr-defined]
    return module


def _load_extension(folder: Path, name: str) -> None:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.is_file():
            full_name = f"fairseq.data.{name}"
            spec = importlib.util.spec_from_file_location(full_name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[full_name] = module
            return
    raise ValueError(f"{folder} holds no {name} for this Python: install fairseq with its extensions")


def configuration(code: Path, args: argparse.Namespace) -> Any:
    """Return the fork's configuration of a parsed command line, like its ``convert_namespace_to_omegaconf``."""
    import hydra
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.dataclass.utils import _set_legacy_defaults, override_module_args
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY
    from omegaconf import OmegaConf

    overrides, absent = override_module_args(args)
    forced = [f"++{each}" if "." in each.partition("=")[0] else each for each in overrides]
    with hydra.initialize_config_dir(str(code.resolve() / "fairseq" / "config"), version_base="1.1"):
        composed = OmegaConf.to_container(hydra.compose("config", overrides=forced), resolve=True, enum_to_str=True)
    assert isinstance(composed, dict)
    composed.update(dict.fromkeys(absent))
    config = OmegaConf.create(composed, flags={"allow_objects": True})
    registries = {"task": TASK_REGISTRY, "model": ARCH_MODEL_REGISTRY, "criterion": CRITERION_REGISTRY}
    for part, registry in registries.items():
        name = args.arch if part == "model" else getattr(args, part)
        if config[part] is None:
            options = argparse.Namespace(**vars(args))
            _set_legacy_defaults(options, registry[name])
            options._name = name
            config[part] = options
    return config
