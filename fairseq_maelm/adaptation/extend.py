"""A vocabulary and a checkpoint with pieces for the words of a domain."""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.adaptation.merges import Merge, Pieces, learn_merges
from fairseq_maelm.adaptation.model_file import with_pieces
from fairseq_maelm.corpus.cleaning import read_documents
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.encoder import dictionary_fingerprint
from fairseq_maelm.text.dictionary import WORD_START, load_dictionary
from fairseq_maelm.text.vocabulary import (
    DICTIONARY_FILE,
    MODEL_FILE,
    dictionary_symbols,
    dictionary_text,
    load_sentencepiece,
    write_dictionary,
)

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "checkpoint.pt"
PIECES_FILE = "new_pieces.tsv"
_EMBEDDING, _BIAS, _IDENTITY = "encoder.embed_tokens.weight", "lm_head.bias", "encoder.identity"


def count_words(processor: SentencePieceProcessor, texts: Sequence[Path]) -> Counter[Pieces]:
    """Count the words of a text, which are made of letters alone, as their pieces.

    Spaces, punctuation and numbers stand between words and are no part of them. Words with unknown characters are left
    out.
    """
    known = frozenset(dictionary_symbols(processor))
    words: Counter[Pieces] = Counter()
    for path in texts:
        for document in tqdm(read_documents(path), desc=str(path), unit=" documents", mininterval=1):
            for pieces in processor.encode(document, out_type=str):
                words.update(words_in(pieces))
    return Counter({word: count for word, count in words.items() if known.issuperset(word)})


def words_in(pieces: Sequence[str]) -> list[Pieces]:
    """Cut the pieces of a text into words of letters; what is no letter is left out, but for the sign of a space."""
    words: list[list[str]] = [[]]
    for piece in pieces:
        letters = piece.lstrip(WORD_START)
        if letters and not letters.isalpha():
            words.append([])
        elif piece.startswith(WORD_START):
            words.append([piece])
        else:
            words[-1].append(piece)
    return [tuple(word) for word in words if "".join(word).lstrip(WORD_START)]


def extend_vocabulary(
    data: Path, checkpoint: Path, texts: Sequence[Path], number: int, least_count: int, output: Path
) -> list[Merge]:
    """Write a folder with the extended vocabulary and the checkpoint that fits it; it gets its name when it is whole.

    Args:
        data: folder of the checkpoint's vocabulary.
        checkpoint: of pretraining or fine-tuning.
        texts: files or folders of the domain's text, as for ``maelm prepare``.
        number: the most pieces to add.
        least_count: how often two pieces must stand side by side to become one.
        output: the new folder.

    Returns:
        the new pieces.

    Raises:
        FileExistsError: the output is there already.
        FileNotFoundError: a file is missing.
        ValueError: the checkpoint does not belong to the vocabulary, or the text has nothing to add.
    """
    if output.exists():
        raise FileExistsError(f"{output} exists already: name another folder, or remove it first")
    if number < 1 or least_count < 1:
        raise ValueError("at least one piece must be added, which occurs at least once")
    old_dictionary = load_dictionary(str(data))
    processor = load_sentencepiece(data / MODEL_FILE)
    if (data / DICTIONARY_FILE).read_text(encoding="utf-8") != dictionary_text(processor):
        raise ValueError(f"{data / DICTIONARY_FILE} was not made from {MODEL_FILE} beside it, as `maelm prepare` does")
    content = read_checkpoint(checkpoint)
    if int(content.weights[_IDENTITY][0]) != dictionary_fingerprint(old_dictionary):
        raise ValueError(f"{checkpoint} was trained with another vocabulary than that of the data folder")
    state = {**content.state, "model": content.weights}
    words = count_words(processor, texts)
    merges = learn_merges(words, number, least_count, frozenset(old_dictionary.symbols))
    if not merges:
        raise ValueError(
            f"no two pieces stand side by side {least_count} times in the words of the text: it has no frequent words "
            "that the vocabulary cuts"
        )
    model = with_pieces((data / MODEL_FILE).read_bytes(), [merge.piece for merge in merges])
    _write(output, model, merges, state, old_dictionary)
    _report(words, processor, load_sentencepiece(model), merges)
    return merges


def _write(output: Path, model: bytes, merges: Sequence[Merge], state: dict[str, Any], old_dictionary: Any) -> None:
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / MODEL_FILE).write_bytes(model)
    write_dictionary(load_sentencepiece(model), partial / DICTIONARY_FILE)
    lines = [f"{merge.piece}\t{merge.frequency}\t{' '.join(merge.parts)}\n" for merge in merges]
    (partial / PIECES_FILE).write_text("".join(lines), encoding="utf-8")
    new_dictionary = load_dictionary(str(partial))
    parts = [[old_dictionary.index(part) for part in merge.parts] for merge in merges]
    extend_state(state, parts, dictionary_fingerprint(new_dictionary))
    torch.save(state, partial / CHECKPOINT_FILE)
    os.replace(partial, output)


def extend_state(state: dict[str, Any], parts: Sequence[Sequence[int]], vocabulary_fingerprint: int) -> None:
    """Give a checkpoint's vocabulary further symbols, in place, between the last piece and ``<mask>``.

    Args:
        state: of a checkpoint file. The state of its optimizer, which does not fit any more, is taken out.
        parts: for every new symbol the numbers of the old ones whose mean its embedding and its output bias are.
        vocabulary_fingerprint: of the new dictionary.
    """
    parameters: dict[str, Tensor] = state["model"]
    for name in (_EMBEDDING, _BIAS):
        if name in parameters:
            old = parameters[name]
            new = torch.stack([old[list(numbers)].float().mean(dim=0) for numbers in parts]).to(old.dtype)
            parameters[name] = torch.cat([old[:-1], new, old[-1:]])
    identity = parameters[_IDENTITY].clone()
    identity[0] = vocabulary_fingerprint
    parameters[_IDENTITY] = identity
    state["last_optimizer_state"] = None


def _report(
    words: Counter[Pieces], old: SentencePieceProcessor, new: SentencePieceProcessor, merges: Sequence[Merge]
) -> None:
    shorter = []
    pieces = [0, 0]
    for word, count in words.items():
        text = old.decode(list(word))
        after = len(new.encode(text))
        pieces[0] += count * len(word)
        pieces[1] += count * after
        shorter.append((count * (len(word) - after), text, len(word), after))
    total = sum(words.values())
    logger.info(
        "%d pieces added; words of letters now have %.3f pieces on average, before %.3f",
        len(merges),
        pieces[1] / total,
        pieces[0] / total,
    )
    for _, text, before, after in sorted(shorter, reverse=True)[:5]:
        logger.info("for example %r: %d pieces, before %d", text, after, before)
