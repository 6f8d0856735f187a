"""All ways to register this package with fairseq, each in a new process."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_maelm
from fairseq_maelm.registration import registering_modules

PACKAGE = Path(fairseq_maelm.__file__).resolve().parent
REGISTERS = {f"register_{kind}" for kind in ("task", "criterion", "model", "model_architecture", "optimizer")}

# Prints the missing names, and whether fairseq is changed.
CHECK = """
import argparse, torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.tasks import TASK_REGISTRY
tasks = {"maelm", "maelm_prompt", "maelm_sentences", "maelm_squad", "maelm_tagging"}
print(
    "missing:", sorted(tasks - set(TASK_REGISTRY)),
    sorted(tasks - set(CRITERION_REGISTRY)),
    sorted({"maelm_tiny", "maelm_base"} - set(ARCH_MODEL_REGISTRY)),
    sorted({"fused_adamw", "muon"} - set(OPTIMIZER_REGISTRY)),
    PathManager.copy.__module__.startswith("fairseq_maelm."),
    argparse.Namespace in torch.serialization.get_safe_globals(),
)
"""
COMPLETE, CHANGED, UNCHANGED = "missing: [] [] [] []", "True True", "False False"

NOTHING_ELSE = """
others = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
assert others == {"fairseq_maelm"}, others
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "changes"),
    [
        ("from fairseq_maelm import MaelmModel\nMaelmModel.from_pretrained('maelm-english-14m-uncased')", UNCHANGED),
        ("from fairseq_maelm import MaelmHubInterface\nimport fairseq_maelm.finetuning.squad.task", UNCHANGED),
        ("import fairseq_maelm.finetuning.squad.inference", CHANGED),
        ("import fairseq_maelm.tasks", CHANGED),
        ("from fairseq_maelm import MaelmModel, register\nregister()", CHANGED),
    ],
)
def test_everything_is_registered_and_fairseq_changed_only_in_its_programs_and_ours(program: str, changes: str) -> None:
    finished = python(f"{program}\n{CHECK}")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == f"{COMPLETE} {changes}"


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("import fairseq_maelm; fairseq_maelm.__version__", ""),
        ("from fairseq_maelm import cli; cli.main(['user-dir'])", f"{PACKAGE}\n"),
        ("from fairseq_maelm import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass", "usage: maelm"),
    ],
)
def test_importing_is_light(program: str, output: str) -> None:
    """Only the package itself and Python's own library are imported."""
    finished = python(f"import sys\nbefore = set(sys.modules)\n{program}\n{NOTHING_ELSE}")
    assert (finished.returncode, finished.stderr) == (0, "") and finished.stdout.startswith(output)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fairseq_maelm.nothing
    assert set(fairseq_maelm.__all__) <= {
        *dir(fairseq_maelm),
        "MaelmHubInterface",
        "MaelmModel",
        "finetune",
        "pretrain",
    }


def names_called(tree: ast.AST) -> set[str]:
    """Return the names of the functions that a file calls."""
    return {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_no_registration_is_overlooked() -> None:
    """Modules are found by their paths, so each module that registers something must have such a path."""
    found = set(registering_modules())
    registering = set()
    for path in PACKAGE.rglob("*.py"):
        if names_called(ast.parse(path.read_text(encoding="utf-8"))) & REGISTERS:
            registering.add(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    assert len(registering) > 8
    assert registering <= found, "these register something where nobody looks for it"
