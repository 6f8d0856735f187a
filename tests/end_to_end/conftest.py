"""Data, checkpoints and runs that several end-to-end tests share; each is made once in a process."""

import shutil
from pathlib import Path

import pytest

from end_to_end.small import LAST, OWN_SIZES, cut, narrow
from end_to_end.toy import TINY_TRAINING, run


@pytest.fixture(scope="session")
def data(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 sequences of the toy corpus, and its validation split; 10 batches of 16 make an epoch."""
    folder = cut(toy_data, tmp_path_factory.mktemp("short"), 160)
    for name in ("valid.bin", "valid.idx"):
        shutil.copy(toy_data / name, folder)
    return folder


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a narrow run that made its 14 updates; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("finished")
    run(narrow(data, folder))
    return folder


@pytest.fixture(scope="session")
def pretrained(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a short pretraining, with numbers that are not the architecture's, whose data are gone."""
    folder = tmp_path_factory.mktemp("pretrained")
    shutil.copytree(toy_data, folder / "data")
    words = ["fairseq-train", folder / "data", *TINY_TRAINING, *OWN_SIZES, "--max-update", 40, "--disable-validation"]
    run([*words, "--save-dir", folder / "saved"])
    shutil.rmtree(folder / "data")
    return folder / "saved" / LAST
