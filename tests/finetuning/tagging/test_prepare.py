"""From files to the task's folder, to batches, and to metrics of whole sets."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from finetuning.vocabulary import VOCABULARY
from support import logged_metrics
from text.vocabularies import KINDS

from fairseq_maelm.files.conll import Layout
from fairseq_maelm.finetuning.tagging.prepare import (
    TaggedSplit,
    TaggingSettings,
    encode_words,
    prepare_tagging,
    read_settings,
)
from fairseq_maelm.finetuning.tagging.schemes import score
from fairseq_maelm.finetuning.tagging.task import TaggingCriterion, TaggingTask
from fairseq_maelm.finetuning.task_folder import load_split
from fairseq_maelm.tasks.finetuning import NoOptions
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import open_encoder

LAYOUT = Layout("conll", "-1")
# IOB1; the third word is a control character.
TRAIN = "The O\nlighthouse I-PLACE\n\x07 O\n\nsailor I-WHO\ncaptain B-WHO\nrows O\n"
VALID = "captain I-WHO\nrows O\nThe I-PLACE\nharbour I-PLACE\n"


def prepare(folder: Path, train: str = TRAIN, valid: str = VALID, **options: Any) -> TaggingSettings:
    (folder / "train").write_text(train, encoding="utf-8")
    (folder / "valid").write_text(valid, encoding="utf-8")
    files = {split: folder / split for split in ("train", "valid")}
    return prepare_tagging(VOCABULARY, files, folder / "task", LAYOUT, **options)


def split_of(folder: Path, split: str) -> TaggedSplit:
    return TaggedSplit(**load_split(folder / "task", "tagging", split))


def task_of(folder: Path, tokens_per_sample: int = 64, window_overlap: int = 8) -> TaggingTask:
    cfg = SimpleNamespace(data=str(folder), tokens_per_sample=tokens_per_sample, window_overlap=window_overlap, seed=1)
    return TaggingTask.setup_task(cfg)


def test_words_become_pieces_and_entities_the_labels_to_learn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        settings = prepare(tmp_path)
    assert settings == TaggingSettings(("O", "B-PLACE", "B-WHO", "I-PLACE", "I-WHO"), "iob2", "iob1", LAYOUT)
    assert read_settings(tmp_path / "task") == settings
    assert re.search("1 words without a piece in the vocabulary became <unk>; the first: .*train:3", caplog.text)

    train = split_of(tmp_path, "train")
    assert train.word_counts.tolist() == [3, 3]
    assert train.labels.tolist() == [0, 1, 0, 2, 2, 0]
    dictionary = load_dictionary(str(VOCABULARY))
    words = np.split(train.pieces, np.cumsum(train.piece_counts)[:-1])
    texts = ["".join(dictionary[piece] for piece in word) for word in words]
    # The vocabulary is uncased.
    assert texts == ["\u2581the", "\u2581lighthouse", "<unk>", "\u2581sailor", "\u2581captain", "\u2581rows"]


def test_training_scheme_is_an_option(tmp_path: Path) -> None:
    settings = prepare(tmp_path, scheme="iobes")
    labels = [settings.labels[number] for number in split_of(tmp_path, "valid").labels]
    assert labels == ["S-WHO", "O", "B-PLACE", "E-PLACE"]


@pytest.mark.parametrize(
    ("train", "valid", "options", "message"),
    [
        (TRAIN, "a I-DISH\nb O\nc I-TOOL\n", {}, "{}/train does not have: 'I-DISH' (line 1), 'I-TOOL' (line 3)"),
        (TRAIN, "a O\nb B-WHO\n", {}, "valid:2: the label 'B-WHO' must be 'I-WHO' in IOB1"),
        (TRAIN, VALID, {"file_scheme": "iob2"}, "train:2: the label 'I-PLACE' must be 'B-PLACE' in IOB2"),
        ("a O\nb O\n", "a O\n", {}, "train has 1 different labels"),
        ("a B-WHO\nb WHO\n", "a O\n", {}, "('B-WHO'), but also labels of another form: 'WHO' (line 2)"),
        ("a NOUN\nb VERB\n", "a ADJ\nb ADV\na NOUN\n", {}, ": 'ADJ' (line 1), 'ADV' (line 2). Correct them"),
        ("token upos\na NOUN\nb VERB\n", "a NOUN\n", {}, "train:1 looks like a header: its cells name columns"),
    ],
)  # fmt: skip
def test_wrong_labels_are_named(train: str, valid: str, options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message.format(tmp_path))):
        prepare(tmp_path, train, valid, **options)
    assert not (tmp_path / "task").exists()


# A multi-word range, an empty node, words without features, comments.
CONLLU = """# newdoc id = harbour
# sent_id = 1
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tdo\tdo\tAUX\tVB\tMood=Imp|VerbForm=Fin\t3\taux\t3:aux\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t3:advmod\t_
3\trow\trow\tVERB\tVB\tMood=Imp|VerbForm=Fin\t0\troot\t0:root\t_
3.1\tboats\tboat\tNOUN\tNNS\tNumber=Plur\t_\t_\t3:obj\t_
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t3:punct\t_

