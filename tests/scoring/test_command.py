"""``maelm score``: files in, scores and accuracies out, interrupted, compared and refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_maelm import MaelmModel
from fairseq_maelm.cli import main
from fairseq_maelm.files import prepared_folder
from fairseq_maelm.scoring import results as command
from fairseq_maelm.scoring.sentence_scores import score

KEPT = Path(__file__).parents[1] / "end_to_end" / "kept"
SENTENCES = [
    "The sailor is old.",
    "A cook bakes the bread.",
    "Every sailor takes the harbour home.",
    "The oven is old.",
]
PAIRS = [
    ("agreement", "morphology", "The sailor is old.", "The sailor are old."),
    ("agreement", "morphology", "The cook is old.", "The cook are old."),
    ("order", "syntax", "Every sailor rows.", "Sailor every rows."),
    # The vocabulary lacks these symbols, so both sentences have the same tokens: a tie.
    ("order", "syntax", "The \u4e00 rows.", "The \u4e8c rows."),
]


def words(output: Path, *more: object) -> list[str]:
    known = ["--checkpoint", KEPT, "--vocabulary", KEPT / "data", "--device", "cpu", "--output", output]
    return ["score", *map(str, [*more, *known])]


def write_pairs(folder: Path, pairs: list[tuple[str, str, str, str]] = PAIRS) -> Path:
    """Write a folder in BLiMP's layout, with a file for each paradigm and files that are not read."""
    folder.mkdir()
    (folder / "README.md").write_text("not read")
    for name in (".DS_Store", "info.json", "meta.csv"):
        (folder / name).write_bytes(bytes(99))
    for number, (paradigm, field, good, bad) in enumerate(pairs):
        record = {"sentence_good": good, "sentence_bad": bad, "field": field, "linguistics_term": f"{field}_term"}
        with (folder / f"{paradigm}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "UID": paradigm, "pairID": str(number)}) + "\n")
    return folder


def rows_of(output: Path) -> list[dict[str, str]]:
    header, *lines = (output / "scores.tsv").read_text(encoding="utf-8").splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def summary_of(capsys: pytest.CaptureFixture[str], given: list[str]) -> dict[str, Any]:
    capsys.readouterr()
    main([*given, "--json"])
    return dict(json.loads(capsys.readouterr().out))


def test_sentences_are_scored_as_by_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, method = tmp_path / "text.txt", "within_word_l2r"
    text.write_text("\n".join([*SENTENCES[:2], "", *SENTENCES[2:]]) + "\n")
    summary = summary_of(capsys, words(tmp_path / "out", text, "--method", method))
    expected = score(MaelmModel.from_pretrained(str(KEPT), "checkpoint_last.pt", str(KEPT / "data")), SENTENCES, method)
    rows = rows_of(tmp_path / "out")
    assert [row["place"] for row in rows] == ["text.txt:1", "text.txt:2", "text.txt:4", "text.txt:5"]
    assert [row["text"] for row in rows] == SENTENCES
    assert [int(row["tokens"]) for row in rows] == [len(each.tokens) for each in expected]
    for name in ("sum", "per_token"):
        found = [float(row[name]) for row in rows]
        np.testing.assert_allclose(found, [getattr(each, name) for each in expected], atol=1e-4)
    tokens = sum(len(each.tokens) for each in expected)
    perplexity = np.exp(-sum(each.sum for each in expected) / tokens)
    assert summary == {"sentences": 4, "tokens": tokens, "pseudo_perplexity": pytest.approx(perplexity, rel=1e-4)}


def test_first_pairs_of_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pairs(tmp_path / "blimp")
    summary = summary_of(capsys, words(tmp_path / "out", folder, "--first", "1"))
    texts = [text for _, _, *pair in (PAIRS[0], PAIRS[2]) for text in pair]
    assert [row["text"] for row in rows_of(tmp_path / "out")] == texts and summary["overall"]["pairs"] == 2
    with pytest.raises(SystemExit):
        main(words(tmp_path / "out", folder, "--first", "2"))
    assert len(rows_of(tmp_path / "out")) == 4


def test_pairs_are_counted_by_paradigm_and_phenomenon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = write_pairs(tmp_path / "blimp"), tmp_path / "out"
    summary = summary_of(capsys, words(output, folder))
    rows = rows_of(output)
    assert [(row["paradigm"], row["side"]) for row in rows] == [
        (paradigm, side) for paradigm, *_ in PAIRS for side in ("good", "bad")
    ]
    assert {row["phenomenon"] for row in rows} == {"morphology_term", "syntax_term"}
    for measure in ("sum", "per_token"):
        values = np.array([float(row[measure]) for row in rows]).reshape(-1, 2)
        credits = (values[:, 0] > values[:, 1]) + 0.5 * (values[:, 0] == values[:, 1])
        assert credits[3] == 0.5
        assert summary["overall"][measure] == credits.mean()
        for group, names in (("paradigms", ("agreement", "order")), ("phenomena", ("morphology_term", "syntax_term"))):
            found = [summary[group][name][measure] for name in names]
            assert found == [credits[:2].mean(), credits[2:].mean()]
    assert summary["overall"]["pairs"] == 4
    main(words(output, folder))
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    percent = f"{100 * summary['overall']['sum']:.1f}"
    # One of four pairs is a tie.
    assert f"with ties counted as right: {100 * (summary['overall']['sum'] + 0.125):.1f} by sum" in shown
    assert [line[:3] for line in lines if line and line[0] == "overall"] == [["overall", "4", percent]]
    names = [line[0] if line[0] != "-" else line[1] for line in lines[2:7]]
    assert names == ["morphology_term", "agreement", "syntax_term", "order", "overall"]


def test_pairs_without_a_name_are_counted_under_that_of_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"sentence_good": "The cook is old.", "sentence_bad": "The cook are old."}
    files = {".pairs.jsonl": record, "pairs.jsonl": {**record, "UID": " "}}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    summary = summary_of(capsys, words(tmp_path / "out", *(tmp_path / name for name in files)))
    assert list(summary["paradigms"]) == list(files)


