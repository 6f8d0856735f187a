"""A vocabulary with a domain's pieces: old text keeps its tokens and its meaning."""

import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from end_to_end.toy import TOPICS, run, toy_data
from interop.export.checkpoints import write_checkpoint
from support import model_config

from fairseq_maelm import MaelmModel
from fairseq_maelm.adaptation.extend import extend_vocabulary, words_in
from fairseq_maelm.adaptation.model_file import model_type, with_pieces
from fairseq_maelm.models.encoder import dictionary_fingerprint
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import Tokenizer

__all__ = ["toy_data"]

DOMAIN = ["The cryostat cools the spectrometer.", "A spectrometer and a cryostat, near the harbour."] * 12
GENERAL = " ".join(word for words in TOPICS["sea"] for word in words) + ", The table. 3.5 \u4e00 <mask> rows"


@pytest.fixture(scope="module")
def extended(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The old data folder, an old checkpoint, and the new folder."""
    folder = tmp_path_factory.mktemp("extended")
    write_checkpoint(folder / "old.pt", toy_data)
    state: dict[str, Any] = torch.load(folder / "old.pt")
    torch.save({**state, "last_optimizer_state": {"state": 1}}, folder / "old.pt")
    (folder / "domain.txt").write_text("\n\n".join(DOMAIN), encoding="utf-8")
    command = ["maelm", "extend-vocabulary", folder / "domain.txt", "--data", toy_data, "--checkpoint"]
    output = run([*command, folder / "old.pt", "--pieces", 30, "--least-count", 20, "--output", folder / "new"])
    assert re.search(r"for example '(spectrometer|cryostat)': 1 pieces, before \d+", output)
    return toy_data, folder / "old.pt", folder / "new"


def model_of(folder: Path, checkpoint: Path) -> MaelmModel:
    model = MaelmModel(model_config(), load_dictionary(str(folder)))
    state = torch.load(checkpoint)["model"]
    model.upgrade_state_dict_named(state, "")
    model.load_state_dict(state)
    return model.eval()


def test_old_text_keeps_its_tokens_and_its_meaning(extended: tuple[Path, Path, Path]) -> None:
    data, checkpoint, new = extended
    dictionaries = [load_dictionary(str(folder)) for folder in (data, new)]
    tokenizers = [
        Tokenizer(str(folder / "sentencepiece.bpe.model"), dictionary)
        for folder, dictionary in zip((data, new), dictionaries)
    ]
    tokens = [tokenizer.encode(GENERAL) for tokenizer in tokenizers]
    masks = [dictionary.index("<mask>") for dictionary in dictionaries]
    assert masks == [len(dictionary) - 1 for dictionary in dictionaries] and masks[0] < masks[1]
    assert [token for token in tokens[0] if token != masks[0]] == [token for token in tokens[1] if token != masks[1]]
    assert tokens[0].index(masks[0]) == tokens[1].index(masks[1])

    models = [model_of(data, checkpoint), model_of(new, new / "checkpoint.pt")]
    with torch.no_grad():
        states = [model(torch.tensor([[0, *row, 2]]), features_only=True)[0] for model, row in zip(models, tokens)]
        logits = [model(torch.tensor([[0, *row, 2]]))[0] for model, row in zip(models, tokens)]
    assert torch.equal(*states)
    old_symbols = [*range(masks[0]), masks[1]]
    torch.testing.assert_close(logits[1][..., old_symbols], logits[0], rtol=1e-5, atol=1e-5)


def test_new_rows_are_the_mean_of_the_pieces_that_they_replace(extended: tuple[Path, Path, Path]) -> None:
    data, checkpoint, new = extended
    dictionary, old_dictionary = load_dictionary(str(new)), load_dictionary(str(data))
    tokens = Tokenizer(str(new / "sentencepiece.bpe.model"), dictionary).encode("spectrometer")
    parts = Tokenizer(str(data / "sentencepiece.bpe.model"), old_dictionary).encode("spectrometer")
    assert len(tokens) == 1 and len(parts) > 3
    before, after = torch.load(checkpoint)["model"], torch.load(new / "checkpoint.pt")
    for name in ("encoder.embed_tokens.weight", "lm_head.bias"):
        torch.testing.assert_close(after["model"][name][tokens[0]], before[name][parts].mean(dim=0))
    assert int(after["model"]["encoder.identity"][0]) == dictionary_fingerprint(dictionary)
    assert after["last_optimizer_state"] is None
    with pytest.raises(ValueError, match="vocabulary has"):
        model_of(data, new / "checkpoint.pt")


def test_the_new_model_prepares_text(extended: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """`maelm prepare` makes the same dictionary from the new model."""
    _, _, new = extended
    (tmp_path / "text.txt").write_text("\n\n".join(DOMAIN), encoding="utf-8")
    run(
        ["maelm", "prepare", tmp_path / "text.txt", "--output", tmp_path / "data", "--workers", 1]
        + ["--sentencepiece-model", new / "sentencepiece.bpe.model", "--valid-fraction", 0.2]
    )
    assert (tmp_path / "data" / "dict.txt").read_bytes() == (new / "dict.txt").read_bytes()


def test_what_cannot_be_extended_is_explained(
    extended: tuple[Path, Path, Path], toy_data: Path, tmp_path: Path
) -> None:
    data, checkpoint, new = extended
    text = tmp_path / "text.txt"
    text.write_text("rows 3.5 rows\n", encoding="utf-8")
    with pytest.raises(FileExistsError, match="exists already"):
        extend_vocabulary(data, checkpoint, [text], 5, 1, new)
    with pytest.raises(ValueError, match="trained with another vocabulary"):
        extend_vocabulary(new, checkpoint, [text], 5, 1, tmp_path / "out")
    with pytest.raises(ValueError, match="no frequent words"):
        extend_vocabulary(data, checkpoint, [text], 5, 9, tmp_path / "out")
    with pytest.raises(ValueError, match="at least one piece"):
        extend_vocabulary(data, checkpoint, [text], 0, 9, tmp_path / "out")
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="holds no configuration"):
        extend_vocabulary(data, tmp_path / "other.pt", [text], 5, 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_words_are_made_of_letters() -> None:
    pieces = ["▁a", "b", ",", "▁c", "-", "d", "e", "3", "f", "▁", "g", "▁2", "."]
    assert words_in(pieces) == [("▁a", "b"), ("▁c",), ("d", "e"), ("f",), ("▁", "g")]
    assert words_in([]) == []


def test_models_are_put_together_byte_by_byte(toy_data: Path, tmp_path: Path) -> None:
    model = (toy_data / "sentencepiece.bpe.model").read_bytes()
    old = sentencepiece.SentencePieceProcessor(model_proto=model)
    new = sentencepiece.SentencePieceProcessor(model_proto=with_pieces(model, ["\u2581xx", "\u2581xxy" * 60]))
    size = old.get_piece_size()
    assert new.get_piece_size() == size + 2 and new.id_to_piece(size) == "\u2581xx"
    scores = [new.get_score(number) for number in range(size + 2)]
    assert scores[:size] == [old.get_score(number) for number in range(size)]
    assert min(scores[:size]) > scores[size] > scores[size + 1]
    assert model_type(model) == 2
    with pytest.raises(ValueError, match="has the piece 'e' already"):
        with_pieces(model, ["e"])
    lines = tmp_path / "lines"
    lines.write_text("some words of a text\n" * 5 + "and others\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines), model_prefix=str(tmp_path / "unigram"), vocab_size=25, hard_vocab_limit=False, minloglevel=2
    )
    with pytest.raises(ValueError, match="no byte-pair encoding"):
        with_pieces((tmp_path / "unigram.model").read_bytes(), ["ab"])
    with pytest.raises(ValueError, match="is damaged"):
        model_type(model[:-3] + b"\xff")
