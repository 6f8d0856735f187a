"""Files that would cost far more than their size: one line refuses each, in little memory and at once."""

import re
import shutil
from pathlib import Path

import pytest

from robustness.child import Child
from robustness.costly import Costly, configured, costly_files
from robustness.world import Answer, World, call

CASES = list(costly_files())


@pytest.fixture(scope="module")
def complete(world: World) -> World:
    world.run("export --checkpoint {pretrained} --vocabulary {data} --output {complete} --format maelm --complete")
    for line in ("fill 'the <mask>' --checkpoint {complete}", "import {hf} --output {new}"):
        ended = Child(world.words(line), little_memory=True).wait()
        assert ended.status == 0, "the limit leaves enough for a good folder: " + ended.output
        world.remove_new()
    return world


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_costly_files_are_refused(case: Costly, complete: World) -> None:
    bad = complete.folder / "costly"
    case.write(complete, bad)
    try:
        ended = Child(complete.words(case.line.replace("{bad}", "{costly}")), little_memory=True).wait(40)
        assert ended.told, f"{ended.status}: {ended.output[-1500:]}"
        last = ended.output.splitlines()[-1]
        assert re.search(case.expected, last), last
        assert "weights_only" not in ended.output
        assert not (complete.folder / "new").exists() or "pretrain" in case.line
    finally:
        _remove(bad)
        complete.remove_new()


def test_a_kernel_of_the_hub_is_not_loaded(complete: World) -> None:
    """transformers would download it, or say that it needs the package kernels."""
    folder = complete.folder / "costly"
    configured(attn_implementation="someone/kernel", _attn_implementation="someone/kernel")(complete, folder)
    try:
        complete.run("import {costly} --output {new}")
    finally:
        _remove(folder)
        complete.remove_new()


def test_references_in_names_are_only_characters(complete: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAELM_TEST_SECRET", "the secret")
    folder, other = complete.folder / r"x\${y}${common.seed}", "x_${oc.env:MAELM_TEST_SECRET}"
    shutil.copytree(complete.folder / "complete", folder)
    try:
        line = "'the <mask>' --checkpoint"
        plain = complete.run(f"fill {line} {{complete}}")
        assert call("fill", "the <mask>", "--checkpoint", folder) == plain
        shutil.copytree(folder, complete.folder / other)
        shutil.copytree(complete.folder / "data", complete.folder / other, dirs_exist_ok=True)
        for words in (["fill", "the <mask>", "--checkpoint"], ["pretrain", "--output", "new", "--recipe", "tiny"]):
            with pytest.raises(Answer) as caught:
                call(*words, complete.folder / other)
            assert "the secret" not in caught.value.error and "${oc.env" in caught.value.error
    finally:
        _remove(folder)
        _remove(complete.folder / other)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (path.parent / "elsewhere.safetensors").unlink(missing_ok=True)
