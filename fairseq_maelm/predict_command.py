"""The sub-command ``maelm predict``: what a fine-tuned checkpoint says of a file, whatever it was fine-tuned on."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import refuse_existing, write_bytes
from fairseq_maelm.finetuning.glue.predict import score_split
from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics, metric_names
from fairseq_maelm.finetuning.sentences.prepare_command import add_column_arguments, columns_of
from fairseq_maelm.finetuning.sentences.table import Example, read_table
from fairseq_maelm.finetuning.squad.predict import score_windows
from fairseq_maelm.finetuning.squad.predict_command import METRICS, PREDICTIONS, contents_of
from fairseq_maelm.finetuning.squad.prepare import build_split
from fairseq_maelm.finetuning.squad.prepared import load_split
from fairseq_maelm.finetuning.squad.reading import read_squad
from fairseq_maelm.finetuning.tagging.files import read, relabeled
from fairseq_maelm.finetuning.tagging.predict import Tagger
from fairseq_maelm.finetuning.tagging.tag_command import metrics_of, tag_text
from fairseq_maelm.lines import numbered_lines
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.classification import classify, most_likely
from fairseq_maelm.models.hub import MaelmHubInterface, load
from fairseq_maelm.text.dictionary import class_names
from fairseq_maelm.text.imported import open_encoder

# The predictions as text, and metrics where the input has labels.
Predicted = tuple[str, Optional[Mapping[str, float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm predict``."""
    parser.description = (
        "Writes what a fine-tuned checkpoint predicts. Tables of texts (.tsv, .csv, .jsonl): a label and its "
        "probability, or a value, for each row. CoNLL files: the file with its labels replaced; .txt: word/LABEL. "
        "SQuAD's JSON: id -> answer. Where the input has labels, metrics follow in one line of JSON."
    )
    parser.add_argument(
        "input", type=Path, metavar="INPUT", help="a file, or a prepared folder (then --split of it), as in training"
    )
    parser.add_argument("--checkpoint", required=True, type=Path, help="of fine-tuning")
    parser.add_argument("--output", type=Path, metavar="FILE", help="for the predictions (standard output)")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="with vocabulary and labels, as the task's (the checkpoint's)"
    )
    parser.add_argument("--split", default="valid", help="of a prepared folder (valid)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="examples at a time (32)")
    add_device_argument(parser)
    add_column_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Predicts; predictions go to the output, metrics to standard output.

    Raises:
        OSError: a file is missing, or the output is there already.
        ValueError: the input or the checkpoint is not as it must be.
    """
    check_device(args.device)
    if args.output is not None:
        refuse_existing(args.output)
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be 1 at least and is {args.batch_size}")
    if not args.input.exists():
        raise FileNotFoundError(f"there is no {args.input}")
    task = read_checkpoint(args.checkpoint).task_name
    if task not in _PREDICT:
        raise ValueError(
            f"{args.checkpoint} is of the task {task}: predictions need a checkpoint of {', '.join(_PREDICT)}"
        )
    text, metrics = _PREDICT[task](args)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_bytes(args.output, text.encode("utf-8"))
    if metrics is not None:
        sys.stdout.write(json.dumps(metrics) + "\n")


def _data(args: argparse.Namespace) -> Path:
    """The folder of vocabulary and labels."""
    folder: Path = args.data or (args.input if args.input.is_dir() else args.checkpoint.absolute().parent)
    return folder.absolute()


def _hub(args: argparse.Namespace) -> MaelmHubInterface:
    folder = str(args.checkpoint.absolute().parent)
    return load(folder, args.checkpoint.name, str(_data(args))).to(args.device)


def _predict_sentences(args: argparse.Namespace) -> Predicted:
    hub = _hub(args)
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
        return "value\n" + "".join(f"{value:.6g}\n" for value in predicted), metrics
    return "label\tprobability\n" + "".join(f"{label}\t{share:.4f}\n" for label, share in predicted), metrics


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


def _predict_answers(args: argparse.Namespace) -> Predicted:
    hub = _hub(args)
    if args.input.is_dir():
        split = load_split(args.input, args.split)
    else:
        split, _ = build_split(open_encoder(_data(args)), read_squad(args.input), "questions")
    dataset = hub.task.dataset_of(split, "questions")
    candidates = score_windows(hub, dataset, hub.task.cfg.n_best, progress=True)
    contents = contents_of(hub.task, dataset, candidates, hub.task.cfg.null_threshold)
    return json.dumps(contents[PREDICTIONS], indent=1) + "\n", contents.get(METRICS)


def _predict_tags(args: argparse.Namespace) -> Predicted:
    if args.input.is_dir():
        raise ValueError("labels are written into a file as it was: give the file, not the folder made from it")
    tagger = Tagger(args.checkpoint, _data(args), args.batch_size, args.device)
    if args.input.suffix == ".txt":
        return "".join(f"{line}\n" for line in tag_text(tagger, [line for _, line in numbered_lines(args.input)])), None
    file = read(args.input, tagger.settings.layout, labeled=False)
    labels = tagger.label_as_in_files([sentence.words for sentence in file.sentences])
    own = {label for sentence in file.sentences for label in sentence.labels}
    lines = relabeled(file, labels, add="" in own)
    metrics = None if own & {"", "_"} else metrics_of(file, labels, tagger.settings)
    return "".join(line + file.newline for line in lines), metrics


_PREDICT: dict[str, Callable[[argparse.Namespace], Predicted]] = {
    "maelm_sentences": _predict_sentences,
    "sentence_prediction": _predict_sentences,
    "maelm_squad": _predict_answers,
    "maelm_tagging": _predict_tags,
}