def test_pairs_in_a_table_are_those_of_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.tsv"
    table.write_text("".join(f"{good}\t{bad}\n" for _, _, good, bad in PAIRS), encoding="utf-8")
    summary = summary_of(capsys, words(tmp_path / "table", table))
    records = summary_of(capsys, words(tmp_path / "records", write_pairs(tmp_path / "blimp")))
    assert {name: each["pairs"] for name, each in summary["paradigms"].items()} == {"mine": 4}
    assert summary["overall"] == records["overall"] and summary["phenomena"] == {}


def test_two_models_are_compared_on_the_same_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pairs(tmp_path / "blimp")
    first = summary_of(capsys, words(tmp_path / "first", folder))
    both = summary_of(
        capsys, words(tmp_path / "second", folder, "--method", "within_word_l2r", "--compare", tmp_path / "first")
    )
    for name in ("sum", "per_token"):
        overall = both["overall"]
        assert overall["other"][name] == first["overall"][name]
        assert overall["difference"][name] == pytest.approx(overall[name] - overall["other"][name])
        low, high = overall["interval"][name]
        assert low <= overall["difference"][name] <= high
    main(words(tmp_path / "second", folder, "--method", "within_word_l2r", "--compare", tmp_path / "first"))
    assert "95 % interval" in capsys.readouterr().out
    other = write_pairs(tmp_path / "other", [*PAIRS[:3], ("order", "syntax", "The cook rows.", "Rows cook the.")])
    with pytest.raises(SystemExit, match="has scores of different sentences"):
        main(words(tmp_path / "third", other, "--compare", tmp_path / "first"))
    assert not (tmp_path / "third").exists()


def test_blocks_are_bounded_by_sentences_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_BLOCK_SENTENCES", 3)
    monkeypatch.setattr(command, "_BLOCK_TOKENS", 10)
    lengths = [2, 2, 2, 2, 9, 12, 3]
    bounds = [(each.start, each.stop) for each in command._blocks(lengths, 0)]
    assert bounds == [(0, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    assert [(each.start, each.stop) for each in command._blocks(lengths, 4)] == bounds[2:]
    assert list(command._blocks(lengths, 7)) == []


def test_a_killed_run_resumes_to_the_same_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_BLOCK_SENTENCES", 2)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES * 2) + "\n")
    main(words(tmp_path / "whole", text))
    likelihoods, calls = command.pseudo_log_likelihoods, []

    def stopped(*args: Any) -> Any:
        calls.append(len(args[1]))
        if len(calls) == 3:
            begun = tmp_path / ".out.unfinished" / "scores.begun"
            with begun.open("a") as file:
                file.write("half a line of a block that was not fin")
            raise KeyboardInterrupt
        return likelihoods(*args)

    monkeypatch.setattr(command, "pseudo_log_likelihoods", stopped)
    with pytest.raises(SystemExit) as caught:
        main(words(tmp_path / "out", text))
    assert caught.value.code == 130
    assert "the same command resumes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="--method was 'original' and is now 'within_word_l2r'"):
        main(words(tmp_path / "out", text, "--method", "within_word_l2r"))
    main(words(tmp_path / "out", text))
    assert calls == [2, 2, 2, 2, 2], "two blocks before the interruption, one in it, two after"
    names = [tmp_path / name / "scores.tsv" for name in ("whole", "out")]
    assert names[0].read_bytes() == names[1].read_bytes()
    # Finished: the same command computes nothing, another one refuses.
    main(words(tmp_path / "out", text))
    assert len(calls) == 5
    text.write_text("Another text.\n")
    with pytest.raises(SystemExit, match="has changed"):
        main(words(tmp_path / "out", text))


def test_killed_at_the_end_and_again_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress of the first run must not stand for the scores of the second."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES) + "\n")

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    for module, name in ((prepared_folder, "_publish"), (command, "pseudo_log_likelihoods")):
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(module, name, stopped)
            main(words(tmp_path / "out", text))
    for name in ("out", "whole"):
        main(words(tmp_path / name, text))
    assert (tmp_path / "out" / "scores.tsv").read_bytes() == (tmp_path / "whole" / "scores.tsv").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("long.txt", b"a cook\n" + b"a cook " * 400 + b"\n", r"long.txt:2: the text has \d+ tokens and the model has"),
        ("one.tsv", b"a\tb\na cook\n", "one.tsv:2: a pair is two sentences with a tab between them"),
        ("half.tsv", b"a cook\t \n", "half.tsv:1: the bad sentence is empty"),
        ("key.jsonl", b'{"sentence_good": "a", "UID": "x"}\n', "key.jsonl:1: a pair needs.*; sentence_bad is missing"),
        ("texts.csv.gz", b"a cook,1\n", "texts.csv.gz is a table: write its texts to a .txt file"),
    ],
)
def test_bad_texts_end_with_one_line_and_leave_nothing(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SystemExit, match=f"maelm score: error: .*{message}"):
        main(words(tmp_path / "out", path))
    assert not (tmp_path / "out").exists()
