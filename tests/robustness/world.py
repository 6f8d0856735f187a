"""A small world of good files: prepared folders and a checkpoint of each kind, made once in a session."""

import contextlib
import io
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from interop.export.checkpoints import write_checkpoint
from interop.export.texts import LINES
from support import logging_kept

from fairseq_maelm import cli
from fairseq_maelm.models.hub import MaelmHubInterface, load

SENTENCES = "".join(f"{line}\t{'abc'[row % 3]}\n" for row, line in enumerate(LINES))
PAIRS = "".join(f"{line}\t{line}\t{'abc'[row % 3]}\n" for row, line in enumerate(LINES))
TAGS = "s,y\n" + "".join(f"A house {row}.,{('a;b', '', 'b;c', 'a')[row % 4]}\n" for row in range(12))
WORDS = "The O\nold B-X\nhouse I-X\nby O\nthe O\nriver B-Y\nhas I-Y\n\n" * 8
CONTEXT = "The old house by the river has three windows and a green door; nobody lives there."
QUESTIONS = [
    {"id": "a", "question": "What has a door?", "answers": [{"text": "house", "answer_start": 8}]},
    {"id": "b", "question": "Who lives there?", "answers": [], "is_impossible": True},
]
SQUAD = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": QUESTIONS}]}]}
# Folders, and the commands that make them.
PREPARED = {
    "sentences": "prepare sentences --train {sentences.tsv} --valid {sentences.tsv}",
    "tags": "prepare sentences --train {tags.csv} --valid {tags.csv} --text s --label y --label-separator ';'",
    "tagging": "prepare tagging --train {words.conll} --valid {words.conll}",
    "squad": "prepare squad --train {squad.json} --valid {squad.json}",
}
_RTE = "index\tsentence1\tsentence2\tlabel\n" + "".join(
    f"{row}\t{line}\tA door.\t{('entailment', 'not_entailment')[row % 2]}\n" for row, line in enumerate(LINES)
)
PROMPT = {"template": "*cls**sent_0*_It_was*mask*.*sep+*", "label_words": {"a": "old", "b": "green", "c": "river"}}
PAIR_PROMPT = {**PROMPT, "template": "*cls**sent_0*?*mask*,*+sentl_1**sep+*"}


class Answer(Exception):
    """What a command ended with, in place of SystemExit: its status and all that it wrote to standard error."""

    def __init__(self, status: Any, error: str) -> None:
        super().__init__(error)
        self.status, self.error = status, error


def call(*words: Any) -> str:
    """Run ``maelm`` in this process, as the program would, and return its standard output; raise Answer if it fails."""
    output, error = io.StringIO(), io.StringIO()
    with logging_kept(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        try:
            cli.main([str(word) for word in words])
        except SystemExit as exit:
            # As the interpreter does with a message.
            status, line = (1, f"{exit.code}\n") if isinstance(exit.code, str) else (exit.code, "")
            if status:
                raise Answer(status, error.getvalue() + line) from exit
    return output.getvalue()


class World:
    """A folder in which every path below is good; ``words`` puts these paths into a command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hubs: dict[str, MaelmHubInterface] = {}
        for name, text in {
            "text.txt": "\n".join(LINES), "documents.txt": "\n\n".join(LINES * 3), "sentences.tsv": SENTENCES,
            "pairs.tsv": PAIRS, "twice.csv": "s,s,t\na,b,c\n", "semicolons.csv": "s;t\na;b\n",
            "tags.csv": TAGS, "tags_bad.csv": "s,y\nA house.,a\nA door.,b;d\n", "tags_none.csv": "s,y\nA house.,\n",
            "tags_twice.csv": "s,y\nA house.,a;b;a\n", "tags.jsonl": '{"s": "A house.", "y": ["a;b", "c"]}\n',
            "tree.conllu": "1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n",
            "records.jsonl": '{"text": "A house."}\n{"text": null}\n{"text": "A door."}\n',
            "header.tsv": "sentence\tlabel\nA house.\ta\nA door.\tb\n",
            "ignored.tsv": f"{SENTENCES}The old house\t-100\n", "ignored.conll": "The DET\nold -100\n",
            "words.conll": WORDS, "squad.json": json.dumps(SQUAD),
            "predictions.json": json.dumps({"a": "house", "b": "old"}), "odds.json": json.dumps({"a": -3.0, "b": 4.0}),
            "prompt.json": json.dumps(PROMPT), "pair_prompt.json": json.dumps(PAIR_PROMPT),
            "glue/RTE/train.tsv": _RTE, "glue/RTE/dev.tsv": _RTE,
        }.items():  # fmt: skip
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        self.run("prepare corpus {documents.txt} --output {data} --vocabulary-size 600 --workers 1 --valid-documents 8")
        self._checkpoint("pretrained", {})
        for folder, line in PREPARED.items():
            self.run(f"{line} --vocabulary {{data}} --output {{{folder}}}")
        for name, texts in (("classifier", 1), ("pair_classifier", 2)):
            task = {"_name": "maelm_sentences", "data": "x", "texts": texts}
            self._checkpoint(name, task, "sentence_classification_head")
        task = {"_name": "maelm_sentences", "data": "x", "label_separator": ";"}
        self._checkpoint("tagged", task, "sentence_classification_head")
        self._checkpoint("tagger", {"_name": "maelm_tagging", "data": "x", "window_overlap": 4}, "tagging_head")
        short = {"max_length": 64, "doc_stride": 16, "max_question_length": 16}
        self._checkpoint("reader", {"_name": "maelm_squad", "data": "x", **short}, "span_head")
        self.run("export --checkpoint {pretrained} --vocabulary {data} --output {hf} --format maelm")

    def _checkpoint(self, name: str, task: dict[str, Any], *heads: str) -> None:
        write_checkpoint(self.folder / f"{name}.pt", self.folder / "data", task, heads, scale=0.1)

    def path(self, name: str) -> Path:
        """The path that a name stands for: those of checkpoints leave their ending out."""
        file = self.folder / f"{name}.pt"
        return file if file.exists() else self.folder / ("." if name == "folder" else name)

    def words(self, line: str) -> list[str]:
        """Split a command line and fill in the paths of names in braces."""
        return [self._filled(word) for word in shlex.split(line)]

    def _filled(self, word: str) -> str:
        while "{" in word:
            before, _, rest = word.partition("{")
            name, _, after = rest.partition("}")
            word = f"{before}{self.path(name)}{after}"
        return word

    def run(self, line: str) -> str:
        """Run a command line; see ``call``."""
        return call(*self.words(line))

    def hub(self, name: str, **overrides: Any) -> MaelmHubInterface:
        """Open a checkpoint; without overrides once."""
        path, data = self.path(name), self.folder / {"classifier": "sentences", "reader": "squad"}.get(name, "data")
        if name not in self._hubs or overrides:
            hub = load(str(path.parent), path.name, str(data), **overrides)
            return hub if overrides else self._hubs.setdefault(name, hub)
        return self._hubs[name]

    def remove_new(self) -> None:
        """Remove what a command wrote to ``new``, and what it keeps next to it."""
        for path in self.folder.glob("*new*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def listing(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file."""
        return {
            path.removeprefix(f"{self.folder}{os.sep}"): (state.st_size, state.st_mtime_ns)
            for folder, _, names in os.walk(self.folder)
            for path in (os.path.join(folder, name) for name in names if name != ".checked.json")
            if os.path.isfile(path) and (state := os.stat(path))
        }
