"""Texts, models and small comparisons for the tests of corpus preparation."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from fairseq_maelm.corpus import PrepareSettings
from fairseq_maelm.text.cleaning import clean_text

SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprst" for vowel in "aeiou\u00e9"]


def make_documents(count: int, seed: int = 0, paragraphs: int = 4) -> list[list[str]]:
    """Make documents of up to ``paragraphs`` paragraphs of invented words, some of them frequent, with punctuation."""
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(SYLLABLES, size=length)) for length in generator.integers(1, 5, size=400)]

    def sentence() -> str:
        # Squaring favors the first words, as real text favors some of its words.
        chosen = [words[int(400 * share**2)] for share in generator.random(generator.integers(4, 20))]
        return " ".join(chosen).capitalize() + "."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(generator.integers(1, 5)))

    return [[paragraph() for _ in range(generator.integers(1, paragraphs))] for _ in range(count)]


DOCUMENTS = make_documents(120)


def flat(documents: list[list[str]]) -> list[str]:
    """Return the paragraphs of all documents."""
    return [paragraph for document in documents for paragraph in document]


def as_text(documents: list[list[str]]) -> str:
    """Write documents as plain text: one paragraph per line, a blank line between documents."""
    return "\n".join("".join(paragraph + "\n" for paragraph in document) for document in documents)


def write_text(path: Path, documents: list[list[str]]) -> Path:
    """Write documents as plain text to a file, and return its path."""
    path.write_text(as_text(documents), encoding="utf-8")
    return path


def train_model(lines: list[str], vocabulary_size: int = 100, **options: Any) -> bytes:
    """Train a sentencepiece model by the library itself, not by the code under test."""
    model = io.BytesIO()
    settings = {"model_type": "bpe", "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=vocabulary_size, **settings
    )
    return model.getvalue()


def settings_for(folder: Path, **changes: Any) -> PrepareSettings:
    """Return settings that prepare ``folder``/text.txt in one process with a tiny vocabulary."""
    fields: dict[str, Any] = {
        "inputs": (folder / "text.txt",),
        "output": folder / "data",
        "valid_documents": 5,
        "vocabulary_size": 120,
        "workers": 1,
    }
    if changes.keys() & {"valid", "valid_fraction"}:
        del fields["valid_documents"]
    if "sentencepiece_model" in changes:
        del fields["vocabulary_size"]
    return PrepareSettings(**{**fields, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder by its name, with the reproducible part of manifests."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.name == "manifest.json":
                manifest = json.loads(content)
                kept = ("settings", "vocabulary", "counts", "outputs", "duplicate_paragraphs_dropped")
                content = json.dumps({name: manifest[name] for name in kept}).encode()
            found[path.relative_to(folder).as_posix()] = content
    return found


def decoded_documents(folder: Path, split: str) -> list[list[str]]:
    """Read the documents of a dataset with fairseq, and decode them with its sentencepiece model."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    documents: list[list[str]] = [[]]
    for item in MMapIndexedDataset(str(folder / split)):
        ids = item.tolist()
        assert ids[-1] == dictionary.eos()
        if len(ids) == 1:
            documents.append([])
        else:
            documents[-1].append(processor.decode([dictionary[index] for index in ids[:-1]]))
    return documents


def normalized(documents: list[list[str]]) -> list[list[str]]:
    """Return the documents that decoding gives if an uncased vocabulary knows all characters."""
    return [[clean_text(paragraph).casefold() for paragraph in document] for document in documents]
