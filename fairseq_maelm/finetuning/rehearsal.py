"""A rehearsal of a task before its first run, which finds mistakes in seconds and counts the updates.

fairseq's own parser reads the options, and a very small model processes one training batch and one validation batch.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import tasks, utils
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics

from fairseq_maelm.checkpoints.fit import dictionary_fingerprint
from fairseq_maelm.finetuning.training import words_of
from fairseq_maelm.train_command import parse_training

# The smallest model; it keeps its number of positions, which limits the length of examples.
_SMALL = {
    "encoder-layers": 1,
    "encoder-embed-dim": 8,
    "encoder-ffn-embed-dim": 8,
    "encoder-attention-heads": 1,
    "cpu": True,
    "num-workers": 0,
}
_BATCH = 2


class Rehearsal(NamedTuple):
    """The results of a rehearsal."""

    examples: int  # number of examples that training uses
    updates_per_epoch: dict[int, int]  # batch size -> updates in a pass over these examples
    vocabulary: int  # the data's, as ``Encoder.vocabulary``


def rehearse(words: Sequence[str], batch_sizes: Sequence[int], metric: str, reported: Sequence[str]) -> Rehearsal:
    """Try a task, and count its updates at each batch size.

    Args:
        words: fairseq-train, the task's folder, and all options of a run.
        batch_sizes: numbers of examples in a batch.
        metric: metric that every validation set must log.
        reported: metrics that the first validation set must log.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the options, the data or the metrics are wrong.
    """
    data = Path(words[1])
    if not data.is_dir():
        raise FileNotFoundError(f"there is no folder {data}")
    with _quiet():
        parsed = parse_training([*words[1:], *words_of(_SMALL)])
        try:
            config = convert_namespace_to_omegaconf(parsed)
            task = tasks.setup_task(config.task)
            model = task.build_model(config.model)
            criterion = task.build_criterion(config.criterion)
            logged = _validate_a_little(config, task, model, criterion)
            counted = _count(config, task, model, batch_sizes)
            model.train()
            criterion(model, _first_examples(task.dataset("train")))
        except (FileNotFoundError, ValueError):
            raise
        except Exception as error:  # whatever fails here would fail in a run
            raise ValueError(
                f"the first batch of {data} cannot be computed: {type(error).__name__}: {error}"
            ) from error
    _check_metrics(logged, metric, reported)
    return Rehearsal(*counted, dictionary_fingerprint(model.encoder.dictionary))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence fairseq's log and all warnings; errors are raised as exceptions."""
    logger = logging.getLogger("fairseq")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_examples(dataset: Any) -> dict[str, Any]:
    if not len(dataset):
        raise ValueError("a split of the data is empty")
    return dataset.collater([dataset[index] for index in range(min(_BATCH, len(dataset)))])


def _validate_a_little(config: Any, task: Any, model: Any, criterion: Any) -> dict[str, set[str]]:
    """Return validation set -> names of the metrics that it logs."""
    data_utils.raise_if_valid_subsets_unintentionally_ignored(config)
    logged = {}
    for subset in config.dataset.valid_subset.split(","):
        task.load_dataset(subset, combine=False, epoch=1)
        with metrics.aggregate(new_root=True) as found, torch.no_grad():
            _, _, output = task.valid_step(_first_examples(task.dataset(subset)), model, criterion)
            task.reduce_metrics([output], criterion)
        logged[subset] = {name for name in found if not name.startswith("_")}
    return logged


def _count(config: Any, task: Any, model: Any, batch_sizes: Sequence[int]) -> tuple[int, dict[int, int]]:
    """Return the number of training examples, and batch size -> updates of an epoch, as fairseq will form them."""
    task.load_dataset("train", combine=True, epoch=1)
    dataset, updates, examples = task.dataset("train"), {}, 0
    longest = utils.resolve_max_positions(task.max_positions(), model.max_positions(), config.dataset.max_tokens)
    for size in batch_sizes:
        iterator = task.get_batch_iterator(
            dataset=dataset,
            max_tokens=config.dataset.max_tokens,
            max_sentences=size,
            max_positions=longest,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=config.dataset.required_batch_size_multiple,
            seed=config.common.seed,
            disable_iterator_cache=True,
        )
        batches = iterator.frozen_batches
        examples = sum(len(batch) for batch in batches)
        updates[size] = math.ceil(len(batches) / config.optimization.update_freq[0])
    if examples < len(dataset):
        logging.getLogger(__name__).warning(
            "%s of %s training examples are longer than %s tokens and will not be seen",
            f"{len(dataset) - examples:,}", f"{len(dataset):,}", longest,
        )  # fmt: skip
    return examples, updates


def _check_metrics(logged: dict[str, set[str]], metric: str, reported: Sequence[str]) -> None:
    first = next(iter(logged))
    for subset, names in logged.items():
        missing = [name for name in ((metric, *reported) if subset == first else (metric,)) if name not in names]
        if missing:
            raise ValueError(
                f"validation on {subset} logs no {' and no '.join(dict.fromkeys(missing))}, but only "
                f"{', '.join(sorted(names))}: choose among these, or give the criterion the option that makes it log "
                "the others"
            )
