"""What this package's tasks have in common: the vocabulary of pretraining, and which models and criterions fit."""

from typing import Any, ClassVar

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask

from fairseq_maelm.fairseq_fixes.companions import VOCABULARY_FILES
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.sizes import SIZES

__all__ = ["EncoderTask"]


class EncoderTask(FairseqTask):
    """A task over the vocabulary of pretraining, fairseq's dictionary with ``<mask>``."""

    name: str  # of the task and of its criterion
    only_own_models = True  # whether its batches and heads are for models of this package alone
    # Names, below the data folder, of what it is set up from, where they exist: checkpoints need them.
    setup_files: ClassVar[tuple[str, ...]] = VOCABULARY_FILES

    def __init__(self, cfg: Any, dictionary: Dictionary, longest: int) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.longest = longest

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model; called by fairseq.

        Raises:
            ValueError: the model does not exist, where fairseq would name another reason, or does not fit this task.
        """
        name = _registered_name(cfg, "arch")
        kind = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
        if name is not None and kind is None:
            raise ValueError(f"there is no model or size {name!r}; choose one of {', '.join(SIZES)}")
        if kind is not None and self.only_own_models and not issubclass(kind, MaelmModel):
            raise ValueError(
                f"the task {self.name} needs a model of this package, and {name} is none: give --arch, one of "
                f"{', '.join(SIZES)}. fairseq's own tasks, such as masked_lm and sentence_prediction, train its models"
            )
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; called by fairseq.

        Raises:
            ValueError: the criterion does not fit this task: it would stop in the first batch, or log other losses.
        """
        name = _registered_name(cfg, "criterion")
        kind = CRITERION_REGISTRY.get(name)
        if kind is not None and not issubclass(kind, CRITERION_REGISTRY[self.name]):
            default = ", fairseq's default," if name == "cross_entropy" else ""
            raise ValueError(f"the task {self.name} needs --criterion {self.name}: {name}{default} does not fit it")
        return super().build_criterion(cfg, from_checkpoint)

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Make the batches of an epoch; arguments and result are fairseq's."""
        iterator = super().get_batch_iterator(*args, **kwargs)
        # Every epoch has an iterator of its own. Workers that outlive their epoch would add up over hundreds of them.
        iterator.persistent_workers = False
        return iterator

    def eval_lm_dataloader(self, *unused: Any, **unused_too: Any) -> Any:
        """Refuse fairseq-eval-lm, which asks a task for this, by a ValueError."""
        raise ValueError(
            "fairseq-eval-lm measures models that predict the next token, and this one does not: give the checkpoint "
            f"to fairseq-validate --task {self.name}"
        )

    @property
    def source_dictionary(self) -> Dictionary:
        """Return the vocabulary with fairseq's special symbols and <mask>."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary | None:
        """Return what is predicted over: None, unless a task says otherwise."""
        return None

    def max_positions(self) -> int:
        """Return the tokens of the longest sequence that the task makes."""
        return self.longest


def _registered_name(cfg: Any, option: str) -> Any:
    return cfg if isinstance(cfg, str) else getattr(cfg, "_name", None) or getattr(cfg, option, None)
