"""Readers of files of labeled words, and replacement of the labels."""

import re
from pathlib import Path

import pytest

from fairseq_maelm.files.conll import Layout, read, relabeled

CONLLU = """# newdoc
# text = I don't know
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\tX=1
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
3.1\tknown\tknow\tVERB\tVBN\t_\t_\t_\t4:conj\t_
4\tknow how\tknow\tVERB\tVB\t_\t0\troot\t_\t_

# sent_id = 2
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
"""
CONLL = "-DOCSTART- -X- O O\n\nU.N.  NNP B-NP  I-ORG\n# NN O O\n1\u00a0000 CD O O\n\n\nRome NNP B-NP I-LOC"


def test_conllu(tmp_path: Path) -> None:
    path = tmp_path / "file.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    file = read(path, Layout("conllu", "UPOS"))
    assert [sentence.words for sentence in file.sentences] == [("I", "do", "n't", "know how"), ("#",)]
    assert [sentence.labels for sentence in file.sentences] == [("PRON", "AUX", "PART", "VERB"), ("SYM",)]
    assert file.sentences[0].lines == (3, 5, 6, 8)
    assert read(path, Layout("conllu", "XPOS")).sentences[0].labels == ("PRP", "VBP", "RB", "VB")
    assert "\n".join([*relabeled(file, [s.labels for s in file.sentences], False), ""]) == CONLLU

    changed = "\n".join([*relabeled(file, [["A", "B", "C", "D"], ["E"]], False), ""])
    assert changed == CONLLU.replace("PRON", "A").replace("AUX", "B").replace("PART", "C").replace(
        "4\tknow how\tknow\tVERB", "4\tknow how\tknow\tD"
    ).replace("SYM", "E")
    added = relabeled(file, [["A", "B", "C", "D"], ["E"]], True)
    assert added[2].endswith("\tPredicted=A") and added[4].endswith("\tX=1|Predicted=B")
    assert added[3] == CONLLU.splitlines()[3] and added[6] == CONLLU.splitlines()[6]


def test_columns(tmp_path: Path) -> None:
    path = tmp_path / "file.conll"
    path.write_text(CONLL, encoding="utf-8")
    file = read(path, Layout("conll", "-1"))
    assert [sentence.words for sentence in file.sentences] == [("U.N.", "#", "1\u00a0000"), ("Rome",)]
    assert [sentence.labels for sentence in file.sentences] == [("I-ORG", "O", "O"), ("I-LOC",)]
    assert read(path, Layout("conll", "1")).sentences[0].labels == ("NNP", "NN", "CD")
    assert read(path, Layout("conll", "0", word_column=1)).sentences[1] == (("NNP",), ("Rome",), (8,))
    lines = relabeled(file, [["X", "Y", "Z"], ["W"]], False)
    assert lines == CONLL.replace("I-ORG", "X").replace("NN O O", "NN O Y").replace("CD O O", "CD O Z").replace(
        "I-LOC", "W"
    ).split("\n")
    lines = relabeled(file, [["X", "Y", "Z"], ["W"]], True)
    assert lines[2] == "U.N.  NNP B-NP  I-ORG X" and lines[-1] == "Rome NNP B-NP I-LOC W" and lines[0][0] == "-"


def test_tabs_comments_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "file.tsv"
    path.write_bytes("\ufeff# id 1\r\nNew York\tB-LOC\r\n# id\tO\r\n\r\nx\tO\r\n".encode())
    file = read(path, Layout("conll", "-1", comment_prefix="# id 1"))
    assert [sentence.words for sentence in file.sentences] == [("New York", "# id"), ("x",)]
    assert file.newline == "\r\n"
    assert relabeled(file, [["O", "O"], ["B-X"]], False)[1:] == ["New York\tO", "# id\tO", "", "x\tB-X"]


@pytest.mark.parametrize(
    ("form", "column", "text", "message"),
    [
        ("conllu", "UPOS", "1\tI\tI\tPRON\n", ":1 has 4 columns, but CoNLL-U has 10"),
        ("conllu", "UPOS", "# x\nx\tI" + "\t_" * 8 + "\n", ":2 has the ID 'x'"),
        ("conllu", "UPOS", "1\tI" + "\t_" * 8 + "\n", ":1 has no label in the column UPOS"),
        ("conllu", "UPOS", "1\t" + "\t_" * 8 + "\n", ":1 has an empty word"),
        ("conll", "-1", "a O\nb c O\n", ":2 has 3 columns, but the lines before it have 2"),
        ("conll", "3", "a O\n", ":1 has 2 columns, so there is no label column 3"),
        ("conll", "-1", "a\n", ":1 has 1 column, so there is no label column -1"),
        ("conll", "-1", "\n\n-DOCSTART- O\n", "contains no sentences: check --format"),
        ("conll", "-1", "a O\nb\udcff O\n", "file:2: not valid UTF-8"),
        ("conll", "-1", "a\t \n", ":1 has no label in the column -1"),
    ],
)
def test_wrong_lines_are_named(form: str, column: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(message)):
        read(path, Layout(form, column))
