"""Windows of contexts against their definition, and batches of them, read token by token."""

from types import SimpleNamespace

import numpy as np
import torch
from support import dictionary_of

from fairseq_maelm.finetuning.squad.dataset import NO_TARGET, SquadDataset, windows_of

from .world import PAD, SYMBOLS, split_of

CONTEXT = "the cat sat on the mat. the dogs ran to the river"
FORMAT = SimpleNamespace(max_length=18, doc_stride=4, max_question_length=4, seed=0)


def dataset_of(*questions: tuple[str, str, str | None], training: bool = False) -> SquadDataset:
    return SquadDataset(split_of(*questions), FORMAT, dictionary_of(len(SYMBOLS) + 1), "valid", training)


def words(tokens: torch.Tensor) -> list[str]:
    return [SYMBOLS[token] for token in tokens.tolist()]


def test_a_sequence_token_by_token():
    """Question of 3 pieces, so room for 11 of the context's 13 or so: two windows."""
    dataset = dataset_of(("the cat ran", CONTEXT, "mat"))
    split = dataset.split
    question = [SYMBOLS[token] for token in split.question(0)]
    context = [SYMBOLS[token] for token in split.context(0, "tokens")]
    room = 18 - 4 - len(question)
    assert len(question) <= 4 and room < len(context)
    batch = dataset.collater(list(range(len(dataset))))
    for row, (begin, end) in enumerate(zip(dataset.windows.begin, dataset.windows.end)):
        expected = ["<s>", *question, "</s>", "</s>", *context[begin:end], "</s>"]
        length = int(batch["net_input"]["src_lengths"][row])
        assert words(batch["net_input"]["src_tokens"][row])[:length] == expected
        assert (batch["net_input"]["src_tokens"][row, length:] == PAD).all()
        assert length == dataset.size(row) == dataset.num_tokens(row)
        # From a position to the piece of the context.
        for position in range(len(question) + 3, length - 1):
            assert expected[position] == context[position + int(batch["shift"][row])]
    assert (dataset.windows.begin[1], batch["nsentences"], batch["split"]) == (4, len(dataset), "valid")
    assert batch["ntokens"] == int(batch["net_input"]["src_lengths"].sum())


def test_targets_are_where_the_answer_is_and_the_first_position_elsewhere():
    dataset = dataset_of(("the cat ran", CONTEXT, "river"), ("the dog", CONTEXT, None))
    batch = dataset.collater(list(range(len(dataset))))
    found = 0
    for row, (start, end) in enumerate(batch["target"].tolist()):
        if (start, end) == (0, 0):
            continue
        found += 1
        first, last = start + int(batch["shift"][row]), end + int(batch["shift"][row])
        assert dataset.split.answer_text(0, first, last) == "river"
        assert dataset.windows.question[row] == 0
        assert batch["context_mask"][row, [start, end]].all()
    assert found >= 1
    assert found < (dataset.windows.question == 0).sum(), "a window without the answer"


def test_only_pieces_of_the_context_with_characters_of_their_own_compete():
    dataset = dataset_of(("cat", "the \u00df mat", None))
    batch = dataset.collater([0])
    begin, end = dataset.split.context(0, "begin"), dataset.split.context(0, "end")
    assert (begin >= end).any(), "the mark of a word before a character that is not a piece"
    position = 4 + len(dataset.split.question(0)) - 1
    expected = [False] * position + (begin < end).tolist() + [False]
    assert batch["context_mask"][0].tolist() == expected
    assert batch["start_mask"][0].tolist() == expected


def test_every_piece_may_start_an_answer_in_exactly_one_window():
    dataset = dataset_of(("the cat ran", CONTEXT, None))
    batch = dataset.collater(list(range(len(dataset))))
    pieces = [
        int(position) + int(batch["shift"][row])
        for row in range(len(dataset))
        for position in torch.nonzero(batch["start_mask"][row])[:, 0]
    ]
    own = dataset.split.context(0, "begin") < dataset.split.context(0, "end")
    assert sorted(pieces) == np.flatnonzero(own).tolist()
    assert not (batch["start_mask"] & ~batch["context_mask"]).any()


def test_long_questions_are_cut_and_it_is_said():
    dataset = dataset_of(("the cat ran to the river and the mat", CONTEXT, None))
    batch = dataset.collater([0])
    assert words(batch["net_input"]["src_tokens"][0])[5:7] == ["</s>", "</s>"]
    assert dataset.warnings[0].startswith("1 questions are longer than --max-question-length and are truncated")


def test_answers_longer_than_a_window_train_as_no_answer_and_it_is_said():
    dataset = dataset_of(("the cat", CONTEXT, CONTEXT), training=True)
    batch = dataset.collater(list(range(len(dataset))))
    assert batch["target"].unique().tolist() == [0]
    assert dataset.warnings[0].startswith("1 questions have an answer that fits into no window")
    assert "start_mask" not in batch


def test_questions_whose_answer_is_not_in_the_context_have_no_target_and_no_part_in_training():
    questions = [("the cat", CONTEXT, "zebra"), ("the dog", CONTEXT, "river")]
    valid, train = dataset_of(*questions), dataset_of(*questions, training=True)
    lost = valid.windows.question == 0
    batch = valid.collater(list(range(len(valid))))
    assert (batch["target"][torch.from_numpy(lost)] == NO_TARGET).all()
    assert (batch["target"][torch.from_numpy(~lost)] != NO_TARGET).all()
    assert sorted(valid.ordered_indices().tolist()) == list(range(len(valid)))
    assert sorted(train.ordered_indices().tolist()) == np.flatnonzero(~lost).tolist()
    assert valid.warnings[0].startswith("1 questions have an answer that is not in their context")


def test_windows_of_several_questions():
    # A sequence of 20 with a question of 6 has room for 10 pieces.
    windows = windows_of(np.array([6, 2, 6]), np.array([11, 11, 3]), 20, 4)
    assert windows.question.tolist() == [0, 0, 1, 2]
    assert windows.first.tolist() == [0, 2, 3, 4]
    assert list(zip(windows.begin.tolist(), windows.end.tolist())) == [(0, 10), (4, 11), (0, 11), (0, 3)]
    # A stride of more than the room skips nothing.
    assert windows_of(np.array([6]), np.array([25]), 20, 99).begin.tolist() == [0, 10, 20]
