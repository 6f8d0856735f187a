"""Templates, rendering and cutting, compared with prompts worked out by hand."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN, Prompt
from fairseq_maelm.finetuning.prompting.template import parse_template, render, spell

from .words import prompter_of, shown

SPACE = "\u2581"
SINGLE = ("It is fine.",)
PAIR = ("A dog ran.", "Dogs run.")

FIRST_LIMITED = Prompt("own", "*cls**sent_0**mask*,*+sent_1**sep*", {"0": "no", "1": "yes"}, first_sentence_limit=1)
SAME = (PAIR, "<s> _A _dog _ran . <mask> , _dogs _run . </s>", "<s>A dog ran. <mask>, dogs run.</s>")
FOLLOWS = (PAIR, "<s> _A _dog _ran ? <mask> , _dogs _run . </s>", "<s>A dog ran? <mask>, dogs run.</s>")
RENDERED = {
    "CoLA": (SINGLE, "<s> _It _is _fine . _This _is <mask> . </s>", "<s>It is fine. This is <mask>.</s>"),
    "SST-2": (SINGLE, "<s> _It _is _fine . _It _was <mask> . </s>", "<s>It is fine. It was <mask>.</s>"),
    **dict.fromkeys(("MRPC", "QQP", "STS-B"), SAME),
    **dict.fromkeys(("MNLI", "QNLI", "RTE"), FOLLOWS),
}


@pytest.mark.parametrize("task", BUILT_IN)
def test_the_templates_of_glue(task):
    sentences, pieces, text = RENDERED[task]
    prompt = BUILT_IN[task]
    assert prompt.sentences == len(sentences)
    # "terrible" is of two pieces here: the sequence of one mask is that of "great".
    prompter = prompter_of(prompt, several_pieces=task == "SST-2")
    assert shown(prompter, *sentences) == pieces.replace("_", SPACE)
    assert spell(render(prompt.parts, sentences)) == text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("*cls**mask*:*+sent_0**sep*", "<s> <mask>: it Is.</s>"),
        ("*cls**mask*:*sent_0**sep*", "<s> <mask>:it Is.</s>"),
        ("*cls**sentu_0*_so*mask*", "<s>It Is. so <mask>"),
        ("*cls*They_say_*sentl-_0*!*mask*", "<s>They say it Is! <mask>"),
        ("*cls**sent_0**sep+**sent_1**mask*", "<s>it Is.</s>No <mask>"),
        ("*cls**sent_1*_*sent-_1**mask**sent_0*", "<s>No N <mask>it Is."),
    ],
)
def test_the_signs_of_the_language(template, text):
    sentences = ("it Is.", "No")
    parts = parse_template(template)
    assert (
        parts
        == parse_template(template.replace("*mask*", "<mask>"))
        == parse_template(template.replace("*mask*", "[MASK]"))
    )
    count = 2 if "_1" in template else 1
    assert spell(render(parts, sentences[:count])) == text


def test_white_space_of_a_part_belongs_to_what_follows():
    prompter = prompter_of(Prompt("own", "*cls*It_is_*mask*_today_*sent_0*", {"a": "good", "b": "bad"}))
    assert shown(prompter, " \tfor  us ") == f"<s> {SPACE}It {SPACE}is <mask> {SPACE}today {SPACE}for {SPACE}us"


def test_a_mask_in_the_text_is_text():
    prompter = prompter_of(BUILT_IN["CoLA"])
    assert shown(prompter, "a <mask> b").split().count("<mask>") == 1


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("*cls**sent_0*mask*", "an unpaired asterisk"),
        ("*cls**sent_0*", "has 0 variables *mask*"),
        ("*cls**sent_0**mask**mask*", "has 2 variables *mask*"),
        ("*sent_0**mask*", "must begin with *cls*"),
        ("*cls**mask*", "must have *sent_0*"),
        ("*cls**sent_1**mask*", "must have *sent_0*"),
        ("*cls**sentence**mask*", "unknown variable *sentence*"),
        ("*cls**sent_0**mask**label_0*", "demonstrations are not supported"),
    ],
)
def test_templates_that_are_none_are_explained(template, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_template(template)


def test_another_number_of_sentences_is_refused():
    with pytest.raises(ValueError, match="has 2 sentences, but the example has 1"):
        render(BUILT_IN["MRPC"].parts, SINGLE)


@pytest.mark.parametrize(
    ("prompt", "max_length", "sentences", "expected"),
    [
        # The longest sentence is cut first: five of nine tokens are the template's, and 4 + 3 become 3 + 2.
        (BUILT_IN["MRPC"], 9, ("a b c d", "e f g"), "<s> _a _b _c <mask> , _e _f </s>"),
        (BUILT_IN["CoLA"], 8, ("one two three four five",), "<s> _one _two _This _is <mask> . </s>"),
        (FIRST_LIMITED, None, ("a b c d", "e f g"), "<s> _a <mask> , _e _f _g </s>"),
    ],
)
def test_sentences_lose_their_ends(prompt, max_length, sentences, expected):
    assert shown(prompter_of(prompt, max_length=max_length), *sentences) == expected.replace("_", SPACE)


def test_a_template_that_fills_everything_is_refused():
    with pytest.raises(
        ValueError,
        match="alone takes 6 tokens, which leaves no room for sentences: raise the maximum length, which is 6",
    ):
        prompter_of(BUILT_IN["CoLA"], max_length=6).encode(SINGLE)


@settings(max_examples=60)
@given(
    task=st.sampled_from(sorted(RENDERED)),
    sentences=st.lists(st.text(st.characters(codec="ascii"), max_size=60), min_size=2, max_size=2),
    length=st.integers(10, 40),
)
def test_the_template_and_the_masks_are_never_cut(task, sentences, length):
    prompt = BUILT_IN[task]
    prompter = prompter_of(prompt, several_pieces=True, max_length=length)
    whole = prompter_of(prompt, several_pieces=True, max_length=1000)
    given_sentences, nothing = sentences[: prompt.sentences], [""] * prompt.sentences
    for masks, cut, uncut, bare in zip(
        prompter.mask_counts,
        prompter.encode(given_sentences),
        whole.encode(given_sentences),
        prompter.encode(nothing),
    ):
        names = [prompter.tokenizer.dictionary[token] for token in cut.tolist()]
        assert names.count("<mask>") == masks
        assert len(cut) == (min(length, len(uncut)) if prompt.first_sentence_limit is None else len(cut)) <= length
        # Behind an empty sentence the same mark starts a word.
        left = iter(name.lstrip(SPACE) for name in names)
        template = [prompter.tokenizer.dictionary[token].lstrip(SPACE) for token in bare.tolist()]
        assert all(piece in left for piece in template), "the template's own pieces stand there in order"
