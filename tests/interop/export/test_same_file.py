"""One file through ``maelm predict`` and through the exported folder: equal labels, spans and answers."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.toy import TOPICS, sentence

from fairseq_maelm.cli import main
from fairseq_maelm.files.conll import Layout
from fairseq_maelm.finetuning.squad.task import SquadTaskConfig
from fairseq_maelm.finetuning.tagging.prepare import prepare_tagging
from fairseq_maelm.finetuning.tagging.task import TaggingTaskConfig
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model
from interop.export.checkpoints import MODERN, train_vocabulary, write_checkpoint
from interop.importing import sources
from interop.importing.sources import transformers

# The tokenizers alone differ: all models have the same layers.
FAMILIES: dict[str, Callable[[Path], Path] | None] = {
    "sentencepiece": None,
    "bert": sources.bert,
    "roberta": sources.roberta_folder,
    "modernbert": sources.modernbert_folder,
}
QUESTIONS = ("Who is it?", "Where is it, and when?", "Why?")


@pytest.fixture(scope="module", params=FAMILIES)
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vocabulary")
    source = FAMILIES[request.param]
    return train_vocabulary(place) if source is None else import_model(source(place / "source"), place / "base").folder


def texts() -> list[str]:
    draw = random.Random(3)
    return [sentence(topic, draw) for topic in sorted(TOPICS) for _ in range(5)]


def exported(config: type, vocabulary: Path, data: Path, head: str, folder: Path) -> tuple[Any, Any]:
    """Write a fine-tuned checkpoint with random weights, and open its export."""
    names = ("tokens_per_sample", "window_overlap") if head == "tagging_head" else (
        "max_length", "doc_stride", "max_question_length", "max_answer_length", "n_best", "null_threshold")  # fmt: skip
    options = {name: getattr(config, name) for name in names}
    task = {**options, "_name": {"tagging_head": "maelm_tagging"}.get(head, "maelm_squad"), "data": str(data)}
    sizes = {"max_positions": 512, "scale": 0.25}
    write_checkpoint(folder / "run" / "checkpoint_best.pt", vocabulary, task, (head,), **sizes, **MODERN)
    export(folder / "run" / "checkpoint_best.pt", data, folder / "stock", ExportSettings())
    kind = "TokenClassification" if head == "tagging_head" else "QuestionAnswering"
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder / "stock")
    return transformers.AutoTokenizer.from_pretrained(folder / "stock"), model.eval()


def spans_of(words: list[str], labels: list[str]) -> list[tuple[str, int, int]]:
    """Return the entities of words between single spaces, as transformers groups them."""
    found: list[tuple[str, int, int]] = []
    place, last = 0, "O"
    for word, label in zip(words, labels, strict=True):
        if label == last != "O":
            found[-1] = (label, found[-1][1], place + len(word))
        elif label != "O":
            found.append((label, place, place + len(word)))
        place, last = place + len(word) + 1, label
    return found


def test_words_of_a_tagger(vocabulary: Path, tmp_path: Path) -> None:
    """Each word has its label, in a list of words; and each entity its span, in a plain text."""
    draw, kinds = random.Random(4), ("O", "V", "X", "Y", "Z")
    # transformers takes punctuation for words, or for parts of words.
    sentences = [re.sub("[.,;]", "", text).split() for text in texts()]
    lines = ["".join(f"{word} {draw.choice(kinds)}\n" for word in words) for words in sentences]
    (tmp_path / "words.conll").write_text("\n".join(lines))
    files = dict.fromkeys(("train", "valid"), tmp_path / "words.conll")
    prepare_tagging(vocabulary, files, tmp_path / "task", Layout("conll", "-1"))
    tokenizer, model = exported(TaggingTaskConfig, vocabulary, tmp_path / "task", "tagging_head", tmp_path)
    main(["predict", str(tmp_path / "words.conll"), "--checkpoint", str(tmp_path / "run"), "--vocabulary"]
         + [str(tmp_path / "task"), "--output", str(tmp_path / "predicted"), "--device", "cpu"])  # fmt: skip
    predicted = [
        [line.split()[1] for line in each.splitlines()]
        for each in (tmp_path / "predicted").read_text().strip().split("\n\n")
    ]
    assert len({label for labels in predicted for label in labels}) > 2
    pipeline = transformers.pipeline("ner", model=model, tokenizer=tokenizer, aggregation_strategy="first")
    compared = 0
    for words, labels in zip(sentences, predicted, strict=True):
        batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**batch).logits[0].argmax(dim=-1).tolist()
        of_word = {word: best[place] for place, word in reversed(list(enumerate(batch.word_ids()))) if word is not None}
        assert [model.config.id2label[of_word[word]] for word in range(len(words))] == labels
        if {"\u2581", "\u0120"} & set(batch.tokens()):
            continue  # the pipeline takes a word's mark for a word if it is a token of its own
        text, compared = " ".join(words), compared + 1
        found = [(each["entity_group"], each["start"], each["end"]) for each in pipeline(text)]
        assert found == spans_of(words, labels), text
    assert compared >= 2


def test_answers_to_questions(vocabulary: Path, tmp_path: Path) -> None:
    """Answers have the same characters of the context as those that transformers finds with the tokenizer's offsets."""
    tokenizer, model = exported(SquadTaskConfig, vocabulary, vocabulary, "span_head", tmp_path)
    contexts = [f"{one}  {other}" for one, other in zip(texts(), reversed(texts()))]
    paragraphs = [
        {"context": text, "qas": [{"id": f"{number} {ask}", "question": ask, "answers": []} for ask in QUESTIONS]}
        for number, text in enumerate(contexts)
    ]
    file = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (tmp_path / "dev.json").write_text(json.dumps(file))
    main(["predict", str(tmp_path / "dev.json"), "--checkpoint", str(tmp_path / "run"), "--vocabulary"]
         + [str(vocabulary), "--output", str(tmp_path / "predicted"), "--device", "cpu"])  # fmt: skip
    found = {}
    for number, text in enumerate(contexts):
        for ask in QUESTIONS:
            batch = tokenizer(ask, text, return_tensors="pt", return_offsets_mapping=True)
            offsets = batch.pop("offset_mapping")[0].tolist()
            with torch.no_grad():
                output = model(**batch)
            inside = torch.tensor([part == 1 for part in batch.sequence_ids()])
            start, end = (each[0].masked_fill(~inside, -torch.inf) for each in output.to_tuple()[:2])
            allowed = (inside[:, None] & inside).triu().tril(SquadTaskConfig.max_answer_length - 1)
            scores = (start[:, None] + end).masked_fill(~allowed, -torch.inf)
            first, last = divmod(int(scores.argmax()), len(scores))
            found[f"{number} {ask}"] = text[offsets[first][0] : offsets[last][1]]
    assert found == json.loads((tmp_path / "predicted").read_text())
    assert len({*found.values()}) > 5
