"""The few-shot splits: the order of numpy's legacy generator, and the effect of what was shuffled before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_maelm.studies.plan import import_file

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "prompting" / "few_shot_splits.py"
script = import_file(SCRIPT)
SEEDS, few_shot_splits, group_of, md5_of = script.SEEDS, script.few_shot_splits, script.group_of, script.md5_of


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


def test_groups():
    assert group_of("STS-B", "0\ta\tb\t2.499\n") == "0"
    assert group_of("STS-B", "0\ta\tb\t2.500\n") == "1"
    assert group_of("MRPC", "1\t7\t8\ta\tb\n") == "1"
    assert group_of("CoLA", "gj04\t0\t*\ta\n") == "0"
    for task, line in (("CoLA", "word\n"), ("STS-B", "0\ta\tb\n")):
        with pytest.raises(ValueError, match=f"is not a line of {task}"):
            group_of(task, line)


def test_known_sums_are_whole():
    sums = [value for values in script.SUMS.values() for value in values]
    assert len(set(sums)) == len(sums) == 8 * 5 * 2 + 9
    assert script.known_sums("CoLA", 13, 16)[0].startswith("8b3b16bd")
    assert script.known_sums("CoLA", 13, 8) == script.known_sums("CoLA", 14, 16) == (None, None)


def write_glue(folder: Path) -> Path:
    """SST-2 in GLUE's layout."""
    (folder / "SST-2").mkdir(parents=True)
    for split, examples in (("train", 60), ("dev", 20)):
        rows = [f"sentence  {number} \t{number % 2}\n" for number in range(examples)]
        (folder / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    return folder


def test_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: Any) -> None:
        script.main([str(word) for word in words])

    words = [write_glue(tmp_path / "glue"), "--output", tmp_path / "splits"]
    with pytest.raises(ValueError, match="differ from the splits of Gao et al.: SST-2/16-100/train.tsv"):
        call(*words, "--seeds", 100, "--require-checksums")
    assert not (tmp_path / "splits").exists()
    call(*words, "--examples-per-label", 4)
    assert "15 files in" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glue", "splits"]
    raw = (tmp_path / "splits" / "k-shot" / "SST-2" / "4-13" / "train.tsv").read_text().splitlines()
    assert raw[0] == "sentence\tlabel" and sorted(line[-1] for line in raw[1:]) == ["0"] * 4 + ["1"] * 4
    table = (tmp_path / "splits" / "tables" / "SST-2" / "4-13" / "train.tsv").read_text().splitlines()
    assert table == [line.replace(" \t", "\t").replace("  ", " ") for line in raw[1:]]
    assert len((tmp_path / "splits" / "tables" / "SST-2" / "test.tsv").read_text().splitlines()) == 20
    with pytest.raises(FileExistsError, match="exists already"):
        call(*words)
    with pytest.raises(ValueError, match="there is no task's train.tsv"):
        call(tmp_path, "--output", tmp_path / "other")
