"""fairseq tasks. fairseq imports this folder and the models, but not the criterions: the tasks bring theirs along."""

from fairseq_maelm.tasks import maelm, retrieval

__all__ = ["maelm", "retrieval"]
