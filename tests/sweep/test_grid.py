"""The runs of a sweep: parts of the grid, names of folders, and the checkpoints that are kept."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.launch.recipes import FineTuningRecipe
from fairseq_maelm.sweep.grid import choose, place_of, tidy

SEARCH: dict[str, tuple[Any, ...]] = {"lr": (2e-5, 5e-5), "batch-size": (16, 32), "epochs": (3,), "warm-up": (0.06,)}


def recipe_of(
    task: str, search: dict[str, tuple[Any, ...]], large: dict[str, tuple[Any, ...]] | None = None
) -> FineTuningRecipe:
    """Return a recipe of which only the search matters."""
    return FineTuningRecipe(task=task, search=search, search_large=large, path=f"{task}.yaml")


def test_folders_do_not_depend_on_the_order_of_a_recipe() -> None:
    setting = {"lr": 2e-5, "batch-size": 16, "epochs": 3, "betas": "(0.9, 1)"}
    place = "runs/RTE/ours/batch-size_16-betas__0.9__1_-epochs_3-lr_2e-05/seed_4/run"
    assert place_of("RTE", "ours", setting, 4) == place_of("RTE", "ours", dict(reversed(setting.items())), 4) == place


def test_a_part_of_the_grid() -> None:
    recipes = [recipe_of("RTE", SEARCH), recipe_of("QNLI", {**SEARCH, "lr": (1e-5, 2e-5)}, {**SEARCH, "lr": (7e-6,)})]
    chosen = choose(recipes, False, {"lr": (2e-5,), "batch-size": (16, 32)})
    assert chosen["RTE"] == {**SEARCH, "lr": (2e-5,)} and chosen["QNLI"]["lr"] == (2e-5,)
    assert choose(recipes[1:], True, {})["QNLI"]["lr"] == (7e-6,)
    for choice, message in (
        ({"rate": (1,)}, "the recipe of RTE searches only lr, batch-size"),
        ({"lr": (1e-4,)}, "RTE has none of these values, only 2e-05, 5e-05"),
        ({"lr": (2e-5, 1e-4)}, "no recipe has the value 0.0001"),
    ):
        with pytest.raises(ValueError, match=message):
            choose(recipes, False, choice)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sweep with three seeds of each of two models, and their checkpoints."""
    runs = {}
    for (model, seed), score in zip([(model, seed) for model in "ab" for seed in "123"], (60, 62, 61, 50, 49, 50)):
        name = f"runs/RTE/{model}/{seed}/run"
        runs[name] = {"task": "RTE", "model": model, "seed": seed}
        # The labels of a task are saved next to its checkpoints.
        labels = tmp_path / f"runs/RTE/{model}/{seed}/checkpoints/label"
        labels.mkdir(parents=True)
        for checkpoint in ("best", "last"):
            (labels.parent / f"checkpoint_{checkpoint}.pt").touch()
        write_json(tmp_path / f"{name}.json", {"score": score, "scores": [score]})
    write_json(tmp_path / "settings.json", {"runs": runs})
    return tmp_path


def left(folder: Path, keep: str, **wanted: str) -> list[str]:
    """Tidy, and return the existing checkpoints as model, seed and name."""
    tidy(folder, keep, **wanted)
    return [f"{path.parts[-4]}{path.parts[-3]} {path.stem[11:]}" for path in sorted(folder.rglob("*.pt"))]


def test_which_checkpoints_are_kept(folder: Path) -> None:
    assert len(left(folder, "all")) == 12
    assert len(left(folder, "none", model="a", seed="2")) == 10, "those of other runs stay"
    assert left(folder, "best") == ["b1 best"], "of equal scores the first; the best of the other model is gone"
    assert left(folder, "none") == []


def test_what_failed_can_go_on_and_what_diverged_cannot(folder: Path) -> None:
    going, failed, diverged = (folder / "runs" / "RTE" / "a" / seed / "run.json" for seed in "123")
    going.unlink()
    write_json(failed, {"failed": "exit status 1: OSError: disk full"})
    write_json(diverged, {"failed": "diverged: the loss was nan"})
    assert left(folder, "none") == ["a1 best", "a1 last", "a2 best", "a2 last"]
