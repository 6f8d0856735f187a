"""fairseq tasks. fairseq imports this folder and the models, but not the criterions: the tasks bring theirs along."""

from fairseq_maelm.criterions import sentence_prediction as sentence_prediction_criterion
from fairseq_maelm.tasks import maelm, prompt, retrieval, squad, tagging

__all__ = ["maelm", "prompt", "retrieval", "sentence_prediction_criterion", "squad", "tagging"]
