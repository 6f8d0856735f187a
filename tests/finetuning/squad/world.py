"""A small vocabulary, and splits made with it, without files."""

from typing import Any

from text.vocabularies import TEXT

from fairseq_maelm.finetuning.squad.prepare import build_split
from fairseq_maelm.finetuning.squad.reading import Question, SquadFile, find_answer
from fairseq_maelm.text.vocabulary import (
    FAIRSEQ_SYMBOLS,
    FairseqEncoder,
    dictionary_symbols,
    load_sentencepiece,
    train_sentencepiece,
)

PAD = 1

ENCODER = FairseqEncoder(load_sentencepiece(train_sentencepiece(TEXT, 80, "nmt_nfkc_cf", 0.9995)))
SYMBOLS = [*FAIRSEQ_SYMBOLS, *dictionary_symbols(ENCODER.processor)]


def split_of(*questions: tuple[str, str, str | None], version: str = "2.0") -> Any:
    """A prepared split of questions (question, context, answer or None)."""
    contexts = list(dict.fromkeys(context for _, context, _ in questions))
    asked = [
        Question(
            f"q{number}",
            text,
            contexts.index(context),
            [] if answer is None else [answer],
            None if answer is None else find_answer(context, answer, -1)[0],
            answer is None,
        )
        for number, (text, context, answer) in enumerate(questions)
    ]
    return build_split(ENCODER, SquadFile(version, contexts, asked, True, {}))[0]
