"""The runs of a sweep: parts of the grid, names of folders, and the checkpoints that are kept."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.launch.command_line import configuration_of, overridden
from fairseq_maelm.launch.recipes import RESERVED, FineTuningRecipe
from fairseq_maelm.options import USER_DIR, UsageError
from fairseq_maelm.sweep.grid import choose, refuse_searched, settings_of, tidy

SEARCH: dict[str, tuple[Any, ...]] = {"lr": (2e-5, 5e-5), "batch-size": (16, 32), "epochs": (3,), "warm-up": (0.06,)}


def recipe_of(
    task: str, search: dict[str, tuple[Any, ...]], large: dict[str, tuple[Any, ...]] | None = None
) -> FineTuningRecipe:
    """Return a recipe of which only the search matters."""
    return FineTuningRecipe(task=task, search=search, search_large=large, path=f"{task}.yaml")


def test_settings_have_folders_that_do_not_depend_on_the_order_of_a_recipe() -> None:
    found = settings_of(SEARCH)
    assert found == settings_of(dict(reversed(SEARCH.items()))) and len(found) == 4
    first = {"lr": 2e-5, "batch-size": 16, "epochs": 3, "warm-up": 0.06}
    assert next(iter(found.items())) == ("batch-size_16-epochs_3-lr_2e-05-warm-up_0.06", first)
    assert [each["batch-size"] for each in found.values()] == [16, 32, 16, 32]


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


def test_options_for_all_runs_are_none_of_the_grid() -> None:
    refuse_searched(["--dropout", "0.2", "--batch-size-valid=8", "lr"], {"RTE": SEARCH})
    for options in (["--batch-size", "8"], ["--dropout", "0.2", "--lr=1"]):
        with pytest.raises(UsageError, match="would override every value of (batch-size|lr) in the grid"):
            refuse_searched(options, {"RTE": SEARCH})


def test_options_for_all_runs_cannot_change_what_the_sweep_sets() -> None:
    words = ["fairseq-train", "data", "--user-dir", str(USER_DIR), "--task", "maelm_sentences", "--arch", "maelm_tiny"]
    words += ["--seed", "1", "--batch-size", "16", "--lr", "1e-3", "--optimizer", "fused_adamw"]
    before = configuration_of(words[1:])
    assert overridden(before, configuration_of([*words[1:], "--pooler-dropout", "0.2"]), RESERVED) is None
    for option, name in (
        ("--seed", "seed"),
        ("--max-sentences", "batch-size"),
        ("--max-epoch", "max-epoch"),
    ):
        assert overridden(before, configuration_of([*words[1:], option, "7"]), RESERVED) == name


# Checkpoints


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


def left(folder: Path, keep: str) -> list[str]:
    """Tidy, and return the existing checkpoints as model, seed and name."""
    for model in "ab":
        tidy(folder, keep, "RTE", model)
    return [f"{path.parts[-4]}{path.parts[-3]} {path.stem[11:]}" for path in sorted(folder.rglob("*.pt"))]


def test_which_checkpoints_are_kept(folder: Path) -> None:
    assert len(left(folder, "all")) == 12
    assert left(folder, "best") == ["a2 best", "b1 best"]
    assert left(folder, "none") == []


def test_a_command_without_the_option_leaves_the_checkpoints_of_earlier_ones(folder: Path) -> None:
    tidy(folder, "none", "RTE", "a", folder / "runs" / "RTE" / "a" / "2")
    assert len(left(folder, "all")) == 10


def test_what_failed_can_go_on_and_what_diverged_cannot(folder: Path) -> None:
    going, failed, diverged = (folder / "runs" / "RTE" / "a" / seed / "run.json" for seed in "123")
    going.unlink()
    write_json(failed, {"failed": "exit status 1: OSError: disk full"})
    write_json(diverged, {"failed": "diverged: the loss was nan"})
    assert left(folder, "none") == ["a1 best", "a1 last", "a2 best", "a2 last"]
