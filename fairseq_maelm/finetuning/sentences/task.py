"""The fairseq task and criterion of classification and regression of sentences and sentence pairs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING
from torch import Tensor

from fairseq_maelm.checkpoints.fit import SETTINGS
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE, read_manifest
from fairseq_maelm.finetuning.doubtful_results import START
from fairseq_maelm.finetuning.sentences.dataset import SentencesDataset
from fairseq_maelm.finetuning.sentences.frozen_start import fit_head, mix_with_start
from fairseq_maelm.finetuning.sentences.kind import SHORTEST
from fairseq_maelm.launch.progress import running_trainer
from fairseq_maelm.launch.save_folder import DEFAULT as LAST_CHECKPOINT
from fairseq_maelm.models.labels import LABELS_FILE, sentence_labels
from fairseq_maelm.modules.finetuning_heads import POOLING
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTask, EncoderTaskConfig
from fairseq_maelm.tasks.finetuning import FineTuningCriterion, FineTuningTask

logger = logging.getLogger(__name__)

HEAD = "sentence_classification_head"  # scores sentences; fairseq's own fine-tuning has the same name


@dataclass
class SentencesTaskConfig(EncoderTaskConfig):
    """Options of the task."""

    data: str = option(MISSING, help="folder written by `maelm prepare sentences` or `maelm prepare glue`")
    tokens_per_sample: Optional[int] = option(
        None,
        help="maximum number of tokens in an example, special tokens included; longer examples are truncated "
        "(default: the model's number of positions)",
        minimum=SHORTEST,
    )
    texts: Optional[int] = option(None, help="number of texts in an example, 1 or 2 (default: that of the data)")
    scale: Optional[float] = option(
        None, help="divisor of the numbers in the data, by which predictions are multiplied (default: that of the data)"
    )
    label_separator: Optional[str] = option(
        None, help="character between labels, if an example has any number of them (default: that of the data)"
    )
    pooling: ChoiceEnum(list(POOLING)) = option(  # type: ignore[valid-type]
        "first", help="what the head reads: the state of the first token, or the mean of all tokens' states"
    )
    head_start: ChoiceEnum(["random", "frozen"]) = option(  # type: ignore[valid-type]
        "random",
        help="first weights of the head: random, or those that predict the training labels best while the encoder is "
        "frozen (logistic regression on its states; for numbers, ridge regression)",
    )
    mix_start: bool = option(
        False,
        help="after the last update, mix the weights before the first update and after the last one, by how likely "
        "mixtures make the labels of the validation set, once scores are divided by the best temperature. It needs "
        "--head-start frozen and --max-update",
    )
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    save_dir: Optional[str] = II("checkpoint.save_dir")


@register_task("maelm_sentences", dataclass=SentencesTaskConfig)
class SentencesTask(FineTuningTask):
    """Classes, numbers or sets of labels of single sentences or sentence pairs."""

    name = "maelm_sentences"
    head = HEAD
    vocabulary = "input0"
    setup_files = (*(f"input0/{name}" for name in EncoderTask.setup_files), LABELS_FILE)
    read_labels = staticmethod(sentence_labels)

    def __init__(self, *setup: Any) -> None:
        super().__init__(*setup)
        self._new_model: Any = None  # whose head is to start from frozen states
        self._start: dict[str, Tensor] = {}  # weights before the first update, which the final ones may be mixed with
        self._class_weights: list[float] | None = None  # the criterion's

    @classmethod
    def facts(cls, cfg: Any) -> dict[str, Any]:
        """Return the number of texts, the limit of tokens, and what the manifest says of the labels."""
        folder = Path(cfg.data)
        prepared = read_manifest(folder, "sentences", "glue") if (folder / MANIFEST_FILE).is_file() else {}
        lengths = [cfg.tokens_per_sample, prepared.get("settings", {}).get("max_length")]
        return {
            "texts": 1 + (folder / "input1").is_dir(),
            # Predictions truncate examples as training and preparation do.
            "tokens_per_sample": min((length for length in lengths if length is not None), default=None),
            **{name: prepared.get(name) for name in ("scale", "label_separator")},
        }

    def add_head(self, model: Any) -> None:
        """Add a head with the task's pooling."""
        pooling = str(getattr(self.cfg, "pooling", "first"))
        model.register_classification_head(HEAD, self.labels.outputs, pooling=pooling)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, and note whether its head is to start from frozen states; called by fairseq."""
        model = super().build_model(cfg, from_checkpoint)
        if from_checkpoint:
            return model
        frozen = str(getattr(self.cfg, "head_start", "random")) == "frozen"
        mixes = bool(getattr(self.cfg, "mix_start", False))
        if mixes and not frozen:
            raise ValueError("--mix-start needs --head-start frozen")
        # A resumed run has learned its head already.
        if frozen and (mixes or not Path(self.cfg.save_dir, LAST_CHECKPOINT).is_file()):
            self._new_model = model
        return model

    def build_criterion(self, cfg: Any, *from_checkpoint: bool) -> Any:
        """Build the criterion; then start the model's head, because the start takes the criterion's class weights."""
        criterion = super().build_criterion(cfg, *from_checkpoint)
        self._class_weights, model, self._new_model = criterion.class_weights, self._new_model, None
        if model is not None:
            self._start_from_frozen_states(model)
            if self.cfg.mix_start:
                self._start = {name: each.detach().clone() for name, each in model.named_parameters()}
        return criterion

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Mix the weights of --mix-start, after the last update; called on all ranks."""
        super().begin_valid_epoch(epoch, model)
        trainer = running_trainer()
        if not self._start or trainer is None or trainer.get_num_updates() < trainer.cfg.optimization.max_update:
            return
        held_out = self.dataset(trainer.cfg.dataset.valid_subset.split(",")[0])
        # Without labels, the criterion refuses to validate.
        if held_out.targets is not None:
            mix_with_start(self, trainer.get_model(), self._start, held_out, self._class_weights)
        self._start = {}

    def _start_from_frozen_states(self, model: Any) -> None:
        if self.cfg.finetune_from_model:
            # fairseq loads it again when training begins, and then says what of the checkpoint is dropped.
            weights = read_checkpoint(Path(self.cfg.finetune_from_model)).weights
            encoder = {name: each for name, each in weights.items() if name.startswith(("encoder.", SETTINGS))}
            model.load_state_dict(encoder, strict=True)
        else:
            logger.info("without --finetune-from-model, the frozen encoder has random weights")
        dataset: Any = self.open_split(self.cfg.train_subset, training=False)
        if dataset.targets is None:
            raise ValueError(f"--head-start frozen needs the labels of {self.cfg.train_subset}: prepare it with labels")
        if not self.labels.is_likelihood and len(dataset) < 2:
            raise ValueError(
                f"{self.cfg.data} has 1 row to learn numbers from: prepare it with at least 2 for training"
            )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        said = fit_head(model, model.classification_heads[HEAD], dataset, device, self._class_weights)
        self.state.merge_state_dict({START: said})

    def open_examples(self, split: str, training: bool) -> SentencesDataset:
        """Open a split."""
        folder, seed = Path(self.cfg.data), self.cfg.seed
        return SentencesDataset(folder, split, self.dictionary, self.labels, self.longest, seed, training)


