"""The grid: every combination once, in an order that can be compared early, and the choice of a part."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.recipe import Recipe
from fairseq_maelm.studies.grid import Run, choose, expand, parse_choice

SEARCH: dict[str, tuple[Any, ...]] = {"lr": (2e-5, 5e-5), "batch-size": (16, 32), "epochs": (3,), "warm-up": (0.06,)}


def recipe_of(task: str, search: dict[str, tuple[Any, ...]], large: dict[str, tuple[Any, ...]] | None = None) -> Recipe:
    """Return a recipe of which only the search matters."""
    return Recipe(Path(f"{task}.yaml"), task, task, "accuracy", ("accuracy",), {}, search, large, {}, {})


def test_the_grid_of_two_models_and_seeds() -> None:
    runs = list(expand("RTE", ["ours", "random"], SEARCH, 2))
    assert len(runs) == 2 * 2 * 2 * 2
    assert [(run.model, run.seed) for run in runs[:4]] == [("ours", 1), ("random", 1), ("ours", 2), ("random", 2)]
    assert [run.setting["batch-size"] for run in runs[::4]] == [16, 32, 16, 32]
    assert str(runs[0]) == "RTE, ours, lr 2e-05, batch-size 16, epochs 3, warm-up 0.06, seed 1"
    assert runs[0].folder.parts == ("RTE", "ours", "batch-size_16-epochs_3-lr_2e-05-warm-up_0.06", "seed_1")


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["lr", "batch-size", "epochs", "warm-up", "dropout"]),
        st.lists(st.one_of(st.integers(1, 99), st.floats(1e-9, 1.0)), min_size=1, max_size=2, unique_by=str),
        min_size=1,
    ),
    st.integers(1, 3),
)
def test_every_run_has_a_folder_of_its_own_and_survives_json(search: dict[str, list[Any]], seeds: int) -> None:
    runs = list(expand("T", ["a", "b"], {name: tuple(values) for name, values in search.items()}, seeds))
    assert len({run.folder for run in runs}) == len(runs)
    for run in runs:
        again = Run(**json.loads(json.dumps(run._asdict())))
        assert again == run and again.folder == run.folder


def test_the_order_of_a_recipe_does_not_change_a_folder() -> None:
    settings_ = {"lr": 2e-5, "epochs": 3}, {"epochs": 3, "lr": 2e-5}
    assert len({Run("T", "a", each, 1).folder for each in settings_}) == 1


def test_a_part_of_the_grid() -> None:
    recipes = [recipe_of("RTE", SEARCH), recipe_of("QNLI", {**SEARCH, "lr": (1e-5, 2e-5)})]
    chosen = choose(recipes, False, dict([parse_choice("lr=2e-5"), parse_choice("batch-size=16,32")]))
    assert chosen["RTE"] == {**SEARCH, "lr": (2e-5,)}
    assert chosen["QNLI"]["lr"] == (2e-5,)
    assert choose(recipes, False, {})["RTE"] == SEARCH


def test_what_large_models_search() -> None:
    large = {**SEARCH, "lr": (7e-6,)}
    assert choose([recipe_of("RTE", SEARCH, large)], True, {})["RTE"]["lr"] == (7e-6,)
    with pytest.raises(ValueError, match="RTE.yaml has no search_large"):
        choose([recipe_of("RTE", SEARCH)], True, {})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("rate=1", "RTE does not search it, only lr, batch-size"),
        ("lr=1e-4", "RTE has none of these values, only 2e-05, 5e-05"),
        ("lr=2e-5,1e-4", "no recipe has the value 0.0001"),
        ("lr", "'lr' is not NAME=VALUE"),
        ("lr=", "'lr=' is not NAME=VALUE"),
        ("=3", "'=3' is not NAME=VALUE"),
    ],
)
def test_parts_that_are_not_there(choice: str, message: str) -> None:
    with pytest.raises((ValueError, argparse.ArgumentTypeError), match=message):
        choose([recipe_of("RTE", SEARCH)], False, dict([parse_choice(choice)]))
