"""Predictions of classes and numbers for ``maelm predict``."""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.finetuning.predicted import Predicted, measured, predict_rows, table_text
from fairseq_maelm.finetuning.sentences.prepare import INDEX_FOLDER
from fairseq_maelm.finetuning.sentences.task import HEAD
from fairseq_maelm.finetuning.tables import ColumnsWithId, Example, labels_in, read_table, refuse_header, table_rows
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.models.classification import score_texts
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.models.labels import LABELS_FILE, Labels
from fairseq_maelm.options import UsageError, settings_of
from fairseq_maelm.text.dictionary import class_names


def predict_input(hub: MaelmHubInterface, args: argparse.Namespace) -> Predicted:
    """Predict label probabilities, or a number, for each row in a table or a prepared split.

    Predictions for a split of ``maelm prepare glue`` have the format of GLUE submissions.
    """
    labels: Any = hub.labels
    _check_head(args, hub, labels)
    if args.input.is_dir():
        for field in dataclasses.fields(ColumnsWithId):
            if getattr(args, field.name) is not None:
                option = f"--{field.name.replace('_', '-')}"
                raise UsageError(f"{option} is for tables, but {args.input} is a prepared folder: omit it")
        # The folder of --vocabulary may be another one.
        hub.task.cfg.data = str(args.input)
        _refuse_texts(args, hub, 1 + (args.input / "input1").is_dir())
        scores, targets = score_split(hub, args.split, args.batch_size)
        return measured(_text_of_split(args, scores, labels), scores, targets, labels)
    examples = read_rows(args, labels)
    _refuse_texts(args, hub, len(examples[0].texts))
    return predict_rows(examples, lambda texts: score_texts(hub, texts, HEAD, args.batch_size, "rows"), labels)


def _check_head(args: argparse.Namespace, hub: MaelmHubInterface, labels: Labels) -> None:
    heads: Any = hub.model.classification_heads
    if HEAD not in heads:
        raise ValueError(f"{args.checkpoint} has no head {HEAD!r}: fine-tune it on the task first")
    outputs = heads[HEAD].out_proj.out_features
    if outputs != labels.outputs:
        raise ValueError(
            f"{args.checkpoint} was fine-tuned on another task: its head has {outputs} outputs, but the labels in "
            f"{args.vocabulary} need {labels.outputs}"
        )
    check_labels(args, labels)


def check_labels(args: argparse.Namespace, labels: Labels) -> None:
    """Raise an error if the checkpoint's folder has other labels, which the outputs of its head stand for."""
    own = args.checkpoint.parent / LABELS_FILE
    trained_on = class_names(Dictionary.load(str(own))) if own.is_file() and labels.outputs > 1 else []
    different = [pair for pair in zip(trained_on, labels.names) if pair[0] != pair[1]]
    for trained, other in different[:1]:
        raise ValueError(
            f"{args.checkpoint} was fine-tuned on other labels ({trained!r}) than those in {args.vocabulary} "
            f"({other!r}): give a table of texts, or a folder with the same labels"
        )


def _refuse_texts(args: argparse.Namespace, hub: MaelmHubInterface, given: int) -> None:
    """Raise an error if single texts are given to a checkpoint trained on pairs, or vice versa."""
    trained = hub.limits.texts
    if trained is None or trained == given:
        return
    known, read = (("single texts", "pairs of texts")[number - 1] for number in (trained, given))
    remedy = "name the column of the text with --text, and omit --text-pair"
    if trained == 2:
        remedy = "name the two columns of texts with --text and --text-pair"
    remedy = "give a task folder that was prepared like the training data" if args.input.is_dir() else remedy
    raise UsageError(f"{args.checkpoint} was fine-tuned on {known}, but {args.input} has {read}: {remedy}")


def _text_of_split(args: argparse.Namespace, scores: Tensor, labels: Any) -> str:
    manifest = args.input / MANIFEST_FILE
    glue = read_json(manifest) if manifest.is_file() else {}
    if glue.get("kind") != "glue":
        return table_text([labels.columns, *labels.cells(scores)])
    ids = (args.input / INDEX_FOLDER / f"{args.split}.txt").read_text(encoding="ascii").split()
    return table_text([("index", "prediction"), *zip(ids, labels.submitted(scores, glue["scale"]), strict=True)])


def score_split(hub: MaelmHubInterface, split: str, batch_size: int) -> tuple[Tensor, NDArray[Any] | None]:
    """Run a model over a prepared split; return scores <float64>[n, outputs], and targets or None for no labels."""
    hub.task.load_dataset(split)
    dataset = hub.task.datasets[split]
    sizes = np.array([dataset.size(number) for number in range(len(dataset))])
    limit = hub.model.max_positions()
    if sizes.max() > limit:
        raise ValueError(
            f"the split {split} has examples of {sizes.max()} tokens, but the model has {limit} positions: prepare "
            f"the task with --max-length {limit}"
        )

    def run(sample: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        scores, _ = hub.model(sample["net_input"]["src_tokens"], features_only=True, classification_head_name=HEAD)
        if "target" not in sample:
            return zip(scores.double().cpu(), itertools.repeat(None))
        # One row or number for each example: fairseq's own task has targets [B, 1].
        return zip(scores.double().cpu(), sample["target"].view(len(scores), -1).squeeze(-1).cpu().numpy())

    results = predict(
        hub.model,
        sizes,
        lambda places: dataset.collater([dataset[int(place)] for place in places]),
        run,
        batch_size=batch_size,
        progress=split,
    )
    outputs, targets = zip(*results)
    return torch.stack(outputs), None if targets[0] is None else np.array(targets)


def read_rows(args: argparse.Namespace, labels: Labels) -> list[Example]:
    """Read a table's rows; without --text, the last column is read as labels if all its cells are valid labels."""
    separator, columns = labels.separator, settings_of(ColumnsWithId, args)
    if columns.text is not None:
        return list(read_table(args.input, columns, 1, complete=bool, label_separator=separator))
    rows = list(table_rows(args.input, columns.delimiter))
    if rows:
        refuse_header(*rows[0])
    width = len(rows[0][1]) if rows else 0
    last = [] if width < 2 or isinstance(rows[0][1], dict) else [row[-1].strip() for _, row in rows]
    cells = [
        [cell] if separator is None else [*filter(None, map(str.strip, labels_in(cell, separator) or ()))]
        for cell in last
    ]
    unknown = [number for number, names in enumerate(cells) if not all(map(labels.accepts, names))]
    if unknown == [0] and last[0] and len(rows) > 1:
        refuse_header(*rows[0], certain=True)
    # All sets may be empty: that is a column of texts or of nothing.
    texts = width if unknown or not any(map(any, cells)) else 1
    return list(read_table(args.input, columns, texts, complete=bool, rows=rows, label_separator=separator))
