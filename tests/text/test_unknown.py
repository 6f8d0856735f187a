"""Texts of which a vocabulary knows too little: every command that encodes text warns, or stops."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairseq_maelm.cli import main
from fairseq_maelm.text.unknown import Encoded, check_known
from fairseq_maelm.text.vocabulary import open_encoder

from .vocabularies import sentencepieces, word_pieces

KEPT = Path(__file__).parents[1] / "end_to_end" / "kept"
DATA = str(KEPT / "data")
# Cyrillic words, each of which is the start of a word and <unk>.
FOREIGN = "старый моряк берёт лодку домой"


def corpus(folder: Path, text: str) -> list[str]:
    (folder / "in.txt").write_text("\n\n".join([text] * 40), encoding="utf-8")
    return [
        "prepare",
        "corpus",
        str(folder / "in.txt"),
        "--vocabulary",
        DATA,
        "--valid-documents",
        "2",
        "--workers",
        "1",
    ]


def sentences(folder: Path, text: str) -> list[str]:
    (folder / "in.tsv").write_text(
        "".join(f"{text}{' ' + text * (n % 5)}\t{'ab'[n % 2]}\n" for n in range(20)), encoding="utf-8"
    )
    return ["prepare", "sentences", "--train", str(folder / "in.tsv"), "--vocabulary", DATA]


def squad(folder: Path, text: str) -> list[str]:
    rows = [{"id": str(n), "context": f"{text} {n}", "question": text} for n in range(9)]
    (folder / "in.json").write_text(json.dumps(rows), encoding="utf-8")
    return ["prepare", "squad", "--test", str(folder / "in.json"), "--vocabulary", DATA]


def tagging(folder: Path, text: str) -> list[str]:
    for name in ("train", "valid"):
        lines = "".join(
            "".join(f"{word} {'AB'[n % 2]}\n" for n, word in enumerate(text.split())) + "\n" for _ in range(9)
        )
        (folder / f"{name}.conll").write_text(lines, encoding="utf-8")
    files = [f"--{name}={folder / name}.conll" for name in ("train", "valid")]
    return ["prepare", "tagging", *files, "--vocabulary", DATA, "--file-scheme", "plain"]


def score(folder: Path, text: str) -> list[str]:
    (folder / "in.txt").write_text(f"{text}\n" * 9, encoding="utf-8")
    return ["score", str(folder / "in.txt"), "--checkpoint", str(KEPT), "--vocabulary", DATA, "--device", "cpu"]


def predict(folder: Path, text: str) -> list[str]:
    (folder / "in.tsv").write_text(f"{text}\n" * 9, encoding="utf-8")
    prompt = {"name": "own", "template": "*cls**sent_0**mask**sep+*", "label_words": {"a": "the", "b": "every"}}
    (folder / "prompt.json").write_text(json.dumps(prompt))
    known = ["--checkpoint", str(KEPT), "--vocabulary", DATA, "--device", "cpu"]
    return ["predict", str(folder / "in.tsv"), "--prompt", str(folder / "prompt.json"), *known]


def extend(folder: Path, text: str) -> list[str]:
    copy = folder / "checkpoint"
    copy.mkdir()
    for path in (KEPT / "checkpoint_last.pt", *(KEPT / "data").glob("*.*")):
        (copy / path.name).symlink_to(path)
    (folder / "in.txt").write_text("\n\n".join([text] * 40), encoding="utf-8")
    return ["extend", str(copy), "--text", str(folder / "in.txt"), "--pieces", "1"]


COMMANDS: list[Callable[[Path, str], list[str]]] = [corpus, sentences, squad, tagging, score, predict]


@pytest.mark.parametrize("command", [*COMMANDS, extend])
def test_commands_stop_at_foreign_text(command: Callable[[Path, str], list[str]], tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit, match=r"the vocabulary does not know .* such as '.*--allow-unknown") as stopped:
        main([*command(tmp_path, FOREIGN), "--output", str(output)])
    assert "in.txt" in str(stopped.value) or "train" in str(stopped.value) or "in." in str(stopped.value)
    assert not output.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_go_on_if_told(command: Callable[[Path, str], list[str]], tmp_path: Path, capsys) -> None:
    main([*command(tmp_path, FOREIGN), "--output", str(tmp_path / "out"), "--allow-unknown"])
    assert (tmp_path / "out").exists()
    assert "the vocabulary does not know" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_known_text_needs_no_warning(command: Callable[[Path, str], list[str]], tmp_path: Path, capsys) -> None:
    main([*command(tmp_path, "Every sailor takes the harbour home."), "--output", str(tmp_path / "out")])
    assert "does not know" not in capsys.readouterr().err


def test_fill_only_warns(capsys) -> None:
    main(["fill", f"{FOREIGN} <mask>", "--checkpoint", str(KEPT), "--vocabulary", DATA, "--device", "cpu"])
    shown = capsys.readouterr()
    assert "mask 1" in shown.out and "such as 'старый'" in shown.err


@pytest.mark.parametrize("make", [sentencepieces, word_pieces])
def test_the_limits(make: Callable[[Path], Path], tmp_path: Path, caplog) -> None:
    encoder = open_encoder(make(tmp_path))

    def check(words: list[str], allowed: bool = False) -> str:
        encoder.encoded = Encoded()
        encoder.encode([" ".join(words)])
        caplog.clear()
        check_known(encoder, "here", allowed)
        return caplog.text

    assert not check(["the"] * 100)
    assert not check(["the"] * 99 + ["жук"])
    assert "'жук'" in check(["the"] * 9 + ["жук"])
    # Few words may all be unknown.
    assert "100.0 % of the 5 tokens" in check(["жук"] * 5)
    with pytest.raises(ValueError, match="here: .*100.0 % of the 99 tokens, such as 'жук'"):
        check(["жук"] * 99)


def test_all_ways_of_encoding_count(tmp_path: Path) -> None:
    encoder = open_encoder(sentencepieces(tmp_path))
    texts = ["the cat", "жук", "the жук"]
    counts = []
    for encode in (encoder.encode, encoder.encode_words, lambda texts: list(map(encoder.encode_with_offsets, texts))):
        encoder.encoded = Encoded()
        encode(texts)
        counts.append(encoder.encoded)
    assert counts[0] == counts[1] == counts[2]
    assert (counts[0].unknown, counts[0].texts) == (2, texts[1:])
    assert counts[0].tokens == sum(np.count_nonzero(ids[:-1] != encoder.space) for ids in encoder.encode(texts))


def test_the_case_that_the_vocabulary_knows_is_named(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.WARNING)
    folder = word_pieces(tmp_path)
    file = folder / "tokenizer.json"
    file.write_text(
        file.read_text("utf-8")
        .replace('"lowercase":true', '"lowercase":false')
        .replace('"lowercase": true', '"lowercase": false')
    )
    encoder = open_encoder(folder)
    encoder.encode(["THE CAT"])
    check_known(encoder, "here", False)
    assert "it knows them in lower case" in caplog.text
