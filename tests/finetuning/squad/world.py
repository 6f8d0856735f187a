"""A small vocabulary and what makes splits of it, without files."""

import io
from typing import Any

import numpy as np
import sentencepiece

from fairseq_maelm.finetuning.squad.offsets import Aligner
from fairseq_maelm.finetuning.squad.prepare import build_split
from fairseq_maelm.finetuning.squad.reading import Answer, Question, SquadFile, find_answer

TEXT = [
    "the cat sat on the mat.",
    "the dogs ran to the river and the cats ran away.",
    "a house, a garden, a river and a mat!",
    "over the river ran the dog; the house stood still.",
] * 20
UNKNOWN, BOS, PAD, EOS = 3, 0, 1, 2


def sentencepiece_model() -> sentencepiece.SentencePieceProcessor:
    """An uncased model of 80 pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        model_type="bpe",
        vocab_size=80,
        normalization_rule_name="nmt_nfkc_cf",
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


PROCESSOR = sentencepiece_model()
SYMBOLS = [
    *("<s>", "<pad>", "</s>", "<unk>"),
    *(
        PROCESSOR.id_to_piece(piece)
        for piece in range(PROCESSOR.get_piece_size())
        if not (PROCESSOR.is_unknown(piece) or PROCESSOR.is_control(piece))
    ),
]
ALIGNER = Aligner.from_symbols(PROCESSOR, SYMBOLS, UNKNOWN)


def split_of(*questions: tuple[str, str, str | None], version: str = "2.0") -> Any:
    """A prepared split of questions (question, context, answer or None)."""
    contexts = list(dict.fromkeys(context for _, context, _ in questions))
    asked = [
        Question(
            f"q{number}",
            text,
            contexts.index(context),
            [] if answer is None else [Answer(answer, find_answer(context, answer, -1)[0])],
            answer is None,
        )
        for number, (text, context, answer) in enumerate(questions)
    ]
    return build_split(ALIGNER, SquadFile(version, contexts, asked, True, {}), np.uint16)[0]
