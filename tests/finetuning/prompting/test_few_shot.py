"""The few-shot splits: the order of numpy's legacy generator, and the effect of what was shuffled before."""

import re

import numpy as np
import pytest

from fairseq_maelm.finetuning.prompting.checksums import SPLITS, TESTS
from fairseq_maelm.finetuning.prompting.few_shot import SEEDS, few_shot_splits, group_of, known_sums, md5_of
from fairseq_maelm.finetuning.prompting.tables import GLUE_COLUMNS


def lines_of(task, examples=60):
    """Lines with two labels, one twice as frequent as the other."""
    if task == "CoLA":
        return [f"src\t{int(number % 3 == 0)}\t\tsentence {number}\n" for number in range(examples)]
    return [
        f"{number}\tfirst\tsecond\t{('entailment', 'not_entailment')[number % 3 == 0]}\n" for number in range(examples)
    ]


def by_numpy(lines, seeds, keeps_order, per_label, label):
    """What numpy's global generator gives, in the plainest words; the generator's own state is put back."""
    state = np.random.get_state()
    splits, kept = {}, list(lines)
    for seed in seeds:
        np.random.seed(seed)
        shuffled = kept if keeps_order else list(lines)
        np.random.shuffle(shuffled)
        groups = {}
        for line in shuffled:
            groups[label(line)] = [*groups.get(label(line), []), line]
        splits[seed] = (
            [line for group in groups.values() for line in group[:per_label]],
            [line for group in groups.values() for line in group[per_label : 2 * per_label]],
        )
    np.random.set_state(state)
    return splits


@pytest.mark.parametrize(("task", "column"), [("CoLA", 1), ("RTE", 3)])
def test_splits_are_those_of_numpys_generator(task, column):
    lines = lines_of(task)
    expected = by_numpy(lines, SEEDS, task == "CoLA", 4, lambda line: line.strip().split("\t")[column])
    assert {seed: tuple(split) for seed, split in few_shot_splits(task, lines, 4)} == expected


def test_a_split_does_not_depend_on_which_others_are_asked_for():
    for task in ("CoLA", "RTE"):
        lines = lines_of(task)
        everything = dict(few_shot_splits(task, lines, 4, [*SEEDS, 7]))
        for seeds in ([42], [87, 13], [7]):
            assert dict(few_shot_splits(task, lines, 4, seeds)) == {seed: everything[seed] for seed in seeds}


def test_colas_order_goes_on_from_seed_to_seed():
    lines = lines_of("CoLA")
    fresh = by_numpy(lines, [13], False, 4, lambda line: line.split("\t")[1])
    assert dict(few_shot_splits("CoLA", lines, 4, [13]))[13] != fresh[13]


def test_the_process_generator_is_left_alone():
    np.random.seed(5)
    expected = np.random.RandomState(5).rand()
    list(few_shot_splits("RTE", lines_of("RTE"), 4))
    assert np.random.rand() == expected


def test_sets_are_balanced_and_apart(caplog):
    for _, split in few_shot_splits("RTE", lines_of("RTE"), 5):
        for lines in split:
            assert sorted(line.split("\t")[3] for line in lines) == ["entailment\n"] * 5 + ["not_entailment\n"] * 5
        assert not set(split.train) & set(split.dev)
    list(few_shot_splits("RTE", lines_of("RTE"), 11, [13]))
    assert "label 'not_entailment' has only 20 examples for both sets" in caplog.text


def test_groups():
    assert group_of("STS-B", "0\ta\tb\t2.499\n") == "0"
    assert group_of("STS-B", "0\ta\tb\t2.500\n") == "1"
    assert group_of("MRPC", "1\t7\t8\ta\tb\n") == "1"
    assert group_of("CoLA", "gj04\t0\t*\ta\n") == "0"
    for task, line in (("CoLA", "word\n"), ("STS-B", "0\ta\tb\n")):
        with pytest.raises(ValueError, match=f"is no line of {task}"):
            group_of(task, line)


def test_known_sums_are_whole():
    sums = [value for seeds in SPLITS.values() for pair in seeds.values() for value in pair]
    sums += [value for files in TESTS.values() for value in files.values()]
    assert SPLITS.keys() == TESTS.keys() == GLUE_COLUMNS.keys()
    assert all(tuple(seeds) == SEEDS for seeds in SPLITS.values())
    assert len(set(sums)) == len(sums) == 8 * 5 * 2 + 9
    assert all(re.fullmatch(r"[0-9a-f]{32}", value) for value in sums)
    assert known_sums("CoLA", 13, 16) == SPLITS["CoLA"][13]
    assert known_sums("CoLA", 13, 8) is known_sums("CoLA", 14, 16) is None


def test_md5_of_a_file_of_lines():
    # The sum of RFC 1321's test suite for "abc".
    assert md5_of(["a", "bc"]) == "900150983cd24fb0d6963f7d28e17f72"
