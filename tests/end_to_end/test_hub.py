"""A checkpoint of the real command behind the hub interface: text in, features and filled masks out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset
from support import batch_of

from end_to_end.small import cut, training
from end_to_end.toy import run
from fairseq_maelm import MaelmHubInterface, MaelmModel
from fairseq_maelm.text.truncation import truncate

SENTENCES = 8
TEXTS = [
    "The sailor takes the rope to the harbour and sails until night.",
    "Every morning a judge objects at the bench; the oath is old.",
    "In the evening the baker slices slowly with a knife near the oven.",
]


@pytest.fixture(scope="module")
def overfitted(toy_data, tmp_path_factory) -> tuple[Path, Path]:
    """A folder with a checkpoint that has learned 8 sentences by heart, and their data."""
    data = cut(toy_data, tmp_path_factory.mktemp("data"), lines=SENTENCES, shortest=14, longest=24)
    folder = tmp_path_factory.mktemp("overfitted")
    no_dropout = ["--dropout", 0, "--attention-dropout", 0]
    # An epoch is one update here, so no checkpoint but the last.
    options = [*no_dropout, "--batch-size", SENTENCES, "--max-update", 280, "--save-interval", 1000]
    run(training(data, folder, *options))
    return folder, data


@pytest.fixture(scope="module")
def hub(overfitted) -> MaelmHubInterface:
    folder, data = overfitted
    return MaelmModel.from_pretrained(str(folder), "checkpoint_last.pt", str(data))


@pytest.fixture(scope="module")
def learned(overfitted, hub) -> list[str]:
    """The sentences that were trained on."""
    lines = MMapIndexedDataset(str(overfitted[1] / "train"))
    return [hub.decode(lines[index]) for index in range(len(lines)) if len(lines[index]) > 1]


def with_single_words_masked(hub: MaelmHubInterface, sentence: str) -> list[tuple[str, str]]:
    """The sentence with each of its words in turn masked, and that word; words that are one token each."""
    words = sentence.split(" ")
    return [
        (" ".join([*words[:place], "<mask>", *words[place + 1 :]]), word)
        for place, word in enumerate(words)
        if len(hub.tokenizer.encode(word)) == 1
    ]


def test_what_was_learned_fills_the_masks(hub, learned):
    assert len(learned) == SENTENCES
    cases = [case for sentence in learned for case in with_single_words_masked(hub, sentence)]
    assert len(cases) > 4 * SENTENCES
    filled = hub.fill_mask([text for text, _ in cases], topk=1)
    right = sum(candidates[0][0].token == word for candidates, (_, word) in zip(filled, cases))
    assert right >= 0.9 * len(cases), f"{right} of {len(cases)}"
    sentences = set(learned)
    assert sum(candidates[0][0].text in sentences for candidates in filled) == right


def test_text_survives_encoding_and_decoding(hub):
    tokens = hub.encode(TEXTS[0])
    assert tokens.dtype == torch.int64 and tokens[0] == hub.dictionary.bos() and tokens[-1] == hub.dictionary.eos()
    # The vocabulary is uncased.
    assert hub.decode(hub.encode(*TEXTS)) == [each.lower() for each in TEXTS]
    # As users of fairseq's RoBERTa expect.
    assert hub.cfg is hub.config and hub.bpe.decode(hub.bpe.encode("the harbour")) == "the harbour"


@pytest.mark.parametrize("texts", [TEXTS[:1], ["rope", TEXTS[1] * 3]])
@pytest.mark.parametrize("max_length", [9, 512])
def test_long_texts_are_truncated_as_glue_is_prepared(hub, texts, max_length):
    end = hub.dictionary.eos()
    kept, was_truncated = truncate([np.append(hub.tokenizer.encode(text), end) for text in texts], max_length)
    tokens = hub.encode(*texts, max_length=max_length)
    assert tokens.tolist() == [hub.dictionary.bos(), *kept[0], *([end, *kept[1]] if len(kept) == 2 else [])]
    assert len(tokens) == (max_length if was_truncated else len(hub.encode(*texts)))


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_padded_batch_and_vectors_are_those_of_single_sentences(hub, pooling):
    tokens, vectors = hub.encode_batch(TEXTS), hub.embed(TEXTS, pooling, batch_size=2)
    assert (tokens == hub.dictionary.pad()).any() and vectors.shape == (3, 128) and not vectors.requires_grad
    with torch.no_grad():
        for row, features, vector, text in zip(tokens, hub.extract_features(tokens), vectors, TEXTS):
            alone = hub.encode(text)
            assert torch.equal(row[: len(alone)], alone) and (row[len(alone) :] == hub.dictionary.pad()).all()
            states = hub.extract_features(alone)[0]
            torch.testing.assert_close(features[: len(alone)], states, rtol=1e-5, atol=1e-5)
            pooled = states[0] if pooling == "first" else states.mean(dim=0)
            torch.testing.assert_close(vector, pooled, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [False, True])
def test_probabilities_are_those_of_pretraining(overfitted, kept):
    """Three masks in two texts: the same numbers as the pretraining forward with these positions masked."""
    folder, data = overfitted
    masked_input = "kept" if kept else "dropped"
    hub = MaelmModel.from_pretrained(str(folder), "checkpoint_last.pt", str(data), masked_input=masked_input)
    texts = ["The <mask> takes the <mask> to the harbour.", "A judge objects at the <mask>."]
    whole = hub.fill_mask(texts, topk=10**6)
    assert [len(masks) for masks in whole] == [2, 1]
    assert all(sum(c.probability for c in candidates) == pytest.approx(1, abs=1e-5) for t in whole for candidates in t)

    mask = hub.dictionary.index("<mask>")
    sequences = [hub.encode(text).numpy() for text in texts]
    positions = [(sequence == mask).nonzero()[0].tolist() for sequence in sequences]
    net_input, _ = batch_of(sequences, positions, mask if kept else None)
    with torch.no_grad():
        expected = hub.model(**net_input)[0].softmax(dim=-1)
    flat = [candidates for masks in whole for candidates in masks]
    for candidates, row in zip(flat, expected):
        found = torch.tensor([candidate.probability for candidate in candidates])
        torch.testing.assert_close(found, row.sort(descending=True).values, rtol=1e-4, atol=1e-7)
        best = hub.dictionary[int(row.argmax())]
        assert hub.tokenizer.decode([int(row.argmax())]) == candidates[0].token or candidates[0].token == best


def test_one_text_gives_one_list_and_other_masks_stay_in_it(hub, learned):
    (text, word), *_ = with_single_words_masked(hub, learned[0])
    alone, *together = hub.fill_mask(text, topk=3), *hub.fill_mask([text, text], topk=3)
    assert [len(candidates) for candidates in alone] == [3] and len(together) == 2
    for masks in together:
        assert [c.token for c in masks[0]] == [c.token for c in alone[0]]
        assert [c.probability for c in masks[0]] == pytest.approx([c.probability for c in alone[0]], rel=1e-4)
    # A candidate is a tuple, as in fairseq.
    filled, probability, token = alone[0][0]
    assert filled == learned[0] and token == word and 0 < probability < 1
    words = learned[0].split(" ")
    first, second = hub.fill_mask(" ".join(["<mask>", *words[1:3], "<mask>", *words[4:]]), topk=1)
    assert first[0].text == " ".join([first[0].token, *words[1:3], "<mask>", *words[4:]])
    assert second[0].text == " ".join(["<mask>", *words[1:3], second[0].token, *words[4:]])


def test_words_get_the_mean_of_their_tokens(hub):
    sentence = "The unharboured sailor\x00 takes\u2028 ropes."
    with torch.no_grad():
        words = hub.extract_features_aligned_to_words(sentence)
        states = hub.extract_features(hub.encode(sentence))[0, 1:-1]
    assert len(words) == 5 == len(sentence.split())
    lengths = [len(hub.tokenizer.encode(word)) for word in sentence.split()]
    assert max(lengths) > 1 and sum(lengths) == len(states)
    torch.testing.assert_close(words, torch.stack([each.mean(dim=0) for each in states.split(lengths)]))
