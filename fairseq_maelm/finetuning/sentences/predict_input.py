"""Predictions of classes and numbers for ``maelm predict``."""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.arguments import add_settings, settings_of
from fairseq_maelm.files import read_json
from fairseq_maelm.finetuning.predicted import Predicted, hub_of, label_lines, value_lines
from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics, metric_names, positive_class
from fairseq_maelm.finetuning.sentence_table import Columns, Example, read_table
from fairseq_maelm.finetuning.sentences.glue import INDEX_FOLDER
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.models.classification import classify, most_likely
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.prepared_folder import MANIFEST_FILE
from fairseq_maelm.text.dictionary import class_names


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the columns of texts and labels."""
    add_settings(parser, Columns)


def predict_input(args: argparse.Namespace) -> Predicted:
    """Predict a label and its probability, or a value, for each row of a table or of a prepared split.

    Predictions for a split of ``maelm prepare glue`` have the layout of GLUE's submissions.
    """
    hub = hub_of(args)
    regression = hub.config.task.get("regression_target", hub.task.label_dictionary is None)
    names = [] if regression else class_names(hub.task.label_dictionary)
    _check_head(args, hub, 1 if regression else len(names))
    if args.input.is_dir():
        logits, targets = score_split(hub, args.split, args.batch_size)
        predicted: Any = logits[:, 0].tolist() if regression else most_likely(logits, names)
    else:
        examples = _rows(args, names, regression)
        predicted = classify(hub, [example.texts for example in examples], HEAD, args.batch_size)
        targets = _targets(examples, names, regression)
    metrics = None
    if targets is not None:
        found = np.array(predicted if regression else [names.index(each.label) for each in predicted])
        positive = positive_class(names)
        metrics = compute_metrics(metric_names(regression, positive), targets, found, positive)
    return Predicted(_text(args, predicted, regression), metrics)


def _check_head(args: argparse.Namespace, hub: MaelmHubInterface, expected: int) -> None:
    heads: Any = hub.model.classification_heads
    if HEAD not in heads:
        raise ValueError(f"{args.checkpoint} has no head {HEAD!r}: fine-tune it on the task first")
    outputs = heads[HEAD].out_proj.out_features
    if outputs != expected:
        raise ValueError(
            f"{args.checkpoint} was fine-tuned on another task: its head has {outputs} outputs, and the labels in "
            f"{args.vocabulary} need {expected}"
        )


def _text(args: argparse.Namespace, predicted: Any, regression: bool) -> str:
    manifest = args.input / MANIFEST_FILE
    glue = read_json(manifest) if manifest.is_file() else {}
    if glue.get("kind") == "glue":
        lines = (args.input / INDEX_FOLDER / f"{args.split}.txt").read_text(encoding="ascii").split()
        if regression:
            highest = glue["scale"]
            predictions = [f"{min(max(highest * value, 0.0), highest):.3f}" for value in predicted]
        else:
            predictions = [each.label for each in predicted]
        rows = zip(lines, predictions, strict=True)
        return "index\tprediction\n" + "".join(f"{index}\t{prediction}\n" for index, prediction in rows)
    return value_lines(predicted) if regression else label_lines(predicted)


def score_split(hub: MaelmHubInterface, split: str, batch_size: int) -> tuple[Tensor, NDArray[Any] | None]:
    """Run a model over a prepared split.

    Returns:
        outputs <float64>[n, outputs] in the order of the file; and the targets, <int64>[n] classes or <float32>[n]
        numbers, None for a split without labels.
    """
    hub.task.load_dataset(split)
    dataset = hub.task.datasets[split]
    sizes = np.array([dataset.size(number) for number in range(len(dataset))])
    limit = hub.model.max_positions()
    if sizes.max() > limit:
        raise ValueError(
            f"split {split} has examples of {sizes.max()} tokens, but the model has {limit} positions: prepare the "
            f"task with --max-length {limit}"
        )

    def run(sample: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        scores, _ = hub.model(sample["net_input"]["src_tokens"], features_only=True, classification_head_name=HEAD)
        targets = sample["target"].view(-1).cpu().numpy() if "target" in sample else itertools.repeat(None)
        return zip(scores.double().cpu(), targets)

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


def _rows(args: argparse.Namespace, names: list[str], regression: bool) -> list[Example]:
    """Return the rows of a table; without given columns, the last one has labels if all its cells can be labels."""
    columns = settings_of(Columns, args)
    if columns.text is not None:
        return list(read_table(args.input, columns))
    examples = list(read_table(args.input, texts=1))
    unknown = [example for example in examples if not _can_be_label(example.label, names, regression)]
    if not unknown:
        return examples
    if unknown == examples[:1] != examples:
        raise ValueError(f"{unknown[0].place} looks like a header: name the columns with --text and --label")
    return list(read_table(args.input, texts=len(examples[0].texts) + 1))


def _can_be_label(text: str | None, names: list[str], regression: bool) -> bool:
    if text is None or not regression:
        return text is None or text in names
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _targets(examples: list[Example], names: list[str], regression: bool) -> NDArray[Any] | None:
    """Return classes <int64>[n] or numbers <float64>[n] of the rows; None for a table without labels."""
    if examples[0].label is None:
        return None
    for example in examples:
        if not _can_be_label(example.label, names, regression):
            raise ValueError(f"{example.place} has the label {example.label!r}, which the checkpoint does not know")
    return np.array([float(str(each.label)) if regression else names.index(str(each.label)) for each in examples])