@dataclass
class SentencesCriterionConfig(FairseqDataclass):
    """Options of the criterion."""

    positive_label: str = option(
        "",
        help="label that counts as positive in F1, for tasks with two labels (default: '1' or 'entailment', if the "
        "task has this label)",
    )
    class_weights: ChoiceEnum(["none", "balanced"]) = option(  # type: ignore[valid-type]
        "none",
        help="weights of the examples in training: equal, or balanced, so that all classes together weigh the same",
    )


@register_criterion("maelm_sentences", dataclass=SentencesCriterionConfig)
class SentencesCriterion(FineTuningCriterion):
    """Cross-entropy for classes, binary cross-entropy for sets of labels, or squared error for numbers.

    Logged for classes: ``loss`` (bits per example) and ``accuracy``; on a whole validation set also ``mcc`` and, if one
    of two labels is positive, ``f1``. Logged for numbers: ``loss`` (mean squared error); on a whole validation set also
    ``pearson`` and ``spearman``. Logged for sets: ``loss`` (bits per label of the data, so that gradients are those of
    the mean over examples and labels, as in transformers); on a whole validation set also ``micro_f1``, ``macro_f1``
    and ``subset_accuracy``. All but ``loss`` are in percent.
    """

    def __init__(self, cfg: SentencesCriterionConfig, task: Any) -> None:
        super().__init__(cfg, task)
        if cfg.positive_label:
            self.labels = task.labels.with_positive(cfg.positive_label)
        if str(cfg.class_weights) == "balanced":
            prefix = Path(task.cfg.data, "label", task.cfg.train_subset)
            targets = self.labels.read(prefix)
            if targets is None:
                raise ValueError(
                    f"--class-weights balanced needs the labels {prefix}.idx: prepare the task with --train"
                )
            self.class_weights = self.labels.balanced_weights(targets)
