"""The quickstart's text and task: prose out of docstrings, and a task without leaks."""

import json
import sys
from collections import Counter
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
        Document("a", "a.one", (("same text", "other text"),)),
        Document("b", "b.copy", (("same text",), ("other text",))),
        Document("b", "b.more", (("same text", "new text"),)),
    ]
    assert list(texts.without_repetitions(documents)) == [
        documents[0],
        Document("b", "b.more", (("new text",),)),
    ]


def test_installed_modules_are_this_installations() -> None:
    modules = texts.installed_modules()
    sources = Counter(source for source, _, _ in modules)
    assert {"stdlib", "torch", "numpy", "fairseq"} <= sources.keys()
    assert "fairseq_maelm" not in sources
    assert len({(source, name) for source, name, _ in modules}) == len(modules)
    assert not any("tests" in path.parts[-4:-1] for _, _, path in modules)


def test_a_modules_docstrings_are_read_without_importing_it(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""This sentence is in the module docstring."""\nraise SystemExit("imported")\n', encoding="utf-8")
    document = texts.read_module(("library", "library.module", path))
    assert document == Document("library", "library.module", (("This sentence is in the module docstring.",),))


def test_stored_documents_come_back(tmp_path: Path) -> None:
    documents = [Document("a", "a.ü", (("one", "two"), ("three",)))]
    texts.write_documents(documents, tmp_path / "documents.jsonl")
    assert list(texts.read_stored_documents(tmp_path / "documents.jsonl")) == documents


def documents_of(sources: dict[str, int], passages: int = 8) -> list[Document]:
    """As many documents of each source as asked for; every passage has a text of its own."""
    return [
        Document(
            source,
            f"{source}.module{number}",
            tuple(
                (f"text {place} of {number} from {source[::-1]} has quite enough words to be used as example",)
                for place in range(passages)
            ),
        )
        for source, count in sources.items()
        for number in range(count)
    ]


def test_task_is_balanced() -> None:
    documents = documents_of({"alpha": 300, "beta": 500, "gamma": 400, "tiny": 2})
    task = texts.make_task(documents, hide_names=True)
    assert task is not None and task.classes == ("alpha", "beta", "gamma")
    assert set(task.examples) == {"train", "valid", "test"}
    for split, examples in task.examples.items():
        counts = Counter(label for _, label in examples)
        assert set(counts) == set(task.classes)
        assert len(set(counts.values())) == 1
        assert texts.FEWEST_EXAMPLES[split] <= counts["alpha"] <= texts.MOST_EXAMPLES[split]
        assert len({text for text, _ in examples}) == len(examples)
        assert [label for _, label in examples] != sorted(label for _, label in examples), "classes come one by one"


def test_what_is_held_out_is_nowhere_trained_on(tmp_path: Path) -> None:
    documents = documents_of({"alpha": 300, "beta": 500, "other": 3})
    task = texts.make_task(documents, hide_names=True)
    assert task is not None
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    texts.write_pretraining_text(documents, task.classes, train, valid)
    pretraining = {path.stem: set(path.read_text(encoding="utf-8").splitlines()) - {""} for path in (train, valid)}
    labeled = {split: {text for text, _ in examples} for split, examples in task.examples.items()}
    assert labeled["train"] <= pretraining["train"]
    held_out = [pretraining["valid"], labeled["valid"], labeled["test"]]
    for number, found in enumerate(held_out):
        assert found
        assert not found & (pretraining["train"] | labeled["train"])
        assert not any(found & others for others in held_out[number + 1 :])
    # Not only the examples: all text of their documents.
    trained_on = [document for document in documents if document.passages[0][0] in pretraining["train"]]
    assert all(text in pretraining["train"] for document in trained_on for (text,) in document.passages)
    tested_on = [document for document in documents if labeled["test"] & {text for (text,) in document.passages}]
    assert not any(text in pretraining["train"] for document in tested_on for (text,) in document.passages)


def test_place_of_a_document_does_not_depend_on_the_others() -> None:
    few, many = documents_of({"alpha": 50}), documents_of({"alpha": 100, "beta": 100})
    places = {document.name: texts.place_of(document, ("alpha",)) for document in many}
    assert all(texts.place_of(document, ("alpha",)) == places[document.name] for document in few)


def test_documents_outside_the_classes_are_not_held_out_for_the_task() -> None:
    places = {texts.place_of(document, ("other",)) for document in documents_of({"alpha": 300})}
    assert places == {"pretraining_valid", "train"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("uses torch.nn", True),
        ("a PyTorch tensor", True),
        ("np.array of numbers", True),
        ("see numpy_array", True),
        ("a torchlight procession", False),
        ("inputs are numbers", False),
        ("the stdlib is large", False),
    ],
)
def test_paragraphs_that_name_a_class_are_recognized(text: str, named: bool) -> None:
    assert texts.name_filter(["torch", "numpy", "stdlib"])(text) is named


def test_examples_are_long_enough_and_name_no_class() -> None:
    gives_away = texts.name_filter(["torch"])
    passages = (("Names torch here.", "This paragraph has more than ten words in all of it."), ("Too short.",))
    examples = texts.examples_of(Document("torch", "torch.nn", passages), gives_away)
    assert examples == ["This paragraph has more than ten words in all of it."]


@pytest.mark.parametrize("sources", [{"alpha": 300}, {"alpha": 300, "beta": 3}])
def test_no_task_from_too_little(sources: dict[str, int]) -> None:
    assert texts.make_task(documents_of(sources), hide_names=False) is None


def test_text_without_held_out_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few to hold some out.*blank line"):
        texts.write_pretraining_text(documents_of({"a": 1}), (), tmp_path / "train", tmp_path / "valid")


def test_users_files_become_documents_and_passages(tmp_path: Path) -> None:
    sentence = "ten words stand in this line of the users text"
    (tmp_path / "one.txt").write_text("\n".join([sentence] * 120) + "\n\nshort document\n", encoding="utf-8")
    (tmp_path / "two.jsonl").write_text(json.dumps({"text": "a record"}) + "\n", encoding="utf-8")
    documents = list(texts.documents_of_files([tmp_path / "one.txt", tmp_path / "two.jsonl"]))
    assert [document.source for document in documents] == ["one"] * 4 + ["two"]
    assert len({(document.source, document.name) for document in documents}) == 5
    assert [sum(map(len, document.passages)) for document in documents] == [50, 50, 20, 1, 1]
    assert documents[0].passages == ((sentence,) * 5,) * 10
    assert documents[3].passages == (("short document",),)


def test_files_with_one_name_stay_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "text.txt" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("some text\n", encoding="utf-8")
    assert [document.source for document in texts.documents_of_files(paths)] == list(map(str, paths))


def test_tables_hold_an_example_a_line(tmp_path: Path) -> None:
    examples = [("the words\tare red", "b"), ("all\nothers", "a library")]
    paths = texts.write_tables(texts.Task(("a library", "b"), {"train": examples, "test": examples[:1]}), tmp_path)
    assert list(paths) == ["train", "test"]
    assert paths["train"].read_text(encoding="utf-8") == "the words are red\tb\nall others\ta_library\n"
