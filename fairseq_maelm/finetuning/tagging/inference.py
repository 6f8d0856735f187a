"""Predictions of word labels for ``maelm predict``."""

import argparse
import logging
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from fairseq_maelm.files.conll import LabeledFile, lacks_labels, layout_of, read, relabeled
from fairseq_maelm.files.lines import numbered_lines, uncompressed_name
from fairseq_maelm.finetuning.predicted import Predicted
from fairseq_maelm.finetuning.tagging.prepare import (
    UNSPACED,
    UNSPACED_RUN,
    TaggingSettings,
    encode_words,
    scheme_mistake,
)
from fairseq_maelm.finetuning.tagging.schemes import convert, score
from fairseq_maelm.finetuning.tagging.task import HEAD
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.options import UsageError

logger = logging.getLogger(__name__)

# Share of known labels from which on columns are taken for words and labels, and not for prose.
_MOST = 0.5
_JOINED = ("Mn", "Mc", "Me", "Cf")  # the Unicode categories of combining marks and of joiners


def predict_input(hub: MaelmHubInterface, args: argparse.Namespace) -> Predicted:
    """Label the words in a CoNLL file or in plain text."""
    if args.input.is_dir():
        raise UsageError(f"{args.input} is a folder: give the labeled file that it was prepared from")
    settings: TaggingSettings = hub.task.settings
    outputs = len(hub.model.classification_heads.state_dict()[f"{HEAD}.out_proj.weight"])
    if outputs != len(settings.labels):
        raise ValueError(
            f"{args.checkpoint} has {outputs} labels, but {args.vocabulary} has {len(settings.labels)}: give the "
            "folder that the checkpoint was trained on as --vocabulary"
        )
    layout = layout_of(args, args.input, settings.layout)
    if (
        uncompressed_name(args.input).suffix.lower() in ("", ".txt")
        and layout is settings.layout
        and not _is_labeled(args, settings)
    ):
        if args.keep_labels:
            raise UsageError("plain text has no labels: omit --keep-labels, or name the --format of the file")
        return Predicted(_tagged_text(hub, args), None)
    file = read(args.input, layout, labeled=False)
    labels = _labels_as_in_files(hub, args, [sentence.words for sentence in file.sentences])
    has_no_column = lacks_labels(file)
    lines = relabeled(file, labels, add=args.keep_labels or has_no_column)
    text = "".join(line + file.newline for line in lines)
    return Predicted(text, *_measured(file, labels, settings))


def label_words(hub: MaelmHubInterface, sentences: Sequence[Sequence[str]], batch_size: int = 32) -> list[list[str]]:
    """Label the words of sentences of any length, in the model's label scheme."""
    split, _ = encode_words(hub.tokenizer.encoder, sentences)
    dataset = hub.task.dataset_of(split, shuffle=False)

    def best(batch: dict[str, Any]) -> Iterator[list[int]]:
        numbers = iter(hub.task.labels.found(hub.task.scores(hub.model, batch)).tolist())
        return ([next(numbers) for _ in range(words)] for words in batch["words"].tolist())

    windows = predict(
        hub.model, dataset.sizes, dataset.collater, best, batch_size=batch_size, progress="windows of words"
    )
    labels: list[list[str]] = [[] for _ in sentences]
    for (sentence, _), numbers in zip(dataset.windows, windows):
        labels[sentence] += [hub.task.settings.labels[number] for number in numbers]
    return labels


def _labels_as_in_files(hub: Any, args: argparse.Namespace, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    return [convert(each, hub.task.settings.file_scheme) for each in label_words(hub, sentences, args.batch_size)]


def _is_labeled(args: argparse.Namespace, settings: TaggingSettings) -> bool:
    """Return whether a .txt file has the columns of the training data, with labels most of which are the checkpoint's.

    No text looks like CoNLL-U by chance, so its labels may be unknown or missing.
    """
    try:
        file = read(args.input, settings.layout, labeled=False)
        if settings.layout.form == "conllu":
            return True
        labels = [label for sentence in file.sentences for label in convert(sentence.labels, settings.scheme)]
    except ValueError:
        return False
    return sum(label in settings.labels for label in labels) > _MOST * len(labels)


def _tagged_text(hub: MaelmHubInterface, args: argparse.Namespace) -> str:
    """Tag the lines of a text; return lines of ``word/LABEL`` pairs, with empty lines kept."""
    longest, sentences = hub.task.settings.longest_unspaced, []
    for number, line in numbered_lines(args.input):
        try:
            sentences.append(words_of(line, longest))
        except ValueError as error:
            raise ValueError(f"{args.input}:{number} {error}") from error
    filled = [words for words in sentences if words]
    if not filled:
        raise ValueError(f"{args.input} has no words")
    labels = iter(_labels_as_in_files(hub, args, filled))
    pairs = [zip(words, next(labels)) if words else () for words in sentences]
    return "".join(" ".join(f"{word}/{label}" for word, label in line) + "\n" for line in pairs)


def words_of(text: str, longest_unspaced: int = 0) -> list[str]:
    """Split text at white space, and separate each punctuation character at the ends of a word.

    Punctuation within a word stays ("don't", "3.5"), and a combining mark belongs to the character before it. If the
    training file's words have single characters of scripts without spaces, so have these (``longest_unspaced`` is 1);
    otherwise raise ValueError for more of them than in any of its words.
    """
    if longest_unspaced == 1:
        text = UNSPACED.sub(r" \g<0> ", text)
    runs = UNSPACED_RUN.findall(text) if longest_unspaced else []
    if long := [run for run in runs if len(UNSPACED.findall(run)) > longest_unspaced]:
        raise ValueError(
            f"has {long[0][:20]!r} as one word, but the words of the training file have at most {longest_unspaced} "
            "such characters: separate words by spaces, or give a .conll file with a word on each line"
        )
    words: list[str] = []
    for part in text.split():
        characters: list[str] = []
        for character in part:
            if characters and unicodedata.category(character) in _JOINED:
                characters[-1] += character
            else:
                characters.append(character)
        inside = [place for place, each in enumerate(characters) if not _is_punctuation(each[0])]
        if not inside:
            words += characters
            continue
        first, last = inside[0], inside[-1] + 1
        words += [*characters[:first], "".join(characters[first:last]), *characters[last:]]
    return words


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS" and character != "_"


def _measured(
    file: LabeledFile, labels: list[list[str]], settings: TaggingSettings
) -> tuple[dict[str, float] | None, list[str], list[str]]:
    """Return metrics, and all right and predicted labels in the checkpoint's scheme; nothing without valid labels."""
    own = {label for sentence in file.sentences for label in sentence.labels}
    if "" in own or own == {"_"} or "_" in own - set(settings.labels):
        return None, [], []
    if mistake := scheme_mistake(file, settings.file_scheme):
        logger.warning("no metrics: %s", mistake)
        return None, [], []
    both = [sentence.labels for sentence in file.sentences], labels
    gold, predicted = ([convert(labels, settings.scheme) for labels in each] for each in both)
    metrics = score(gold, predicted, settings.has_entities)
    return metrics, list(chain.from_iterable(gold)), list(chain.from_iterable(predicted))
