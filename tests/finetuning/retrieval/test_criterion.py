"""The criterion of retrieval on small batches: its loss, and batches that must not count."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import dictionary_of, model_of, random_sequences

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.finetuning.retrieval.criterion import RetrievalCriterion, RetrievalCriterionConfig
from fairseq_maelm.finetuning.retrieval.loss import contrastive_loss
from fairseq_maelm.finetuning.retrieval.task import RetrievalTask


def task_of(**changes):
    settings = {"pooling": "mean", "similarity": "cosine", "tokens_per_sample": 64, "hard_negatives": 0, **changes}
    return RetrievalTask(SimpleNamespace(**settings), dictionary_of(40))


def inputs(lengths, seed):
    lengths = np.array(lengths)
    tokens = pad_rows(random_sequences(lengths.tolist(), seed=seed), lengths, 1)
    return {"src_tokens": torch.from_numpy(tokens), "src_lengths": torch.from_numpy(lengths)}


def criterion_of(task, temperature):
    return RetrievalCriterion(RetrievalCriterionConfig(temperature=temperature), task)


def sample_of():
    """Two queries and three documents; the third is a negative of both."""
    return {
        "id": torch.arange(2),
        "nsentences": 2,
        "ntokens": 60,
        "net_input": inputs([5, 7], seed=1),
        "documents": inputs([20, 12, 16], seed=2),
        "document_ids": torch.tensor([3, 4, 9]),
        "target": torch.tensor([4, 3]),
        "positives": torch.tensor([[4, -1], [3, -1]]),
    }


def test_loss_is_that_of_the_embeddings():
    task, model, sample = task_of(similarity="dot"), model_of(), sample_of()
    loss, sample_size, logged = criterion_of(task, 2.0)(model, sample)
    states, _ = model(sample["net_input"]["src_tokens"], features_only=True)
    queries = torch.stack([states[0, :5].mean(0), states[1].mean(0)])
    states, _ = model(sample["documents"]["src_tokens"], features_only=True)
    documents = torch.stack([states[row, :length].mean(0) for row, length in enumerate((20, 12, 16))])
    expected, correct, _ = contrastive_loss(
        queries, documents, sample["document_ids"], sample["target"], sample["positives"], temperature=2.0
    )
    torch.testing.assert_close(loss, expected)
    assert sample_size == logged["sample_size"] == 2
    assert int(logged["nnegatives"]) == 4 and int(logged["ncorrect"]) == int(correct)


def test_every_parameter_of_the_encoder_gets_a_gradient():
    """DDP raises an error for unused parameters."""
    model = model_of()
    model.decoder = model.lm_head = None
    criterion_of(task_of(), 0.1)(model, sample_of())[0].backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("of_validation", [False, True])
def test_a_batch_that_is_ignored_trains_nothing(of_validation):
    model, sample = model_of(), {**sample_of(), "ignored": True}
    if of_validation:
        sample = {key: sample[key] for key in ("id", "nsentences", "ntokens", "net_input", "ignored")}
        sample["split"] = "valid"
    loss, _, logged = criterion_of(task_of(), 0.1)(model, sample)
    loss.backward()
    assert float(loss.detach()) == 0.0 and int(logged["nnegatives"]) == 0
    gradients = [parameter.grad for name, parameter in model.encoder.named_parameters()]
    assert len(gradients) > 20 and all(gradient is not None and not gradient.any() for gradient in gradients)


def test_the_task_says_which_batches_are_ignored():
    seen = []

    def criterion(model, sample):
        seen.append(sample["ignored"])
        return torch.zeros((), requires_grad=True) * 1.0, 1, {}

    model = SimpleNamespace(
        train=lambda: None, set_num_updates=lambda number: None, parameters=lambda: iter([torch.zeros(1)])
    )
    optimizer = SimpleNamespace(backward=lambda loss: loss.backward())
    for ignored in (False, True):
        task_of().train_step({"id": torch.arange(1)}, model, criterion, optimizer, 0, ignore_grad=ignored)
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: criterion_of(task_of(), 0.0), "--temperature must be positive, not 0"),
        (lambda: criterion_of(SimpleNamespace(), 0.1), "needs --task maelm_retrieval"),
        (lambda: task_of(tokens_per_sample=2), "--tokens-per-sample must be at least 3"),
        (lambda: task_of(hard_negatives=-1), "--hard-negatives must be at least 0"),
    ],
)
def test_wrong_options_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_missing_splits_and_negatives_are_explained(tmp_path):
    task = task_of(data=str(tmp_path), hard_negatives=1, seed=1)
    np.save(tmp_path / "train.judgments.npy", np.array([[0, 0, 1]]))
    with pytest.raises(FileNotFoundError, match=r"no split 'valid' in .* \(it has: train\).*--valid-fraction"):
        task.load_dataset("valid")
    with pytest.raises(FileNotFoundError, match="prepare retrieval --hard-negatives FILE"):
        task._negatives(tmp_path)
