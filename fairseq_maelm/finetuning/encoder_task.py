"""What tasks that fine-tune an encoder on text of their own have in common."""

from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask

__all__ = ["EncoderTask"]


class EncoderTask(FairseqTask):
    """A task over the vocabulary of pretraining.

    Args:
        cfg: the task's options.
        dictionary: fairseq's, with ``<mask>``.
        longest: tokens of the longest sequence that the task makes.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, longest: int) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.longest = longest

    @property
    def source_dictionary(self) -> Dictionary:
        """The vocabulary with fairseq's special symbols and <mask>."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Optional[Dictionary]:
        """What is predicted over; None, unless a task says otherwise: labels and scores are no symbols."""
        return None

    def max_positions(self) -> int:
        """The longest sequence that the task makes."""
        return self.longest
