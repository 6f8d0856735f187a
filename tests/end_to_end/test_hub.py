"""A checkpoint of the real command behind the hub interface: text in, features and filled masks out."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from support import batch_of

from fairseq_maelm import MaelmHubInterface, MaelmModel
from fairseq_maelm.text.truncation import truncate

TEXTS = [
    "The sailor takes the rope to the harbour and sails until night.",
    "Every morning a judge objects at the bench; the oath is old.",
    "In the evening the baker slices slowly with a knife near the oven.",
]


@pytest.fixture(scope="module")
def hub(pretrained: Path) -> MaelmHubInterface:
    return MaelmModel.from_pretrained(str(pretrained.parent), pretrained.name)


def test_text_survives_encoding_and_decoding(hub):
    tokens = hub.encode(TEXTS[0])
    assert tokens.dtype == torch.int64 and tokens[0] == hub.dictionary.bos() and tokens[-1] == hub.dictionary.eos()
    # The vocabulary is uncased.
    assert hub.decode(hub.encode(*TEXTS)) == [each.lower() for each in TEXTS]
    # As users of fairseq's RoBERTa expect.
    assert hub.cfg is hub.config and hub.bpe.decode(hub.bpe.encode("the harbour")) == "the harbour"


def test_a_copy_gives_the_same_and_is_changed_alone(hub):
    clone = copy.deepcopy(hub)
    tokens = hub.encode(TEXTS[0])
    assert torch.equal(clone.extract_features(tokens), hub.extract_features(tokens))
    with torch.no_grad():
        clone.model.encoder.embed_tokens.weight.zero_()
    assert not torch.equal(clone.extract_features(tokens), hub.extract_features(tokens))
    assert clone.decode(tokens) == hub.decode(tokens)


def test_fairseqs_names_of_tokenizers_have_no_effect(pretrained, caplog):
    hub = MaelmModel.from_pretrained(
        str(pretrained.parent), pretrained.name, bpe="sentencepiece", sentencepiece_model="/nowhere"
    )
    assert "bpe, sentencepiece_model: not used, because the tokenizer" in caplog.text
    assert hub.decode(hub.encode(TEXTS[0]))


def test_without_masks_texts_are_encoded_as_in_preparation(hub):
    written = (" A\n<mask>  oven ", "cafe\u0301 <mask>")
    first, second = hub.tokenizer.encoder.encode(["A <mask> oven", "caf\u00e9 <mask>"])
    tokens = hub.encode(*written, masks=False)
    assert tokens.tolist() == [hub.dictionary.bos(), *first, hub.dictionary.eos(), *second]
    mask = hub.dictionary.index("<mask>")
    assert mask not in tokens and mask in hub.encode(*written)
    states = hub.extract_features(hub.encode(written[0], masks=False))[0]
    torch.testing.assert_close(hub.embed(written[:1])[0], states.mean(dim=0).detach())


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


@pytest.mark.parametrize("masked_input", ["dropped", "kept"])
def test_probabilities_are_those_of_pretraining(pretrained, masked_input):
    """Three masks in two texts: the same numbers as the pretraining forward with these positions masked."""
    hub = MaelmModel.from_pretrained(str(pretrained.parent), pretrained.name, masked_input=masked_input)
    texts = ["The <mask> takes the <mask> to the harbour.", "A judge objects at the <mask>."]
    whole = hub.fill_mask(texts, topk=10**6)
    assert [len(masks) for masks in whole] == [2, 1]
    mask = hub.dictionary.index("<mask>")
    sequences = [hub.encode(text).numpy() for text in texts]
    positions = [(sequence == mask).nonzero()[0].tolist() for sequence in sequences]
    net_input, _ = batch_of(sequences, positions, mask if masked_input == "kept" else None)
    with torch.no_grad():
        expected = hub.model(**net_input)[0].softmax(dim=-1)
    flat = [candidates for masks in whole for candidates in masks]
    for candidates, row in zip(flat, expected):
        found = torch.tensor([candidate.probability for candidate in candidates])
        torch.testing.assert_close(found, row.sort(descending=True).values, rtol=1e-4, atol=1e-7)
        assert float(found.sum()) == pytest.approx(1, abs=1e-5)
        best = int(row.argmax())
        assert candidates[0].token in (hub.tokenizer.decode([best]), hub.dictionary[best])


def test_one_text_gives_one_list_and_other_masks_stay_in_it(hub):
    alone, *together = hub.fill_mask("The <mask> is old.", topk=3), *hub.fill_mask(["The <mask> is old."] * 2, topk=3)
    assert [len(candidates) for candidates in alone] == [3] and len(together) == 2
    for masks in together:
        assert [c.token for c in masks[0]] == [c.token for c in alone[0]]
        assert [c.probability for c in masks[0]] == pytest.approx([c.probability for c in alone[0]], rel=1e-4)
    # A candidate is a tuple, as in fairseq.
    text, probability, token = alone[0][0]
    assert text == f"the {token} is old." and 0 < probability < 1
    first, second = hub.fill_mask("<mask> sailor takes <mask> rope.", topk=1)
    assert first[0].text == f"{first[0].token} sailor takes <mask> rope."
    assert second[0].text == f"<mask> sailor takes {second[0].token} rope."


def test_words_get_the_mean_of_their_tokens(hub):
    sentence = "The unharboured sailor\x00 takes\u2028 ropes."
    with torch.no_grad():
        words = hub.extract_features_aligned_to_words(sentence)
        states = hub.extract_features(hub.encode(sentence))[0, 1:-1]
    assert len(words) == 5 == len(sentence.split())
    lengths = [len(hub.tokenizer.encode(word)) for word in sentence.split()]
    assert max(lengths) > 1 and sum(lengths) == len(states)
    torch.testing.assert_close(words, torch.stack([each.mean(dim=0) for each in states.split(lengths)]))


@pytest.mark.parametrize("sentence", ["", " \n"])
def test_a_sentence_without_words_has_no_states_of_words(hub, sentence):
    assert hub.extract_features_aligned_to_words(sentence).shape == (0, hub.config.model.encoder_embed_dim)
