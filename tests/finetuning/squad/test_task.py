"""The task SQuAD without commands: options, the model it builds and the metrics of a whole set."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fairseq.logging import metrics
from support import dictionary_of, logged_metrics, model_config

from fairseq_maelm.finetuning.squad.inference import SpanAnswer, choose
from fairseq_maelm.finetuning.squad.spans import WINDOW_DTYPE
from fairseq_maelm.finetuning.squad.task import SquadTask, SquadTaskConfig
from fairseq_maelm.models.labels import Spans
from fairseq_maelm.models.maelm import MaelmModel
from finetuning.squad.world import split_of

CONTEXT = "the cat sat on the mat. the dogs ran to the river"


def task_of(**changes: Any) -> SquadTask:
    settings = {name: field.default for name, field in SquadTaskConfig.__dataclass_fields__.items()}
    return SquadTask(SimpleNamespace(**{**settings, "seed": 1, **changes}), dictionary_of(100), Spans())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"max_length": 75},
            "--max-length 75 leaves no room for a context after a question of 64 pieces",
        ),
        ({"doc_stride": 0}, "--doc-stride must be at least 1, not 0"),
    ],
)
def test_options_that_make_no_windows_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        task_of(**changes)


def test_sequences_longer_than_the_encoder_has_positions_are_refused():
    with pytest.raises(ValueError, match="up to 512 tokens, but the model has only 64 positions: lower --max-length"):
        MaelmModel.build_model(model_config(), task_of())


class Criterion:
    """A criterion that logs one number."""

    labels = Spans()

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """The task's metrics are what is tested."""
        metrics.log_scalar("seen", len(logging_outputs))


def metrics_of(task: SquadTask, *batches: np.ndarray) -> dict[str, float]:
    """Return the metrics that validation logs for successive batches."""
    steps = [
        [{"ntokens": 1, "nsentences": len(rows), "found": {"split": "valid", "windows": rows}}] for rows in batches
    ]
    return logged_metrics(lambda outputs: task.reduce_metrics(outputs, Criterion()), steps)


def test_metrics_of_windows_in_any_order_over_batches():
    # Three questions, the first with two windows. Right: "cat", which scores 1 above no answer; no answer to the third
    # by 2; the second is answered "the mat" where "mat" is right, by 1.
    task = task_of(max_length=16, max_question_length=4, doc_stride=4)
    prepared = split_of(("cat", CONTEXT, "The Cat"), ("mat", "the mat", "mats"), ("dog", "the mat", None))
    dataset = task.dataset_of(prepared, "valid")
    task.validated["valid"] = dataset
    first = int(np.flatnonzero(dataset.windows.question == 1)[0])
    cat = [piece for piece in range(10) if prepared.answer_text(0, piece, piece) == "cat"][0]
    rows = [(window, 0, 0, -9.0, 2.0) for window in range(first)]
    rows[0] = (0, cat, cat, 3.0, 5.0)
    rows += [(first, 0, 1, 2.0, 1.0), (first + 1, 0, 1, 0.0, 2.0)]
    table = np.array(rows, dtype=WINDOW_DTYPE)
    expected = {
        "exact": 200 / 3,
        "f1": 200 / 3,
        "HasAns_exact": 50.0,
        "HasAns_f1": 50.0,
        "NoAns_exact": 100.0,
        "NoAns_f1": 100.0,
        # No answer anywhere is right once; then the first question, and then one that is wrong.
        "best_exact": 200 / 3,
        "best_exact_thresh": -1.0,
        "best_f1": 200 / 3,
        "best_f1_thresh": -1.0,
    }
    for batches in ([table], [table[::-1]], [table[1:], table[:1]], [table[:2], table[1:]]):
        found = metrics_of(task, *batches)
        assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_metrics_of_an_unfinished_set_are_no_numbers():
    task = task_of()
    task.validated["valid"] = task.dataset_of(split_of(("cat", CONTEXT, "cat"), ("mat", CONTEXT, None)), "valid")
    found = metrics_of(task, np.array([(0, 1, 1, 0.0, 0.0)], dtype=WINDOW_DTYPE))
    assert np.isnan(found["best_f1"]) and np.isnan(found["exact"])


@pytest.mark.parametrize(("version", "text"), [("auto", ""), ("2.0", ""), ("1.1", "cat")])
def test_version_1_answers_with_a_text_unless_a_threshold_is_given(version, text):
    task = task_of(squad_version=version)
    hub = SimpleNamespace(labels=task.read_labels(SimpleNamespace(task=task.cfg), []))
    answers = [SpanAnswer("", -1, -1, 5.0, 0.9), SpanAnswer("cat", 0, 3, 1.0, 0.1)]
    assert choose(hub, answers, None).text == text
    assert [choose(hub, answers, threshold).text for threshold in (0.0, 4.0)] == ["", "cat"]