"""
# The second sentence has features and a relation that the training file lacks.
CONLLU_VALID = (
    CONLLU
    + """1\treefs\treef\tNOUN\tNNS\tNumber=Plur|Typo=Yes\t0\tdislocated:x\t_\t_
2\tdo\tdo\tAUX\tVB\tMood=Imp|VerbForm=Fin\t1\taux\t_\t_
"""
)


def test_columns_of_treebanks_have_labels_that_training_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {split: tmp_path / f"{split}.conllu" for split in ("train", "valid")}
    files["train"].write_text(CONLLU, encoding="utf-8")
    files["valid"].write_text(CONLLU_VALID, encoding="utf-8")
    settings = prepare_tagging(VOCABULARY, files, tmp_path / "task", Layout("conllu", "FEATS"))
    assert settings.labels == ("Mood=Imp|VerbForm=Fin", "_")
    split = split_of(tmp_path, "valid")
    assert split.word_counts.tolist() == [4, 2]
    assert split.labels.tolist() == [0, 1, 0, 1, 2, 0]
    assert "valid.conllu: 1 of 6 words (16.67 %) always count as wrong" in caplog.text
    assert "does not have their labels: 'Number=Plur|Typo=Yes' (line 10)" in caplog.text


class Says(torch.nn.Module):
    """A model that gives every word the same label."""

    def __init__(self, label: int, labels: int) -> None:
        super().__init__()
        self.scores = torch.nn.functional.one_hot(torch.tensor(label), labels).float()

    def forward(self, src_tokens: torch.Tensor, **unused: Any) -> Any:
        return self.scores.expand(*src_tokens.shape, -1), {}


@pytest.mark.parametrize("labels", [255, 256])
def test_a_label_that_training_lacks_is_wrong_and_adds_no_loss(labels: int, tmp_path: Path) -> None:
    """Even if the numbers fill the byte in which ranks exchange them."""
    rows = "".join(f"row L{number:03d}\n" for number in range(labels))
    # The model says the last label: of five words one has it, one has a label that the training file lacks.
    valid = f"row L{labels - 1:03d}\nrow L000\nrow L001\nrow L002\nrow other\n"
    prepare(tmp_path, rows, valid)
    task = task_of(tmp_path / "task")
    task.load_dataset("valid")
    dataset: Any = task.datasets["valid"]
    model = Says(labels - 1, labels).eval()
    _, words, output = TaggingCriterion(NoOptions(), task)(model, dataset.collater([0]))
    assert words == 4 == output["sample_size"]
    given = validated(task, [[output]])
    assert given["accuracy"] == pytest.approx(20.0)
    loss = -torch.log_softmax(model.scores, dim=0)
    assert given["loss"] == pytest.approx(float(loss[-1] + 3 * loss[0]) / 4 / np.log(2), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_has_its_first_piece_in_every_kind_of_vocabulary(kind: str, tmp_path: Path) -> None:
    """A word has the same pieces as within a sentence."""
    encoder = open_encoder(KINDS[kind](tmp_path))
    sentences = [["The", "cats", "ran", ","], ["\x07", "New York", "\u6f22", "<mask>"]]
    split, nothing = encode_words(encoder, sentences)
    pieces, counts = split.pieces, split.piece_counts
    words = [word for sentence in sentences for word in sentence]
    assert len(counts) == len(words) and counts.sum() == len(pieces) and counts.min() >= 1
    assert nothing.tolist() == [4] and pieces[counts[:4].sum()] == 3
    assert encoder.dictionary_size not in pieces
    found = np.split(pieces, np.cumsum(counts)[:-1])
    for word, own in zip(words, found):
        behind = encoder.encode([f"cat {word}"])[0][:-1]
        assert word == "\x07" or behind[len(behind) - len(own) :].tolist() == own.tolist()


def long_task(folder: Path, **options: int) -> TaggingTask:
    """A task whose validation sentence needs several windows."""
    words = ["sailor I-WHO", "captain B-WHO", "rows O", "harbour I-PLACE", "reef I-PLACE"] * 6
    prepare(folder, valid="\n".join([*words, "", "rows O"]) + "\n")
    task = task_of(folder / "task", **options)
    task.load_dataset("valid")
    return task


def test_batches_hold_every_word_once_at_its_first_piece(tmp_path: Path) -> None:
    task = long_task(tmp_path, tokens_per_sample=12, window_overlap=4)
    dataset: Any = task.datasets["valid"]
    split = split_of(tmp_path, "valid")
    assert len(dataset) > 4 and dataset.sizes.max() <= 12
    first_pieces = split.pieces[np.cumsum(split.piece_counts) - split.piece_counts]
    pieces: dict[int, list[int]] = {}
    labels: dict[int, list[int]] = {}
    for batch in dataset.batch_by_size(dataset.ordered_indices(), max_sentences=3, required_batch_size_multiple=8):
        sample = dataset.collater(batch.tolist())
        tokens = sample["net_input"]["src_tokens"]
        assert (tokens[:, 0] == 0).all() and (tokens.eq(2).sum(dim=1) == 1).all()
        ends = sample["words"].cumsum(0)
        for window, start, stop in zip(sample["id"].tolist(), (ends - sample["words"]).tolist(), ends.tolist()):
            pieces[window] = tokens.flatten()[sample["rows"][start:stop]].tolist()
            labels[window] = sample["target"][start:stop].tolist()
    assert [piece for window in sorted(pieces) for piece in pieces[window]] == first_pieces.tolist()
    assert [label for window in sorted(labels) for label in labels[window]] == split.labels.tolist()


def test_a_word_longer_than_a_window_is_seen_in_part(tmp_path: Path) -> None:
    prepare(tmp_path, valid="rows O\n" + "sailorrow" * 5 + " O\nsailor I-WHO\n")
    task = task_of(tmp_path / "task", 10, 2)
    task.load_dataset("valid")
    dataset: Any = task.datasets["valid"]
    assert dataset.warnings == ["1 words are longer than a window and are truncated"]
    samples = [dataset.collater([index]) for index in range(len(dataset))]
    assert sum(len(sample["rows"]) for sample in samples) == 3
    assert max(sample["ntokens"] for sample in samples) == 10


class Echo(torch.nn.Module):
    """A model that gives every word a label decided by its first piece."""

    def forward(self, src_tokens: torch.Tensor, **unused: Any) -> Any:
        return torch.nn.functional.one_hot(src_tokens % 5, 5).float(), {}


def outputs_of(task: TaggingTask, batch_size: int, training: bool = False) -> list[dict[str, Any]]:
    dataset: Any = task.datasets["valid"]
    criterion = TaggingCriterion(NoOptions(), task)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=batch_size)
    return [criterion(Echo().train(training), dataset.collater(batch.tolist()))[2] for batch in batches]


def validated(task: TaggingTask, validation: list[list[dict[str, Any]]]) -> dict[str, float]:
    return logged_metrics(lambda outputs: task.reduce_metrics(outputs, TaggingCriterion(NoOptions(), task)), validation)


def test_metrics_are_of_the_whole_set_whatever_the_batches_and_ranks(tmp_path: Path) -> None:
    task = long_task(tmp_path, tokens_per_sample=12, window_overlap=4)
    split = split_of(tmp_path, "valid")
    first_pieces = split.pieces[np.cumsum(split.piece_counts) - split.piece_counts]
    names = np.array(task.settings.labels)
    gold, guess = names[split.labels], names[first_pieces % 5]
    ends = np.cumsum(split.word_counts)[:-1]
    expected = score(np.split(gold, ends), np.split(guess, ends), True)  # type: ignore[arg-type]

    singles, triples = outputs_of(task, 1), outputs_of(task, 3)
    one_rank = validated(task, [[output] for output in triples])
    # The last batch comes twice, as where ranks have to make equally many.
    ranks = validated(task, [singles[start : start + 2] for start in range(0, len(singles), 2)] + [singles[-1:]])
    for name, metric in expected.items():
        assert one_rank[name] == pytest.approx(metric) == ranks[name]
    assert one_rank["loss"] > 0
    training = outputs_of(task, 3, training=True)
    assert validated(task, [training])["accuracy"] == pytest.approx(100 * np.mean(gold == guess), abs=0.01)
