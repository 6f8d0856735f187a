"""Corpus preparation: from raw text to the data folder that the task ``maelm`` reads.

``prepare`` runs the whole preparation; the other names are parts that are useful on their own.
"""

from fairseq_maelm.corpus.prepare import prepare
from fairseq_maelm.corpus.reading import read_documents
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.text.vocabulary import FairseqEncoder, load_sentencepiece

__all__ = ["CorpusError", "FairseqEncoder", "PrepareSettings", "load_sentencepiece", "prepare", "read_documents"]
