"""fairseq tasks. fairseq imports this folder and the models, but not the criterions: the tasks bring theirs along."""

from fairseq_maelm.finetuning.prompting import task as prompt
from fairseq_maelm.finetuning.retrieval import task as retrieval
from fairseq_maelm.finetuning.sentences import criterion as sentence_prediction_criterion
from fairseq_maelm.finetuning.squad import task as squad
from fairseq_maelm.finetuning.tagging import task as tagging
from fairseq_maelm.tasks import maelm

__all__ = ["maelm", "prompt", "retrieval", "sentence_prediction_criterion", "squad", "tagging"]
