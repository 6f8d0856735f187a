"""A vocabulary for the preparation of sentences."""

from pathlib import Path

import pytest

from fairseq_maelm.text.vocabulary import dictionary_text, load_sentencepiece, train_sentencepiece

SENTENCE = "the cook sailed a boat and ate bread while it rained on an old harbour wall"


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ``maelm prepare corpus`` without text."""
    folder = tmp_path_factory.mktemp("vocabulary")
    text = [f"{SENTENCE[number % 7 :]} number {number}." for number in range(67)]
    (folder / "sentencepiece.bpe.model").write_bytes(train_sentencepiece(text, 80, "nmt_nfkc_cf", 1.0))
    (folder / "dict.txt").write_text(
        dictionary_text(load_sentencepiece(folder / "sentencepiece.bpe.model")), encoding="utf-8"
    )
    return folder
