"""Output of `maelm predict` for files of words, with or without labels, in any layout, and for plain text."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finetuning.vocabulary import VOCABULARY

from fairseq_maelm.files.conll import Layout
from fairseq_maelm.finetuning.kinds import kinds
from fairseq_maelm.finetuning.predicted import Predicted
from fairseq_maelm.finetuning.tagging import inference
from fairseq_maelm.finetuning.tagging.prepare import TaggingSettings, prepare_tagging
from fairseq_maelm.options import CommandParser

SETTINGS = TaggingSettings(("O", "B-X", "I-X"), "iob2", "iob1", Layout("conll", "-1"))
WORD = "1\ta" + "\t_" * 8


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Predict a file with a model that labels every word B-X."""

    def predicted(name: str, text: str, *options: str, outputs: int = 3) -> Predicted:
        parser = CommandParser()
        kinds()["tagging"].add_options(parser)
        args = parser.parse_args(options)
        args.input, args.batch_size = tmp_path / name, 2
        args.checkpoint = args.vocabulary = tmp_path
        if text:
            args.input.write_text(text)
        heads = SimpleNamespace(state_dict=lambda: {"tagging_head.out_proj.weight": torch.zeros(outputs, 1)})
        model, task = SimpleNamespace(classification_heads=heads), SimpleNamespace(settings=SETTINGS)
        hub: Any = SimpleNamespace(model=model, task=task)
        monkeypatch.setattr(inference, "label_words", lambda _, texts, size: [["B-X"] * len(each) for each in texts])
        return inference.predict_input(hub, args)

    return predicted


@pytest.mark.parametrize(
    ("name", "text", "options", "expected", "f1"),
    [
        ("f.conll", "a O\nb I-X\n\n", "", "a I-X\nb B-X\n\n", 200 / 3),
        ("f.conll", "a O\nb I-X\n", "--keep-labels", "a O I-X\nb I-X B-X\n", 200 / 3),
        ("f.conll", "a\nb\n", "", "a I-X\nb B-X\n", None),
        # Labels of another scheme than that of training's files.
        ("f.conll", "a O\nb X\n", "", "a I-X\nb B-X\n", None),
        ("f.tsv", "I-X\ta\n", "--column 0 --word-column 1", "I-X\ta\n", 100),
        ("f.tsv", "# a\na\tO\n", "--comment-prefix #", "# a\na\tI-X\n", 0),
        ("f", WORD + "\n", "--format conllu --column XPOS", "1\ta\t_\t_\tI-X" + "\t_" * 5 + "\n", None),
        ("f.txt", "Ab, don't.\n\n", "", "Ab/I-X ,/B-X don't/B-X ./B-X\n\n", None),
        # Named as plain text, and labeled as the checkpoint labels; or not.
        ("f.txt", "a O\nb I-X\n", "", "a I-X\nb B-X\n", 200 / 3),
        ("f.txt", "a O\nb Z\n", "", "a/I-X O/B-X\nb/I-X Z/B-X\n", None),
        ("f.txt", "a O\nb Z\n", "--format conll", "a I-X\nb B-X\n", None),
        ("f.txt", "a O\nb O\nc I-Z\n", "", "a I-X\nb B-X\nc B-X\n", 0),
        ("f.tsv", "a\tI-X\nb\t\n", "", "a\tI-X\nb\tB-X\n", None),
        ("f.tsv", "a\tI-X\nb\t\n", "--keep-labels", "a\tI-X\tI-X\nb\t\tB-X\n", None),
    ],
)  # fmt: skip
def test_files(predict: Any, name: str, text: str, options: str, expected: str, f1: float | None) -> None:
    predicted = predict(name, text, *options.split())
    assert predicted.text == expected
    assert (None if predicted.metrics is None else predicted.metrics["f1"]) == (f1 and pytest.approx(f1))


def test_conllu_with_unknown_labels_is_not_prose(predict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, layout=Layout("conllu", "XPOS"))
    monkeypatch.setitem(globals(), "SETTINGS", settings)
    assert predict("stdin.txt", f"# text = a\n{WORD}\n").text == "# text = a\n1\ta\t_\t_\tI-X" + "\t_" * 5 + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(don't) 3.5% \u2014", ["(", "don't", ")", "3.5", "%", "\u2014"]),
        ("\u0939\u093f \u0939\u0948\u0964", ["\u0939\u093f", "\u0939\u0948", "\u0964"]),
        ("cafe\u0301.", ["cafe\u0301", "."]),
        ("a\u2764\ufe0f", ["a", "\u2764\ufe0f"]),
        ("_x_ ...", ["_x_", ".", ".", "."]),
    ],
)  # fmt: skip
def test_combining_marks_stay_with_their_letters(text: str, words: list[str]) -> None:
    assert inference.words_of(text) == words


@pytest.mark.parametrize(
    ("train", "text", "expected"),
    [
        ("\u5317 B-X\n\u4eac I-X\nIBM O\n", "\u5317\u4eac\uff0cIBM\u6709", "\u5317 \u4eac \uff0c IBM \u6709"),
        ("\u5317\u4eac B-X\n\u3002 O\n", "\u5317\u4eac \u6709 \u3002", "\u5317\u4eac \u6709 \u3002"),
        ("\u5317\u4eac B-X\n\u3002 O\n", "a\n\u5317\u4eac\u6709", "f.txt:2 has '\u5317\u4eac\u6709' as one word"),
        ("a B-X\nb O\n", "in \u5317\u4eac.", "in \u5317\u4eac ."),
    ],
)  # fmt: skip
def test_plain_text_is_cut_into_words_like_those_of_training(
    predict: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, train: str, text: str, expected: str
) -> None:
    (tmp_path / "train.conll").write_text(train, encoding="utf-8")
    files = dict.fromkeys(("train", "valid"), tmp_path / "train.conll")
    monkeypatch.setitem(globals(), "SETTINGS", prepare_tagging(VOCABULARY, files, tmp_path / "task", SETTINGS.layout))
    if "has" in expected:
        with pytest.raises(ValueError, match=expected):
            predict("f.txt", text, outputs=len(SETTINGS.labels))
        return
    found = predict("f.txt", text, outputs=len(SETTINGS.labels)).text
    assert [each.rpartition("/")[0] for each in found.split()] == expected.split()
