"""The fairseq task and criterion of classification and regression of sentences and sentence pairs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING
from torch import Tensor

from fairseq_maelm.checkpoints.fit import SETTINGS
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.fairseq_fixes.private import remember
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE, read_manifest
from fairseq_maelm.finetuning.criterion_base import FineTuningCriterion
from fairseq_maelm.finetuning.dataset_metrics import example_rows, log_predictions, metric_names
from fairseq_maelm.finetuning.doubtful_results import START
from fairseq_maelm.finetuning.sentences.dataset import SentencesDataset, load_targets
from fairseq_maelm.finetuning.sentences.frozen_head import fit_head
from fairseq_maelm.finetuning.sentences.mixture import mix_with_start
from fairseq_maelm.finetuning.sentences.table_settings import SHORTEST
from fairseq_maelm.launch.progress import running_trainer
from fairseq_maelm.launch.save_folder import DEFAULT as LAST_CHECKPOINT
from fairseq_maelm.models.labels import LABELS_FILE, default_positive, sentence_labels
from fairseq_maelm.modules.finetuning_heads import POOLING
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTask, EncoderTaskConfig
from fairseq_maelm.text.dictionary import class_names, load_dictionary

logger = logging.getLogger(__name__)

HEAD = "sentence_classification_head"
"""Name of the head that scores sentences; fairseq's own fine-tuning uses the same name."""


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
class SentencesTask(EncoderTask):
    """Classification or, if ``label_dictionary`` is None, regression of single sentences or sentence pairs.

    With a ``label_separator``, an example has any number of labels.
    """

    name = "maelm_sentences"
    setup_files = (*(f"input0/{name}" for name in EncoderTask.setup_files), LABELS_FILE)
    read_labels = staticmethod(sentence_labels)

    def __init__(self, cfg: Any, dictionary: Dictionary, label_dictionary: Dictionary | None) -> None:
        # Without the option ``build_model`` sets the limit; fairseq builds the model before it opens any data.
        super().__init__(cfg, dictionary, cfg.tokens_per_sample or 0)
        self.label_dictionary = label_dictionary
        self.label_separator: str | None = getattr(cfg, "label_separator", None)
        # A model whose head is to start from frozen states.
        self._new_model: Any = None
        # The weights before the first update, if the final ones may be mixed with them.
        self._start: dict[str, Tensor] = {}
        # The criterion's weights of the classes.
        self._class_weights: list[float] | None = None

    @classmethod
    def setup_task(cls, cfg: Any, from_checkpoint: bool = False, **unused: Any) -> "SentencesTask":
        """Load the vocabulary and the labels, and build the task; called by fairseq."""
        if not from_checkpoint:
            folder, longest = Path(cfg.data), cfg.tokens_per_sample
            prepared = read_manifest(folder, "sentences", "glue") if (folder / MANIFEST_FILE).is_file() else {}
            lengths = [longest, prepared.get("settings", {}).get("max_length")]
            remember(
                cfg,
                texts=1 + (folder / "input1").is_dir(),
                # Predictions truncate examples as training and preparation do.
                tokens_per_sample=min((length for length in lengths if length is not None), default=None),
                scale=prepared.get("scale"),
                label_separator=prepared.get("label_separator"),
            )
        labels = Path(cfg.data) / LABELS_FILE
        dictionary = load_dictionary(str(Path(cfg.data) / "input0"))
        return cls(cfg, dictionary, Dictionary.load(str(labels)) if labels.is_file() else None)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model with a head that has one output per class, or a single output for numbers."""
        model = super().build_model(cfg, from_checkpoint)
        self.longest = self.longest or model.max_positions()
        classes = 1 if self.label_dictionary is None else len(class_names(self.label_dictionary))
        model.register_classification_head(HEAD, classes, pooling=str(getattr(self.cfg, "pooling", "first")))
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
            mix_with_start(trainer.get_model(), self._start, HEAD, held_out, self._class_weights)
        self._start = {}

    def _start_from_frozen_states(self, model: Any) -> None:
        if self.cfg.finetune_from_model:
            # fairseq loads it again when training begins, and then says what of the checkpoint is dropped.
            weights = read_checkpoint(Path(self.cfg.finetune_from_model)).weights
            encoder = {name: each for name, each in weights.items() if name.startswith(("encoder.", SETTINGS))}
            model.load_state_dict(encoder, strict=True)
        else:
            logger.info("without --finetune-from-model, the frozen encoder has random weights")
        dataset = self.open_split(self.cfg.train_subset, training=False)
        if dataset.targets is None:
            raise ValueError(f"--head-start frozen needs the labels of {self.cfg.train_subset}: prepare it with labels")
        if self.label_dictionary is None and len(dataset) < 2:
            raise ValueError(
                f"{self.cfg.data} has 1 row to learn numbers from: prepare it with at least 2 for training"
            )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        head = model.classification_heads[HEAD]
        said = fit_head(model, head, dataset, dataset.targets, device, self._class_weights)
        self.state.merge_state_dict({START: said})

    def open_split(self, split: str, training: bool, *unused: Any) -> SentencesDataset:
        """Open a split."""
        folder, limit = Path(self.cfg.data), self.longest
        dictionaries = self.dictionary, self.label_dictionary
        multi_label = self.label_separator is not None
        dataset = SentencesDataset(folder, split, *dictionaries, limit, self.cfg.seed, training, multi_label)
        logger.info("%s: %s examples of up to %d tokens", split, f"{len(dataset):,}", dataset.sizes.max(initial=0))
        if dataset.cut:
            logger.warning(
                "%s: %s examples are longer than %d tokens and are truncated", split, f"{dataset.cut:,}", limit
            )
        return dataset


def _balanced_weights(prefix: Path, labels: Dictionary) -> list[float]:
    """Return weights of the classes by which all have the same sum over a split, and the mean of its examples is 1."""
    targets = load_targets(prefix, labels)
    if targets is None:
        raise ValueError(f"--class-weights balanced needs the labels {prefix}.idx: prepare the task with --train")
    counts = np.bincount(targets, minlength=len(class_names(labels)))
    return [len(targets) / (len(counts) * max(1, count)) for count in counts.tolist()]


def _unpacked(output: dict[str, Any]) -> dict[str, Any]:
    names, count = ("gold", "predicted") if "labels" in output else (), output.get("labels")
    return {**output, **{name: np.unpackbits(output[name], axis=-1, count=count) for name in names}}


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
        super().__init__(task)
        self.regression = task.label_dictionary is None
        self.multi_label = getattr(task, "label_separator", None) is not None
        labels = [] if self.regression else class_names(task.label_dictionary)
        wanted = cfg.positive_label
        if wanted and (len(labels) != 2 or wanted not in labels or self.multi_label):
            raise ValueError(
                f"--positive-label {wanted} must be one of two labels, but the data have {', '.join(labels)}"
                f"{', any number of them in a row' * self.multi_label}"
            )
        positive = wanted or default_positive(labels)
        self.positive = None if positive is None else labels.index(positive)
        # Not a buffer, which half precision would round.
        self.class_weights: list[float] | None = None
        if str(cfg.class_weights) == "balanced":
            if self.regression or self.multi_label:
                have = "numbers" if self.regression else "rows with any number of labels"
                raise ValueError(f"--class-weights balanced is for classes, but the data have {have}: omit it")
            self.class_weights = _balanced_weights(
                Path(task.cfg.data) / "label" / task.cfg.train_subset, task.label_dictionary
            )

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the summed loss of B examples (nats or squared errors), the number of terms, and the values to log.

        There is a term for each example, or for each label of the data in each example.
        """
        if "target" not in sample:
            raise ValueError("this split has no labels to validate on: use `maelm predict`")
        scores, _ = model(**sample["net_input"], features_only=True, classification_head_name=HEAD)
        if self.multi_label:
            return self._multi_label_result(sample, scores.float(), model.training)
        target, scores = sample["target"].view(-1), scores.float()
        correct, rows = None, {}
        if self.regression:
            predictions = scores.view(-1)
            loss = F.mse_loss(predictions, target.float(), reduction="sum")
        else:
            predictions = scores.argmax(dim=-1)
            # Validation shows the loss on the data as they are.
            weights = (
                None if self.class_weights is None or not model.training else scores.new_tensor(self.class_weights)
            )
            loss = F.cross_entropy(scores, target, weights, reduction="sum")
            correct = (predictions == target).sum() if model.training else None
        if not model.training:
            rows = {"positive": self.positive, **example_rows(sample, target, predictions)}
        return self.result(sample, loss, len(target), correct, squares=self.regression, **rows)

    def _multi_label_result(
        self, sample: dict[str, Any], scores: Tensor, training: bool
    ) -> tuple[Tensor, int, dict[str, Any]]:
        target = sample["target"]
        loss = F.binary_cross_entropy_with_logits(scores, target.float(), reduction="sum")
        if training:
            return self.result(sample, loss, target.numel())
        # Eight labels in a byte, because fairseq limits the size of logging outputs.
        packed = (torch.from_numpy(np.packbits(each.cpu().numpy(), axis=-1)) for each in (target, scores >= 0))
        rows: dict[str, Any] = {"labels": target.shape[-1], **example_rows(sample, *packed)}
        return self.result(sample, loss, target.numel(), **rows)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss of all batches and ranks, and the metrics of a whole validation set."""
        super().reduce_metrics(logging_outputs)
        validated = [output for output in logging_outputs if "ids" in output]
        if validated:
            first, positive = validated[0], validated[0].get("positive")
            names = metric_names(first.get("squares", False), positive, "labels" in first)
            log_predictions(map(_unpacked, validated), names, positive)
