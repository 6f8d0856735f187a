"""The sub-command ``maelm tag``."""

import argparse
import logging
import sys
from pathlib import Path

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import refuse_existing, write_bytes, write_json
from fairseq_maelm.finetuning.tagging.files import LabeledFile, read, relabeled
from fairseq_maelm.finetuning.tagging.metrics import score
from fairseq_maelm.finetuning.tagging.predict import Tagger, words_of
from fairseq_maelm.finetuning.tagging.prepare import check_scheme
from fairseq_maelm.finetuning.tagging.prepare_command import add_layout_arguments, layout_of
from fairseq_maelm.finetuning.tagging.prepared import TaggingSettings
from fairseq_maelm.finetuning.tagging.schemes import convert
from fairseq_maelm.lines import numbered_lines

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm tag``."""
    parser.description = (
        "Labels the words of a file and writes it again, in its own format, with the predicted labels; all else stays "
        "as it was. With --text, of plain text with a sentence a line, it writes word/LABEL."
    )
    parser.add_argument("input", type=Path, metavar="INPUT", help="file in the format of the task's files, or text")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of fine-tuning with the task maelm_tagging")
    parser.add_argument("--task", type=Path, help="folder of `maelm prepare tagging` (the folder of the checkpoint)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the new file (standard output)")
    parser.add_argument("--add", action="store_true", help="add a column, or Predicted= in MISC, and replace nothing")
    parser.add_argument("--text", action="store_true", help="the input is plain text, a sentence a line")
    parser.add_argument("--score", type=Path, metavar="FILE", help="compare with the input's labels; metrics as JSON")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="windows at a time (32)")
    add_device_argument(parser)
    add_layout_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Labels the input."""
    check_device(args.device)
    refuse_existing(*(path for path in (args.output, args.score) if path is not None))
    if args.text and (args.add or args.score):
        raise ValueError("plain text has no columns and no labels: leave out --add and --score")
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be 1 at least and is {args.batch_size}")
    tagger = Tagger(args.checkpoint, args.task or args.checkpoint.parent, args.batch_size, args.device)
    if args.text:
        _write(args.output, tag_text(tagger, [line for _, line in numbered_lines(args.input)]), "\n")
        return
    settings = tagger.settings
    explicit = args.format or args.column or args.word_column or args.comment_prefix
    layout = layout_of(args, args.input) if explicit else settings.layout
    file = read(args.input, layout, labeled=args.score is not None)
    if args.score:
        check_scheme(file, settings.file_scheme)
    if not args.add:
        _check_replaceable(file)
    labels = tagger.label_as_in_files([sentence.words for sentence in file.sentences])
    _write(args.output, relabeled(file, labels, args.add), file.newline)
    if args.score:
        metrics = metrics_of(file, labels, settings)
        logger.info(", ".join(f"{name} {metric:.2f}" for name, metric in metrics.items()))
        write_json(args.score, metrics)


def tag_text(tagger: Tagger, lines: list[str]) -> list[str]:
    """Lines of text as lines of word/LABEL; empty lines stay."""
    sentences = [words_of(line) for line in lines]
    filled = [words for words in sentences if words]
    if not filled:
        raise ValueError("the text has no words")
    labels = iter(tagger.label_as_in_files(filled))
    return [
        " ".join(f"{word}/{label}" for word, label in zip(words, next(labels))) if words else "" for words in sentences
    ]


def metrics_of(file: LabeledFile, labels: list[list[str]], settings: TaggingSettings) -> dict[str, float]:
    """Score predictions against the labels of a file, both in the scheme of files; see ``metrics.score``."""
    both = [sentence.labels for sentence in file.sentences], labels
    gold, predicted = ([convert(own, settings.scheme) for own in each] for each in both)
    return score(gold, predicted, settings.has_entities)


def _check_replaceable(file: LabeledFile) -> None:
    empty = next((sentence.lines[0] for sentence in file.sentences if not sentence.labels[0]), None)
    if empty is not None:
        raise ValueError(f"{file.place(empty)} has no column {file.layout.column} to replace: use --add to add one")


def _write(output: Path | None, lines: list[str], newline: str) -> None:
    content = "".join(line + newline for line in lines)
    if output is None:
        sys.stdout.write(content)
    else:
        write_bytes(output, content.encode("utf-8"))
