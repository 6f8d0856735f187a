"""The base class for this package's tasks, with the pretraining vocabulary and checks for models and criterions."""

from typing import Any, ClassVar

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask

from fairseq_maelm.fairseq_fixes.setup_files import VOCABULARY_FILES
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.sizes import SIZES


class EncoderTask(FairseqTask):
    """A task with the vocabulary of pretraining, fairseq's dictionary with ``<mask>``."""

    name: str  # of the task and of its criterion
    # Files that set up the task, as paths relative to the data folder; they are copied into the save folder.
    setup_files: ClassVar[tuple[str, ...]] = VOCABULARY_FILES
    # Read by the model: tasks that predict masked tokens need its decoder and LM head.
    predicts_masked_tokens = False

    def __init__(self, cfg: Any, dictionary: Dictionary, longest: int) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.longest = longest

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model; called by fairseq.

        Raises:
            ValueError: the model does not exist, or cannot be used with this task.
        """
        name = _registered_name(cfg, "arch")
        kind = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
        if name is not None and kind is None:
            raise ValueError(f"there is no model or size {name!r}; choose one of {', '.join(SIZES)}")
        if kind is not None and not issubclass(kind, MaelmModel):
            raise ValueError(
                f"the task {self.name} works only with models of this package, but {name} is not one of them: give "
                f"--arch with one of {', '.join(SIZES)}, or use a task of fairseq, such as masked_lm or "
                "sentence_prediction"
            )
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: Any, *from_checkpoint: bool) -> Any:
        """Build the criterion; called by fairseq, which passes ``from_checkpoint`` in versions after 0.12.2.

        Raises:
            ValueError: the criterion cannot be used with this task.
        """
        name = _registered_name(cfg, "criterion")
        kind = CRITERION_REGISTRY.get(name)
        if kind is not None and not issubclass(kind, CRITERION_REGISTRY[self.name]):
            default = " (fairseq's default)" if name == "cross_entropy" else ""
            raise ValueError(f"the task {self.name} cannot use {name}{default}: give --criterion {self.name}")
        return super().build_criterion(cfg, *from_checkpoint)

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of an epoch, as in fairseq."""
        iterator = super().get_batch_iterator(*args, **kwargs)
        # Each epoch makes a new iterator, so persistent workers would accumulate.
        iterator.persistent_workers = False
        return iterator

    def eval_lm_dataloader(self, *unused: Any, **unused_too: Any) -> Any:
        """Raise a ValueError: fairseq-eval-lm cannot evaluate this task."""
        raise ValueError(
            "fairseq-eval-lm evaluates models that predict the next token, and this one does not: use fairseq-validate "
            f"--task {self.name}"
        )

    @property
    def source_dictionary(self) -> Dictionary:
        """The vocabulary with fairseq's special symbols and <mask>."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary | None:
        """The dictionary of predicted tokens, that of the input; None if masked tokens are not predicted."""
        return self.dictionary if type(self).predicts_masked_tokens else None

    def max_positions(self) -> int:
        """Return the largest number of tokens in a sequence."""
        return self.longest


def _registered_name(cfg: Any, option: str) -> Any:
    return cfg if isinstance(cfg, str) else getattr(cfg, "_name", None) or getattr(cfg, option, None)
