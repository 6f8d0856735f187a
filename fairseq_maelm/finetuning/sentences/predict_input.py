"""Predictions of classes and numbers for ``maelm predict``."""

import argparse
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_maelm.finetuning.predicted import Predicted, hub_of
from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics, metric_names
from fairseq_maelm.finetuning.sentence_scores import score_split
from fairseq_maelm.finetuning.sentences.prepare_command import add_column_arguments, columns_of
from fairseq_maelm.finetuning.sentences.table import Example, read_table
from fairseq_maelm.models.classification import classify, most_likely
from fairseq_maelm.text.dictionary import class_names


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where a table has its texts and labels."""
    add_column_arguments(parser)


def predict_input(args: argparse.Namespace) -> Predicted:
    """Predict a label and its probability, or a value, for each row of a table or of a prepared split."""
    hub = hub_of(args)
    regression = hub.config.task.get("regression_target", hub.task.label_dictionary is None)
    names = [] if regression else class_names(hub.task.label_dictionary)
    if args.input.is_dir():
        scores = score_split(hub, args.split, args.batch_size)
        logits = torch.from_numpy(scores.outputs).double()
        predicted: Any = logits[:, 0].tolist() if regression else most_likely(logits, names)
        targets = scores.targets
    else:
        examples = _rows(args, names, regression)
        predicted = classify(hub, [example.texts for example in examples], HEAD, args.batch_size)
        targets = _targets(examples, names, regression)
    metrics = None
    if targets is not None:
        found = np.array(predicted if regression else [names.index(each.label) for each in predicted])
        metrics = compute_metrics(metric_names(regression, None), targets, found)
    if regression:
        return Predicted("value\n" + "".join(f"{value:.6g}\n" for value in predicted), metrics)
    return Predicted("label\tprobability\n" + "".join(f"{label}\t{share:.4f}\n" for label, share in predicted), metrics)


def _rows(args: argparse.Namespace, names: list[str], regression: bool) -> list[Example]:
    """The rows of a table. Without names of columns, the last one holds labels if all of them can be."""
    columns = columns_of(args)
    if columns.text is not None:
        return list(read_table(args.input, columns))
    examples = list(read_table(args.input, texts=1))
    unknown = [example for example in examples if not _can_be_label(example.label, names, regression)]
    if not unknown:
        return examples
    if unknown == examples[:1] != examples:
        raise ValueError(f"{unknown[0].place} looks like a header: name the columns with --text and --label")
    return list(read_table(args.input, texts=len(examples[0].texts) + 1))


def _can_be_label(text: Optional[str], names: list[str], regression: bool) -> bool:
    if text is None or not regression:
        return text is None or text in names
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _targets(examples: list[Example], names: list[str], regression: bool) -> Optional[NDArray[Any]]:
    """Classes <int64>[n] or numbers <float64>[n] of the rows; None where a table has no labels."""
    if examples[0].label is None:
        return None
    for example in examples:
        if not _can_be_label(example.label, names, regression):
            raise ValueError(f"{example.place} has the label {example.label!r}, which the checkpoint does not know")
    return np.array([float(str(each.label)) if regression else names.index(str(each.label)) for each in examples])
