"""fairseq tasks. fairseq imports this folder and the models, but not the criterions: the tasks bring theirs along."""

from fairseq_maelm.criterions import sentence_prediction as sentence_prediction_criterion
from fairseq_maelm.tasks import maelm

__all__ = ["maelm", "sentence_prediction_criterion"]
from fairseq_maelm.tasks import maelm, maelm_squad

__all__ = ["maelm", "maelm_squad"]
from fairseq_maelm.tasks import maelm, maelm_prompt

__all__ = ["maelm", "maelm_prompt"]
from fairseq_maelm.tasks import maelm, tagging

__all__ = ["maelm", "tagging"]
