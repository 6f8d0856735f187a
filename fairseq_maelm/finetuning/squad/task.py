"""The fairseq task and criterion of extractive question answering, with or without unanswerable questions."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_maelm.data.token_files import check_array
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.finetuning.squad.dataset import SPECIAL_TOKENS, SquadDataset
from fairseq_maelm.finetuning.squad.prepare import PreparedSplit, load_split
from fairseq_maelm.finetuning.squad.scoring import LOGIT_THRESHOLD, metric_names, raw_scores, squad_metrics
from fairseq_maelm.finetuning.squad.spans import WINDOW_DTYPE, best_of_questions, null_odds, window_rows
from fairseq_maelm.models.labels import Labels, Spans
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTaskConfig
from fairseq_maelm.tasks.finetuning import FineTuningCriterion, FineTuningTask, NoOptions, log_collected
from fairseq_maelm.text.dictionary import MASK

logger = logging.getLogger(__name__)

SPAN_HEAD = "span_head"

_SMALLEST_WINDOW = 8  # minimum number of pieces of context in a window with the longest question


@dataclass
class SquadTaskConfig(EncoderTaskConfig):
    """Options of the task."""

    data: str = option(MISSING, help="folder written by `maelm prepare squad`")
    max_length: int = option(512, help="maximum number of tokens in a sequence: question, window and 4 special tokens")
    doc_stride: int = option(128, help="number of pieces between the starts of successive windows", minimum=1)
    max_question_length: int = option(
        64, help="maximum number of pieces in a question; longer questions are truncated", minimum=1
    )
    max_answer_length: int = option(30, help="maximum number of pieces in a predicted answer", minimum=1)
    n_best: int = option(
        20,
        help="number of start positions to consider in each window, and number of answers in n-best lists",
        minimum=1,
    )
    null_threshold: float = option(
        LOGIT_THRESHOLD,
        help="predict 'no answer' if its score exceeds that of the best answer by more than this, in logits; used by "
        "the metrics exact, f1, HasAns_* and NoAns_*, while best_* find their own threshold",
    )
    squad_version: ChoiceEnum(["auto", "1.1", "2.0"]) = option(  # type: ignore[valid-type]
        "auto",
        help="version of SQuAD's rules: '1.1' always predicts an answer, 'auto' takes the version of the training data "
        "and keeps it in checkpoints",
    )


@register_task("maelm_squad", dataclass=SquadTaskConfig)
class SquadTask(FineTuningTask):
    """Extractive question answering; ``cfg`` is a ``SquadTaskConfig``."""

    name = "maelm_squad"
    length_option = "--max-length"
    head = SPAN_HEAD

    def __init__(self, cfg: Any, *setup: Any) -> None:
        super().__init__(cfg, *setup)
        needed = cfg.max_question_length + SPECIAL_TOKENS + _SMALLEST_WINDOW
        if cfg.max_length < needed:
            raise ValueError(
                f"--max-length {cfg.max_length} leaves no room for a context after a question of "
                f"{cfg.max_question_length} pieces: give at least {needed}, or a lower --max-question-length"
            )

    @staticmethod
    def read_labels(config: Any, folders: Any) -> Spans:
        """Return the rules of answers; see ``fairseq_maelm.models.labels.read_labels``."""
        cfg = config.task
        threshold = float(getattr(cfg, "null_threshold", LOGIT_THRESHOLD))
        return Spans(version=str(getattr(cfg, "squad_version", "auto")), null_threshold=threshold)

    @classmethod
    def facts(cls, cfg: Any) -> dict[str, Any]:
        """Return the version of the training data."""
        path = Path(cfg.data) / MANIFEST_FILE
        if str(cfg.squad_version) != "auto" or not path.is_file():
            return {}
        return {"squad_version": read_json(path)["splits"][cfg.train_subset]["version"]}

    def add_head(self, model: Any) -> None:
        """Add a head that gives every token a start score and an end score."""
        model.register_token_head(SPAN_HEAD, self.labels.outputs)

    def open_examples(self, split: str, training: bool) -> SquadDataset:
        """Open a split and cut it into windows."""
        prepared = load_split(self.cfg.data, split)
        for name in ("question_tokens", "context_tokens"):
            check_array(Path(self.cfg.data) / f"{split}.npz", prepared.arrays[name], self.dictionary.index(MASK))
        if not training and prepared.texts.answers is None:
            logger.warning("%s has no answers: it can be predicted but not scored", split)
        return self.dataset_of(prepared, split, training)

    def dataset_of(self, prepared: PreparedSplit, name: str, training: bool = False) -> SquadDataset:
        """Cut contexts into windows according to the task's options."""
        return SquadDataset(prepared, self.cfg, self.dictionary, name, training)

    def version_of(self, prepared: PreparedSplit) -> str:
        """Return the version of the scoring rules for a split, "1.1" or "2.0"."""
        chosen = str(self.cfg.squad_version)
        return prepared.texts.version if chosen == "auto" else chosen

    def scores(self, model: Any, sample: Mapping[str, Any]) -> Tensor:
        """Return scores <float32>[B, S, 2] of each token as first and as last one; only the context's and <s> count."""
        allowed = sample["context_mask"].clone()
        allowed[:, 0].fill_(True)
        return super().scores(model, sample).masked_fill(~allowed[..., None], -torch.inf)

    def found(self, sample: Mapping[str, Any], scores: Tensor) -> dict[str, Any]:
        """Return the best answer <WINDOW_DTYPE>[B] of every window, and the name of the split."""
        return {"split": sample["split"], "windows": window_rows(scores, sample, self.cfg, kept=1)[:, 0]}

    def rows(self, found: Mapping[str, Any]) -> Iterable[tuple[int, Any]]:
        """Yield windows with their indices."""
        return ((int(row["window"]), row) for row in found["windows"])

    def log_found(self, found: Sequence[Mapping[str, Any]], labels: Labels) -> None:
        """Log the official metrics, if the split has answers."""
        dataset: Any = self.validated[found[0]["split"]]
        answers = dataset.split.texts.answers
        if answers is None:
            return
        names = metric_names(self.version_of(dataset.split), list(map(bool, answers)))

        def metrics(collected: Mapping[int, Any]) -> Mapping[str, float]:
            # fairseq also requests the metrics of each batch, and does not use them.
            if len(collected) < len(dataset):
                return dict.fromkeys(names, math.nan)
            table = np.array([collected[window] for window in sorted(collected)], dtype=WINDOW_DTYPE)
            return self.official_metrics(dataset, best_of_questions(table, dataset.windows.first))

        log_collected((row for each in found for row in self.rows(each)), metrics, names)

    def official_metrics(self, dataset: Any, best: np.ndarray, threshold: float | None = None) -> dict[str, float]:
        """Return the metrics of answers <WINDOW_DTYPE>[Q]; ``threshold`` is by default ``--null-threshold``."""
        split, version = dataset.split, self.version_of(dataset.split)
        raw = raw_scores(split.texts.answers or [], split.answer_texts(best["first"], best["last"]), version)
        if version == "1.1":
            return squad_metrics(raw, version)
        threshold = self.cfg.null_threshold if threshold is None else threshold
        return squad_metrics(raw, version, null_odds(best), threshold)


@register_criterion("maelm_squad", dataclass=NoOptions)
class SquadCriterion(FineTuningCriterion):
    """Mean of the cross-entropies of an answer's first and last token, summed over windows with a target.

    The softmax is over ``<s>``, which stands for no answer, and the tokens of the context. The criterion logs ``loss``
    in bits per window and ``span_accuracy``, the percentage of windows whose first and last token are both predicted
    correctly. The official metrics are logged by the task, because they need the texts.
    """

    accuracy = "span_accuracy"
