"""The quickstart's text and task: prose out of docstrings, and gaps of held-out text."""

import json
import sys
from collections import Counter
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
# The example's modules are in its script's folder and in no package.
sys.path.insert(0, str(QUICKSTART))

import texts  # noqa: E402

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


def test_installed_modules_are_this_installations() -> None:
    modules = texts.installed_modules()
    packages = {name.partition(".")[0] for name, _ in modules}
    assert {"ast", "torch", "numpy", "fairseq"} <= packages
    assert "fairseq_maelm" not in packages
    assert not any("tests" in path.parts[-4:-1] for _, path in modules)


def test_documents_are_held_out_whole_by_their_names(tmp_path: Path) -> None:
    documents = [(f"module{number}", (f"first {number}", f"second {number}")) for number in range(400)]
    number, characters = texts.write_text(documents, tmp_path)
    held_out = {name for name, _ in documents if texts.share_of(name) < texts.HELD_OUT}
    written = {split: (tmp_path / f"{split}.txt").read_text(encoding="utf-8") for split in ("train", "valid")}
    assert number == 400 and characters == sum(map(len, written.values())) - 400
    assert 0 < len(held_out) < 30
    for name, paragraphs in documents:
        text = "\n".join(paragraphs) + "\n\n"
        assert (text in written["valid"], text in written["train"]) == (name in held_out, name not in held_out)


def test_a_gap_has_words_on_both_sides_and_comes_once_in_a_piece() -> None:
    paragraph = " ".join(f"w{place}" for place in range(28)) + " the end of the long text goes on and on"
    examples = list(texts.examples_of(paragraph, {"the", "of", "w0", "w5"}))
    # The second piece begins at word 31, whose first three and last three words cannot be missing.
    assert [word for *_, word in examples] == ["w5"]
    before, after, word = examples[0]
    assert " ".join([before, word, after]) == " ".join(paragraph.split()[:31])
    assert list(texts.examples_of("too short the text", {"the"})) == []


def write_paragraphs(folder: Path, train: int, valid: int) -> set[str]:
    """Write text in which two words are frequent, and return the pieces of its vocabulary."""
    for split, count in (("train", train), ("valid", valid)):
        lines = (
            f"{split}{line} starts a {side} x{line} y{line} {side} z{line} ends here now\n"
            for line in range(count)
            for side in ("near", "far")
        )
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    return {"▁near", "▁far", "▁rare"}


def test_task_is_balanced_and_tested_on_held_out_text(tmp_path: Path) -> None:
    task = texts.make_task(tmp_path, write_paragraphs(tmp_path, 300, 20))
    assert set(task) == {"train", "valid"}
    assert texts.write_task(task, tmp_path / "task") == ["far", "near"]
    for split, count in (("train", texts.MOST_EXAMPLES["train"]), ("valid", 20)):
        lines = (tmp_path / "task" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        examples = [tuple(line.split("\t")) for line in lines]
        assert examples == task[split] and len(set(examples)) == len(examples)
        assert Counter(word for *_, word in examples) == {"near": count, "far": count}
        assert all(before.startswith(split) for before, *_ in examples)
        words = [word for *_, word in examples]
        assert words != sorted(words) and words != sorted(words, reverse=True), "one word after the other"
    prompt = json.loads((tmp_path / "task" / "prompt.json").read_text(encoding="utf-8"))
    assert prompt["label_words"] == {"far": "far", "near": "near"}
