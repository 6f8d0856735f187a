"""The criterion of sentences: its loss, and metrics that do not depend on batches or order."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from support import logged_metrics

from fairseq_maelm.finetuning.sentences.task import SentencesCriterion, SentencesCriterionConfig, SentencesTask
from fairseq_maelm.models.labels import Classes, Labels, Numbers, Sets
from fairseq_maelm.text.dictionary import class_names

CLASSES = Classes(("0", "1"), "1")


def task_of(labels: Labels) -> Any:
    """A task with these labels."""
    task = SentencesTask.__new__(SentencesTask)
    task.labels = labels
    return task


def criterion_of(labels: Labels = CLASSES, **options: Any) -> SentencesCriterion:
    return SentencesCriterion(SentencesCriterionConfig(**options), task_of(labels))


class Model(torch.nn.Module):
    """A model that returns its input as scores."""

    def forward(self, src_tokens: torch.Tensor, features_only: bool, classification_head_name: str) -> Any:
        assert features_only and classification_head_name == "sentence_classification_head"
        return src_tokens, {}


def outputs(
    criterion: Any,
    scores: torch.Tensor,
    targets: torch.Tensor,
    batches: Sequence[Sequence[int]],
    training: bool = False,
) -> list[dict[str, Any]]:
    """The logging outputs of batches of the given examples."""
    model = Model().train(training)
    samples = [
        {
            "id": torch.tensor(ids),
            "net_input": {"src_tokens": scores[ids]},
            "target": targets[ids],
            "ntokens": 3,
            "nsentences": len(ids),
        }
        for ids in batches
    ]
    return [criterion(model, sample)[2] for sample in samples]


def logged(criterion: Any, *updates: list[dict[str, Any]]) -> dict[str, float]:
    found = logged_metrics(lambda outputs: criterion.task.reduce_metrics(outputs, criterion), updates)
    return {name: found[name] for name in found.keys() - {"wps", "wpb", "bsz"}}


SCORES = torch.tensor([[0.0, 2], [0, 1], [3, 0], [0, 1], [1, 0], [1, 0]])
TARGETS = torch.tensor([1, 1, 0, 0, 1, 0])  # predicted: 1, 1, 0, 1, 0, 0


def test_metrics_worked_by_hand():
    found = logged(criterion_of(), outputs(criterion_of(), SCORES, TARGETS, [[0, 1, 2, 3, 4, 5]]))
    assert found["accuracy"] == pytest.approx(100 * 4 / 6)
    assert found["f1"] == pytest.approx(100 * 2 / 3)
    assert found["mcc"] == pytest.approx(100 * (2 * 2 - 1) / 9)
    expected = torch.nn.functional.cross_entropy(SCORES, TARGETS).item() / math.log(2)
    assert found["loss"] == pytest.approx(expected, abs=1e-4)


def test_neither_batches_nor_ranks_nor_order_change_the_metrics():
    criterion = criterion_of()
    whole = logged(criterion, outputs(criterion, SCORES, TARGETS, [[0, 1, 2, 3, 4, 5]]))
    # Two ranks, of which the second has no examples at the end.
    found = logged(
        criterion, *(outputs(criterion, SCORES, TARGETS, update) for update in ([[5], [2, 1]], [[0, 4]], [[3]]))
    )
    for name in ("accuracy", "f1", "mcc"):
        assert found[name] == whole[name]


def test_f1_is_of_the_label_that_is_asked_for():
    labels, batch = Classes(("no", "yes")), [[0, 1, 2, 3, 4, 5]]
    yes, without = criterion_of(labels, positive_label="yes"), criterion_of(labels)
    assert logged(yes, outputs(yes, SCORES, TARGETS, batch))["f1"] == pytest.approx(100 * 2 / 3)
    assert "f1" not in logged(without, outputs(without, SCORES, TARGETS, batch))


def test_regression_logs_squared_errors_and_correlations():
    criterion = criterion_of(Numbers())
    scores, targets = torch.tensor([[1.0], [2], [3], [40]]), torch.tensor([5.0, 1, 5, 7])
    found = logged(
        criterion, outputs(criterion, scores, targets, [[0, 1]]), outputs(criterion, scores, targets, [[2, 3]])
    )
    assert found["spearman"] == pytest.approx(100 * 3 / math.sqrt(5 * 4.5))
    assert found["loss"] == pytest.approx((16 + 1 + 4 + 33**2) / 4)
    assert "accuracy" not in found and "pearson" in found


def test_training_logs_its_accuracy_and_keeps_no_predictions():
    batch = outputs(criterion_of(), SCORES, TARGETS, [[0, 1, 2, 3, 4, 5]], training=True)
    assert "found" not in batch[0]
    assert logged(criterion_of(), batch).keys() == {"loss", "accuracy"}
    assert logged(criterion_of(), batch)["accuracy"] == pytest.approx(100 * 4 / 6, abs=0.01)


def test_a_split_without_labels_is_refused():
    with pytest.raises(ValueError, match="this split has no labels"):
        criterion_of()(Model(), {"net_input": {"src_tokens": SCORES}})


@pytest.mark.parametrize(
    ("labels", "have"),
    [(Numbers(), "numbers"), (Sets(("a", "b")), "rows with any number of labels"), (Classes(("a", "c")), "a, c")],
)
def test_what_does_not_fit_the_labels_is_refused(labels, have):
    with pytest.raises(ValueError, match=f"--positive-label b must be one of two labels, but the data have {have}"):
        labels.with_positive("b")
    if isinstance(labels, (Numbers, Sets)):
        with pytest.raises(ValueError, match=f"is for classes, but the data have {have}"):
            labels.balanced_weights(np.zeros(2))


def test_fairseqs_fillers_are_no_labels():
    dictionary = Dictionary()
    for label in ("b", "a", "madeupword0000", "<mask>"):
        dictionary.add_symbol(label)
    assert class_names(dictionary) == ["b", "a"]


def test_a_batch_of_a_thousand_fits_into_what_ranks_may_exchange():
    import pickle

    count = 1000
    scores, targets = torch.randn(count, 2), torch.randint(0, 2, (count,))
    assert len(pickle.dumps(outputs(criterion_of(), scores, targets, [list(range(count))]))) < 16384 - 4
