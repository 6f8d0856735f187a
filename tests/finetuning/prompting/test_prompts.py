"""Descriptions of tasks, and label words."""

import json
import re
from types import SimpleNamespace

import pytest

from fairseq_maelm.finetuning.prompting.inference import find_prompter
from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN, Prompt, find_prompt
from fairseq_maelm.text.tokenizer import ImportedTokenizer

from .words import prompter_of

TEMPLATE = "*cls**sent_0*_It_was*mask*.*sep+*"
OWN = """
template: '*cls**sent_0**mask*,*+sentl_1**sep+*'
label_words:
  0: No
  1: Yes
metrics: [pearson]
bounds: [0, 5]
max_length: 64
"""


def test_yaml_keeps_words_that_it_takes_for_booleans(tmp_path):
    path = tmp_path / "similar.yaml"
    path.write_text(OWN)
    prompt = find_prompt(str(path))
    assert prompt == Prompt(
        "similar", "*cls**sent_0**mask*,*+sentl_1**sep+*", {"0": "No", "1": "Yes"}, ("pearson",), (0.0, 5.0), 64
    )


def test_json_file_and_text_are_the_same(tmp_path):
    content = {"name": "own", "template": TEMPLATE, "label_words": {"bad": "bad", "good": "good"}, "max_length": 40}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(content))
    assert find_prompt(str(path)) == find_prompt(json.dumps(content))


def test_a_prompt_survives_its_text():
    for task, prompt in BUILT_IN.items():
        assert find_prompt(prompt.to_json()) == find_prompt(task) == prompt


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{template: x, label_words: {a: b}, words: 1}", "unknown words"),
        ("{template: x, label_words: [a, b]}", "label_words must map each label to a word"),
        ("{template: '%s', label_words: {a: b, c: ' '}}", "label_words must map at least two labels to a word each"),
        ("{template: '%s', label_words: {a: b, c: d}, metrics: [rouge]}", "must be a selection of accuracy, mcc, f1"),
        ("{template: '%s', label_words: {a: b, c: d}, metrics: [pearson]}", "must be a selection of accuracy, mcc, f1"),
        ("{template: '%s', label_words: {a: b, c: d, e: f}, metrics: [f1]}", "f1 needs two label words, not 3"),
        (
            "{template: '%s', label_words: {a: b, c: d}, metrics: [pearson], bounds: [5, 0]}",
            "bounds in ascending order",
        ),
        ("{template: '%s', label_words: {a: b, c: d}, bounds: [1]}", "bounds cannot be ['1']"),
        ("{template: '%s', label_words: {a: b, c: '${d}'}}", "'${' is not allowed"),
    ],
)
def test_wrong_descriptions_are_explained(content, message, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(content.replace("%s", TEMPLATE))
    with pytest.raises(ValueError, match=re.escape(message)):
        find_prompt(str(path))


def test_words_of_glue_in_the_order_of_the_classes():
    words = {task: list(BUILT_IN[task].label_words.items()) for task in ("SST-2", "MRPC", "RTE")}
    assert words["SST-2"] == [("0", "terrible"), ("1", "great")] and words["MRPC"] == [("0", "No"), ("1", "Yes")]
    assert words["RTE"] == [("not_entailment", "No"), ("entailment", "Yes")]


def test_targets():
    assert BUILT_IN["MNLI"].answers.target("neutral", "t.tsv:1") == 2
    assert BUILT_IN["STS-B"].answers.target("3.8", "t.tsv:1") == 3.8


@pytest.mark.parametrize(
    ("task", "label", "message"),
    [
        ("MNLI", "maybe", "has the label 'maybe', but the known labels are 'contradiction', 'entailment', "),
        ("STS-B", "high", "but the known labels are finite numbers from 0 to 5"),
        ("STS-B", "5.1", "but the known labels are finite numbers from 0 to 5"),
    ],
)
def test_wrong_labels_are_explained(task, label, message):
    with pytest.raises(ValueError, match=f"t.tsv:1.*{message}"):
        BUILT_IN[task].answers.target(label, "t.tsv:1")


# Label words


def words_of(words, **options):
    prompter = prompter_of(Prompt("own", TEMPLATE, words), **options)
    names = [[prompter.tokenizer.dictionary[piece] for piece in pieces] for pieces in prompter.pieces]
    return names, prompter.mask_counts


def test_a_label_word_has_a_space_before_it_and_the_vocabulary_s_case():
    assert words_of({"0": "No", "1": "Yes"}) == ([["\u2581No"], ["\u2581Yes"]], [1])
    assert words_of({"0": "No", "1": "Yes"}, uncased=True) == ([["\u2581no"], ["\u2581yes"]], [1])


def test_label_words_of_several_pieces_are_refused_or_counted():
    words = {"0": "terrible", "1": "great", "2": "wonderful"}
    with pytest.raises(
        ValueError, match="'terrible' is split into \u2581ter rible, 'wonderful' is split into \u2581won der ful"
    ):
        words_of(words)
    names, counts = words_of(words, several_pieces=True)
    assert [len(pieces) for pieces in names] == [2, 1, 3] and counts == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [({"0": "Yes", "1": "yes"}, "two labels have the same word"), ({"0": "\u732b", "1": "yes"}, "vocabulary lacks")],
)
def test_label_words_that_cannot_work_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        words_of(words, uncased=True)


def test_a_vocabulary_that_cannot_spell_parts_of_a_text_is_refused():
    hub = SimpleNamespace(
        tokenizer=ImportedTokenizer.__new__(ImportedTokenizer), model=SimpleNamespace(max_positions=lambda: 512)
    )
    with pytest.raises(ValueError, match=r"the checkpoint has an imported tokenizer\.json"):
        find_prompter(hub, "SST-2")
