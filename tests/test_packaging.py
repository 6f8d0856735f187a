"""The built package: its declarations, and its most common use without the repository."""

import csv
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from end_to_end import toy
from interop.export.checkpoints import train_vocabulary, write_complete
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LARGEST_WHEEL = 40_000_000
# Next to the encoders that come with the package, if there are any.
STAND_IN = "stand-in"

SHOW_REGISTERED_TASK = """
import inspect, sys
from argparse import Namespace
from fairseq.utils import import_user_module
from fairseq.tasks import TASK_REGISTRY
import_user_module(Namespace(user_dir=sys.argv[1]))
print(inspect.getfile(TASK_REGISTRY["maelm"]))
"""


def run(*command: str, cwd: Path, python_path: str = "") -> str:
    """Run a command without the repository on Python's path, check that it succeeds, and return its output."""
    environment = {**os.environ, "PYTHONPATH": python_path}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def pip(*arguments: str, cwd: Path) -> None:
    """Run pip without network; all build requirements are installed."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--no-index", "--no-deps", cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, so that it has no leftovers of build/, with one more encoder."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    shutil.copytree(ROOT / "fairseq_maelm", sources / "fairseq_maelm", ignore=shutil.ignore_patterns("__pycache__"))
    encoders = sources / "fairseq_maelm" / "pretrained"
    encoders.mkdir(exist_ok=True)
    write_complete(encoders / STAND_IN, train_vocabulary(folder / "vocabulary"))
    shutil.rmtree(encoders / "run")
    for name in ["setup.py", "pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, sources / name)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(sources), cwd=folder)
    (built,) = folder.glob("fairseq_maelm-*.whl")
    return built


def metadata_of(wheel: Path) -> Message:
    """Return what the wheel declares, and its page as the payload."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode("utf-8"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> list[Requirement]:
    """The wheel's declared requirements."""
    return [Requirement(text) for text in metadata_of(wheel).get_all("Requires-Dist", [])]


def test_the_page_has_only_links_that_lead_somewhere(wheel: Path) -> None:
    page = metadata_of(wheel).get_payload()
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert len(links) > 5 and page.startswith("# fairseq_maelm\n")
    assert all(re.match(r"https://|#", link) for link in links), links


def test_wheel_holds_the_whole_package_and_only_it(wheel: Path) -> None:
    patterns = ("*.py", "*.yaml", "*.md", "py.typed")
    files = [path for pattern in patterns for path in (ROOT / "fairseq_maelm").rglob(pattern)]
    sources = {path.relative_to(ROOT).as_posix() for path in files}
    assert {"fairseq_maelm/recipes/finetuning/RTE.yaml", "fairseq_maelm/recipes/pretraining/base.yaml"} < sources
    sources |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "fairseq_maelm" / "pretrained").glob("*/*")}
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    own = f"fairseq_maelm/pretrained/{STAND_IN}/"
    assert {name for name in packed if not (".dist-info/" in name or name.startswith(own))} == sources
    assert {f"{own}{name}" for name in ("model.safetensors", "checkpoint.json", "dict.txt", "SHA256SUMS")} < packed
    assert wheel.stat().st_size < LARGEST_WHEEL
    assert any(name.endswith("LICENSE") for name in packed)


def test_setup_script_installs_what_setup_py_accepts(metadata: list[Requirement]) -> None:
    """Otherwise the package would reject an environment that the script has made."""
    texts = [(ROOT / "scripts" / name).read_text(encoding="utf-8") for name in ("setup.sh", "constraints.txt")]
    pins = re.findall(r"\b(fairseq-fixed|torch)==([\d.]+)", "".join(texts))
    assert {name for name, _ in pins} == {"fairseq-fixed", "torch"}
    accepted = {item.name: item.specifier for item in metadata if item.name in {"fairseq-fixed", "torch"}}
    for name, version in pins:
        assert accepted[name].contains(version), f"scripts/setup.sh installs {name} {version}"


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(folder), str(wheel), cwd=folder)
    return folder


@pytest.mark.slow
def test_wheel_is_a_working_plugin_elsewhere(site: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fairseq_maelm.cli", "user-dir"]
    user_dir = run(*words, cwd=tmp_path, python_path=str(site)).strip()
    assert Path(user_dir) == site / "fairseq_maelm"
    # fairseq itself finds the package through this folder alone.
    task_file = run(sys.executable, "-c", SHOW_REGISTERED_TASK, user_dir, cwd=tmp_path).strip()
    assert Path(task_file.splitlines()[-1]).is_relative_to(site)


@pytest.mark.slow
def test_an_encoder_of_the_wheel_is_opened_by_its_name(site: Path, tmp_path: Path) -> None:
    def maelm(words: str) -> str:
        return toy.run(["maelm", *words.split()], cwd=tmp_path, environment={"PYTHONPATH": str(site)}, verbose=False)

    assert len(maelm(f"fill --checkpoint {STAND_IN} --device cpu The_<mask>_is_old.").splitlines()) > 3
    with open(tmp_path / "train.csv", "w", newline="", encoding="utf-8") as file:
        rows = [[f"the {word} is {word}", word] for word in ("old", "new") * 8]
        csv.writer(file).writerows([["review", "topic"], *rows])
    maelm(f"prepare sentences --train train.csv --vocabulary {STAND_IN} --output task --text review --label topic")
    maelm(f"finetune task --checkpoint {STAND_IN} --output tuned --gpus 0 --epochs 1 --batch-size 8")
    log = (tmp_path / "tuned" / "training.log").read_text(encoding="utf-8")
    assert f"pretrained/{STAND_IN}/checkpoint.json" in log
    assert (tmp_path / "tuned" / "checkpoint_best.pt").is_file()
