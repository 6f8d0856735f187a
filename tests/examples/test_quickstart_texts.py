"""The quickstart's text and task: prose out of docstrings, and a task without leaks."""

import json
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
# The example's modules lie beside its script and are in no package.
sys.path.insert(0, str(QUICKSTART))

import texts  # noqa: E402
from texts import Document  # noqa: E402

NUMPY_STYLE = """Return the sorted copy of
an array, as :func:`numpy.sort` does.

Parameters
----------
values : array_like
    The **values** to be sorted in ``ascending`` order.

.. code-block:: python

    secret = code

    more = secret

.. note:: This holds for finite values only.

See `the manual <https://example.org>`_ for the order of complex numbers [1]_.

>>> sort([2, 1])
secret output

=====  ======
key    secret
=====  ======

Examples of use in older programs::

    secret = sort(x)

The last paragraph comes after the code.
"""


def test_docstring_becomes_prose_without_code_tables_and_markup() -> None:
    assert texts.paragraphs_of(NUMPY_STYLE) == [
        "Return the sorted copy of an array, as numpy.sort does.",
        "values : array_like The values to be sorted in ascending order.",
        "This holds for finite values only.",
        "See the manual for the order of complex numbers.",
        "Examples of use in older programs:",
        "The last paragraph comes after the code.",
    ]


def test_fenced_code_and_section_titles_are_left_out() -> None:
    text = (
        "Args:\n    size (int): number of rows in the table\n\n```python\nsecret = 1\n```\nText after it goes on here."
    )
    assert texts.paragraphs_of(text) == [
        "size (int): number of rows in the table",
        "Text after it goes on here.",
    ]


@pytest.mark.parametrize(
    ("paragraph", "kept"),
    [
        ("one two three four five", True),
        ("one two three four", False),
        ("x = f(a[0], b[1]) + 2 ** 3 - 4 * (5 / 6)", False),
        ("Überprüft natürlich auch Wörter mit Umlauten", True),
    ],
)
def test_only_prose_is_kept(paragraph: str, kept: bool) -> None:
    assert texts.is_prose(paragraph) is kept


def test_docstrings_are_found_in_order_wherever_definitions_stand() -> None:
    source = '''"""Module."""
if True:
    def first():
        """First."""
        def nested():
            """Nested."""
class Second:
    """Second."""
    async def method(self):
        """Method."""
        "no docstring"
try:
    pass
except ValueError:
    class Third:
        """Third."""
not_one = """text"""
'''
    expected = ["Module.", "First.", "Nested.", "Second.", "Method.", "Third."]
    assert texts.docstrings_of(source) == expected


@pytest.mark.parametrize("source", ["def broken(:", "a\0b", "print 'python 2'"])
def test_source_that_does_not_parse_has_no_docstrings(source: str) -> None:
    assert texts.docstrings_of(source) == []


def test_repeated_paragraphs_are_dropped_and_empty_documents_with_them() -> None:
    documents = [
        Document("a.one", ("same text", "other text")),
        Document("b.copy", ("same text", "other text")),
        Document("b.more", ("same text", "new text")),
    ]
    assert list(texts.without_repetitions(documents)) == [documents[0], Document("b.more", ("new text",))]


def test_installed_modules_are_this_installations() -> None:
    modules = texts.installed_modules()
    names = {name.partition(".")[0] for name, _ in modules}
    assert {"argparse", "torch", "numpy", "fairseq"} <= names
    assert "fairseq_maelm" not in names
    assert len({name for name, _ in modules}) == len(modules)
    assert not any("tests" in path.parts[-4:-1] for _, path in modules)


