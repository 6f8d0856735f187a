"""The base class for this package's tasks, with the pretraining vocabulary and checks for models and criterions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import II

from fairseq_maelm.architecture.encoder_options import SIZES
from fairseq_maelm.fairseq_fixes import mend_fairseq
from fairseq_maelm.fairseq_fixes.batches import TaskOnUnevenRanks
from fairseq_maelm.launch.progress import running_trainer
from fairseq_maelm.launch.run_record import VOCABULARY_FILES
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.layer_modes import prepares_shapes
from fairseq_maelm.options import check_options


@dataclass
class EncoderTaskConfig(FairseqDataclass):
    """What every task takes from other sections of a run's configuration; these are not options of the task."""

    seed: int = II("common.seed")
    train_subset: str = II("dataset.train_subset")


class EncoderTask(TaskOnUnevenRanks):
    """A task with the vocabulary of pretraining, fairseq's dictionary with ``<mask>``."""

    name: str  # of the task and of its criterion
    length_option = "--tokens-per-sample"  # limits the length of sequences
    # Files that set up the task, as paths relative to the data folder; they are copied into the save folder.
    setup_files: ClassVar[tuple[str, ...]] = VOCABULARY_FILES
    # Read by the model: tasks that predict masked tokens need its decoder and LM head.
    predicts_masked_tokens = False

    # Called with (split, training, epoch, combine): opens a split for training or for validation; ``combine`` adds the
    # split's further files.
    open_split: Callable[[str, bool, int, bool], FairseqDataset]

    def __init__(self, cfg: Any, dictionary: Dictionary, longest: int) -> None:
        super().__init__(cfg)
        check_options(cfg, TASK_DATACLASS_REGISTRY[self.name])
        self.dictionary = dictionary
        self.longest = longest
        # Splits that were opened for validation. fairseq's ``datasets`` has one entry for a split, so that a split to
        # train on replaces itself there; see ``fairseq_fixes.batches``.
        self.validated: dict[str, FairseqDataset] = {}

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
        # In a user's own program, training begins here.
        mend_fairseq()
        return super().build_criterion(cfg, *from_checkpoint)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **unused: Any) -> None:
        """Open a split; called by fairseq, which combines a split's files to train on it.

        Only --train-subset is trained on, with random numbers that change in every epoch. Every other split, and this
        one too if it is measured (--valid-subset valid,train), is the same at every validation.
        """
        training = combine and split == self.cfg.train_subset
        self.datasets[split] = opened = self.open_split(split, training, epoch, combine)
        if not training:
            self.validated[split] = opened

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of an epoch, as in fairseq."""
        trainer = running_trainer()
        dataset.few_shapes = trainer is not None and prepares_shapes(trainer.get_model())
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
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
