"""Batches of prompts, label scores, the loss and the metrics."""

import math

import numpy as np
import pytest
import torch
from support import batch_of, model_of, random_sequences

from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.finetuning.prompting.prompts import Between
from fairseq_maelm.finetuning.prompting.task import PromptDataset, label_scores, prompt_input

VOCABULARY = 40
MASK = VOCABULARY - 1
SYMBOLS = Symbols(pad=1, mask=MASK)
VIEWS = {
    "dropped": EncoderView(),
    "kept": EncoderView("kept"),
    "reset": EncoderView("reset"),
    "mostly kept": EncoderView("dropped", 0.8),
    "consecutive": EncoderView(positions="consecutive"),
}


def examples_of(mask_counts=(1,), lengths=(9, 6, 12)):
    """Random sequences with masks in the middle, one for each number of masks."""
    examples = []
    for sequence in random_sequences(list(lengths), VOCABULARY):
        middle = len(sequence) // 2
        examples.append(
            [np.concatenate([sequence[:middle], [MASK] * count, sequence[middle:]]) for count in mask_counts]
        )
    return examples


@pytest.mark.parametrize("view", VIEWS)
def test_what_reaches_the_encoder(view):
    examples = examples_of((1, 2))
    net_input = prompt_input(examples, SYMBOLS, VIEWS[view])
    layout, tokens = net_input["layout"], net_input["src_tokens"]
    masks = 3 * (1 + 2)
    assert len(tokens) == 6 and len(layout["predicted_slots"]) == masks
    seen = int((tokens == MASK).sum())
    assert seen == (0 if view in ("dropped", "consecutive") else masks)
    inside = layout["decoder_slots"].tolist()
    returned = masks if view in ("kept", "mostly kept") else 0
    assert len(set(inside) & set(layout["predicted_slots"].tolist())) == returned
    if view == "consecutive":
        assert layout["positions"][0].tolist() == list(range(9)) + [0] * (tokens.shape[1] - 9)


def scores_alone(model, sequence, pieces, kept):
    """Return the score of a label word from the logits of the whole vocabulary."""
    positions = np.flatnonzero(sequence == MASK).tolist()
    net_input, _ = batch_of([sequence], [positions], MASK if kept else None)
    with torch.no_grad():
        logits, _ = model(**net_input)
    log_probabilities = logits.log_softmax(dim=-1)
    return float(sum(log_probabilities[place, piece] for place, piece in enumerate(pieces)) / len(pieces))


@pytest.mark.parametrize(
    "options", [{}, {"decoder_attention": "cross"}, {"decoder_layers": 0}], ids=["MAE-LM", "cross-attention", "MLM"]
)
def test_scores_are_those_of_the_words_in_the_whole_vocabulary(options):
    model, kept = model_of(VOCABULARY, **options), "decoder_layers" in options
    words = [(7,), (9, 10, 11), (8,), (12, 7)]
    examples = examples_of((1, 2, 3))
    net_input = prompt_input(examples, SYMBOLS, EncoderView("kept" if kept else "dropped"))
    with torch.no_grad():
        logits, _ = model(**net_input)
    scores = label_scores(logits, words)
    expected = [[scores_alone(model, example[len(word) - 1], word, kept) for word in words] for example in examples]
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_losses_worked_by_hand():
    scores, labels = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log(), Between(bounds=(0.0, 5.0))
    # Scores 2.5 and 5 of 0 to 5: q = (1/2, 1/2) against (1/4, 3/4), and q = (0, 1) against (1/2, 1/2).
    divergence = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75) + math.log(1 / 0.5)
    assert float(labels.loss(scores, torch.tensor([2.5, 5.0]))) == pytest.approx(divergence)
    assert float(labels.loss(scores, torch.tensor([3.75, 2.5]))) == pytest.approx(0.0, abs=1e-6)


def test_predictions():
    scores = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log() + 3.0
    assert Between(bounds=(0.0, 5.0)).found(scores).tolist() == pytest.approx([3.75, 0.5])


def test_a_batch_counts_all_sequences_of_its_examples():
    examples = examples_of((1, 2), lengths=range(3, 16))
    sample = PromptDataset(examples, np.arange(13, dtype=np.float32), SYMBOLS, EncoderView()).collater([3, 7])
    assert sample["target"].tolist() == sample["id"].tolist() == [3, 7]
    assert sample["ntokens"] == sum(len(each) for place in (3, 7) for each in examples[place])
