"""Corpus preparation: from raw text to the data folder that the task ``maelm`` reads.

`prepare` does all of it; the other functions are its parts for use by other code.
"""

from fairseq_maelm.corpus.cleaning import read_documents
from fairseq_maelm.corpus.prepare import PreparedCorpus, prepare
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.files import CorpusError
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.vocabulary import (
    FairseqEncoder,
    dictionary_symbols,
    dictionary_text,
    load_sentencepiece,
    train_sentencepiece,
    write_dictionary,
)

__all__ = [
    "CorpusError",
    "FairseqEncoder",
    "PrepareSettings",
    "PreparedCorpus",
    "clean_text",
    "dictionary_symbols",
    "dictionary_text",
    "load_sentencepiece",
    "prepare",
    "read_documents",
    "train_sentencepiece",
    "write_dictionary",
]