def test_a_modules_docstrings_are_read_without_importing_it(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""This sentence is in the module docstring."""\nraise SystemExit("imported")\n', encoding="utf-8")
    document = texts.read_module(("library.module", path))
    assert document == Document("library.module", ("This sentence is in the module docstring.",))


def documents_of(count: int, paragraphs: int = 8) -> list[Document]:
    """Return documents in which every paragraph has a text of its own."""
    return [
        Document(
            f"module{number}",
            tuple(f"Text t{place} of m{number} has quite enough words for one example." for place in range(paragraphs)),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("sentence", "swapped"),
    [
        ("The only pair swaps here.", {"The pair only swaps here.", "The only swaps pair here."}),
        ("Two words", {None}),
        ("A number 1 has 2 neighbors.", {None}),
        ("He said (very) that that.", {None}),
        ("First is is last.", {None}),
    ],
)
def test_only_words_inside_a_sentence_are_swapped(sentence: str, swapped: set[str | None]) -> None:
    assert texts.swap_words(sentence) in swapped


def test_half_of_the_sentences_of_the_task_are_swapped() -> None:
    documents = documents_of(400)
    task = texts.make_task(documents)
    assert task is not None and set(task) == {"train", "test"}
    written = {text for document in documents for text in document.paragraphs}
    for split, examples in task.items():
        assert texts.FEWEST_EXAMPLES[split] <= len(examples) <= texts.MOST_EXAMPLES[split]
        labels = [label for _, label in examples]
        assert labels.count(texts.SWAPPED) == labels.count(texts.AS_WRITTEN)
        for text, label in examples:
            assert (text in written) == (label == texts.AS_WRITTEN)
        originals = {" ".join(sorted(text.split())) for text, _ in examples}
        assert len(originals) == len(examples), "a sentence is an example once"


def test_what_is_held_out_is_nowhere_trained_on(tmp_path: Path) -> None:
    documents = [*documents_of(400), Document("module_with_a_copy", documents_of(400)[7].paragraphs)]
    task = texts.make_task(documents)
    assert task is not None
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    texts.write_pretraining_text(documents, train, valid)
    pretraining = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (train, valid)}
    # Swaps change the order of words alone.
    words = {name: {" ".join(sorted(line.split())) for line in lines if line} for name, lines in pretraining.items()}
    labeled = {split: {" ".join(sorted(text.split())) for text, _ in examples} for split, examples in task.items()}
    assert labeled["train"] <= words["train"]
    held_out = [words["valid"], labeled["test"]]
    for number, found in enumerate(held_out):
        assert found
        assert not found & (words["train"] | labeled["train"])
        assert not any(found & others for others in held_out[number + 1 :])


def test_place_of_a_document_depends_on_its_name_alone() -> None:
    places = [texts.place_of(document) for document in documents_of(2000)]
    assert places == [texts.place_of(document) for document in documents_of(2000, paragraphs=1)]
    shares = {place: places.count(place) / 2000 for place in places}
    assert shares == pytest.approx({"train": 0.94, "pretraining_valid": 0.02, "test": 0.04}, abs=0.015)


def test_no_task_from_too_little() -> None:
    assert texts.make_task(documents_of(20)) is None


def test_text_without_held_out_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few to hold some out.*blank line"):
        texts.write_pretraining_text(documents_of(1), tmp_path / "train", tmp_path / "valid")


def test_users_files_become_documents(tmp_path: Path) -> None:
    sentence = "ten words stand in this line of the users text"
    (tmp_path / "one.txt").write_text("\n".join([sentence] * 120) + "\n\nshort document\n", encoding="utf-8")
    (tmp_path / "two.jsonl").write_text(json.dumps({"text": "a record"}) + "\n", encoding="utf-8")
    documents = list(texts.documents_of_files([tmp_path / "one.txt", tmp_path / "two.jsonl"]))
    assert [document.name for document in documents] == [
        *(f"{tmp_path}/one.txt/{number}" for number in (1, 2, 3, 4)),
        f"{tmp_path}/two.jsonl/1",
    ]
    assert [len(document.paragraphs) for document in documents] == [50, 50, 20, 1, 1]
    assert documents[3].paragraphs == ("short document",)


def test_tables_hold_an_example_a_line(tmp_path: Path) -> None:
    examples = [("the words are red", "swapped"), ("all others", "as_written")]
    train, test = texts.write_tables({"train": examples, "test": examples[:1]}, tmp_path)
    assert train.read_text(encoding="utf-8") == "the words are red\tswapped\nall others\tas_written\n"
    assert test.read_text(encoding="utf-8") == "the words are red\tswapped\n"


def test_counting_knows_words_and_not_their_order() -> None:
    train = [(f"{word} {filler}", word) for word in ("robin", "anchor") for filler in ("the", "a", "old", "near")]
    assert (
        texts.accuracy_of_counting({"train": train, "test": [("an old robin", "robin"), ("the anchor", "anchor")]})
        == 100
    )
    orders = [("old robin", "as_written"), ("robin old", "swapped")]
    assert texts.accuracy_of_counting({"train": orders * 9, "test": orders}) == 50
