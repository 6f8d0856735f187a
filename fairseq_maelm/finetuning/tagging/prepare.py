"""The folder of a tagging task: token ids, label ids, and the layout of the labeled files that it is made from."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files.conll import LabeledFile, Layout, read
from fairseq_maelm.files.prepared_folder import read_manifest
from fairseq_maelm.finetuning.tables import header_reason
from fairseq_maelm.finetuning.tagging.schemes import (
    OUTSIDE,
    PLAIN,
    SchemeError,
    all_labels,
    check,
    convert,
    detect,
    split_label,
)
from fairseq_maelm.finetuning.task_folder import IGNORED, WHY_IGNORED, prepare_task_folder, save_split
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.vocabulary import UNKNOWN, TextEncoder

logger = logging.getLogger(__name__)

# A character of a script without spaces (Thai to Lao, Burmese, Khmer, kana, Han) and what varies its form; and a run.
_UNSPACED = (
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff][\ufe00-\ufe0f\U000e0100-\U000e01ef]*"
)
UNSPACED, UNSPACED_RUN = re.compile(_UNSPACED), re.compile(f"(?:{_UNSPACED})+")
_ENTITY_LIKE = re.compile("[BIESLU]-.")
_SHOWN = 10  # unknown labels to name in a message; a treebank's features have hundreds


@dataclass(frozen=True)
class TaggingSettings:
    """A task's labels; label id ``len(labels)`` stands for all labels that are not in the training file."""

    labels: tuple[str, ...]  # the model's labels, in the order of their ids
    scheme: str  # scheme of ``labels``: one of ``schemes.PREFIXES``, or "plain" for other labels than entities
    file_scheme: str  # scheme of the files and of predictions
    layout: Layout  # layout of the files
    longest_unspaced: int = 0  # most characters of ``UNSPACED`` in a row in a word of the training file

    @property
    def has_entities(self) -> bool:
        """True if the labels mark entities."""
        return self.scheme != PLAIN


def read_settings(folder: Path) -> TaggingSettings:
    """Read the settings of a task's folder; raises the errors of ``read_manifest``."""
    content = read_manifest(folder, "tagging")["tagging"]
    layout = Layout(**content["layout"])
    return TaggingSettings(**{**content, "labels": tuple(content["labels"]), "layout": layout})


class TaggedSplit(NamedTuple):
    """A split of W words and P pieces, as token ids and label ids."""

    pieces: NDArray[np.unsignedinteger]  # <uint16 or uint32>[P] of all words
    piece_counts: NDArray[np.int32]  # [W] pieces of each word, at least 1
    word_counts: NDArray[np.int32]  # [sentences] words of each sentence, at least 1
    labels: NDArray[np.int32]  # [W]


def encode_words(
    encoder: TextEncoder, sentences: Sequence[Sequence[str]], labels: Sequence[int] | None = None
) -> tuple[TaggedSplit, NDArray[np.int64]]:
    """Tokenize each word separately, as if it followed a space; label ids are 0 if ``labels`` is None.

    Return also the indices of words of control characters: without pieces, they become ``<unk>`` and are labeled too.
    """
    words = [clean_text(word) for words in sentences for word in words]
    pieces, lengths = encoder.encode_flat([encoder.word_prefix + word if word else "" for word in words])
    ends, counts = np.cumsum(lengths, dtype=np.int64) - 1, lengths - 1
    kept = np.ones(len(pieces), dtype=bool)
    kept[ends[counts > 0]] = False
    # An empty word consists of its end symbol.
    pieces[ends[counts == 0]] = UNKNOWN
    word_counts = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
    numbers = np.zeros(len(words), dtype=np.int32) if labels is None else np.array(labels, dtype=np.int32)
    return TaggedSplit(pieces[kept], np.maximum(counts, 1), word_counts, numbers), np.flatnonzero(counts == 0)


def prepare_tagging(
    vocabulary: Path,
    files: Mapping[str, Path],
    output: Path,
    layout: Layout,
    file_scheme: str = "auto",
    scheme: str = "iob2",
    allow_unknown: bool = False,
) -> TaggingSettings:
    """Prepare a task's folder from ``files``, split -> file; the training file defines the set of labels.

    ``file_scheme`` is the label scheme of the files, with "auto" that of the training file; ``scheme`` is the model's.
    "plain" labels are not converted. Errors are those of ``prepare_task_folder``.
    """

    def write(folder: Path, encoder: TextEncoder) -> dict[str, Any]:
        read_files = {split: read(path, layout) for split, path in files.items()}
        settings = _settings_of(read_files, layout, file_scheme, scheme)
        for split, file in read_files.items():
            save_split(folder, split, _numbered(file, settings, encoder, files["train"])._asdict())
        counts = {
            split: Counter(label for each in file.sentences for label in each.labels)
            for split, file in read_files.items()
        }
        plain = not settings.has_entities
        splits = {split: {"labels": dict(sorted(own.items()))} if plain else {} for split, own in counts.items()}
        return {"tagging": asdict(settings), "splits": splits}

    options = {**asdict(layout), "file_scheme": file_scheme, "scheme": scheme}
    options["format"] = options.pop("form")
    prepare_task_folder(output, "tagging", options, files, vocabulary, write, allow_unknown=allow_unknown)
    return read_settings(output)


def _settings_of(files: Mapping[str, LabeledFile], layout: Layout, file_scheme: str, scheme: str) -> TaggingSettings:
    """Check all files, and collect the labels of the training file."""
    train = files["train"]
    for file in files.values():
        for sentence in file.sentences:
            if IGNORED in sentence.labels:
                place = sentence.lines[sentence.labels.index(IGNORED)]
                raise ValueError(f"{file.path}:{place} has the label {IGNORED}, which {WHY_IGNORED}")
    if file_scheme == "auto":
        file_scheme = detect([sentence.labels for sentence in train.sentences])
        _refuse_doubtful(train, file_scheme)
        logger.info("%s: the labels are %s", train.path, "plain" if file_scheme == PLAIN else file_scheme.upper())
    scheme = PLAIN if file_scheme == PLAIN else scheme
    for file in files.values():
        if mistake := scheme_mistake(file, file_scheme):
            raise ValueError(
                f"{mistake}. If the labels have another scheme, name it with --file-scheme; plain is for labels that "
                "do not mark entities"
            )
        if file_scheme == PLAIN:
            _refuse_header(file, train)
    seen = {label for sentence in train.sentences for label in sentence.labels}
    kinds = [] if scheme == PLAIN else [split_label(label)[1] for label in seen - {OUTSIDE}]
    labels = sorted(seen) if scheme == PLAIN else all_labels(kinds, scheme)
    if len(labels) < 2:
        raise ValueError(f"{train.path} has {len(labels)} different labels: at least two are needed")
    runs = (run for sentence in train.sentences for word in sentence.words for run in UNSPACED_RUN.findall(word))
    longest = max((len(UNSPACED.findall(run)) for run in runs), default=0)
    return TaggingSettings(tuple(labels), scheme, file_scheme, layout, longest)


def scheme_mistake(file: LabeledFile, scheme: str) -> str:
    """Return the place of the first label that violates the scheme, with the reason; "" if all are valid."""
    for sentence in file.sentences if scheme != PLAIN else ():
        try:
            check(sentence.labels, scheme)
        except SchemeError as error:
            return f"{file.path}:{sentence.lines[error.word]}: {error}"
    return ""


def _refuse_doubtful(train: LabeledFile, detected: str) -> None:
    """Refuse a mixture of entity labels and other labels: it is probably a typo, not the plain scheme."""
    labels = {label: line for sentence in train.sentences for label, line in zip(sentence.labels, sentence.lines)}
    entity_like = sorted(label for label in labels if _ENTITY_LIKE.match(label))
    others = sorted(label for label in labels if label != OUTSIDE and not _ENTITY_LIKE.match(label))
    if detected == PLAIN and entity_like and others:
        raise ValueError(
            f"{train.path} has labels of entities ({entity_like[0]!r}), but also labels of another form: "
            f"{others[0]!r} (line {labels[others[0]]}). Correct these, or name the scheme with --file-scheme"
        )


def _refuse_header(file: LabeledFile, train: LabeledFile) -> None:
    """Refuse a header line, which would be read as a word and its label; CoNLL-U files have no header."""
    counts, known = (Counter(label for each in one.sentences for label in each.labels) for one in (file, train))
    words, labels, lines = file.sentences[0]
    label = labels[0]
    if file.layout.form == "conllu" or (file is not train and label in known):
        return
    if reason := header_reason([words[0]], label, counts):
        raise ValueError(
            f"{file.path}:{lines[0]} looks like a header: {reason}. Remove the line; if it is a word of a sentence, "
            "put another sentence first in the file"
        )


def _numbered(file: LabeledFile, settings: TaggingSettings, encoder: TextEncoder, train: Path) -> TaggedSplit:
    """Convert a file to token ids and label ids; plain labels that the training file lacks share an extra last id."""
    numbers = {label: number for number, label in enumerate(settings.labels)}
    unknown: dict[str, int] = {}
    labels: list[int] = []
    for sentence in file.sentences:
        converted = convert(sentence.labels, settings.scheme)
        for label, written, line in zip(converted, sentence.labels, sentence.lines):
            if label not in numbers:
                unknown.setdefault(written, line)
            labels.append(numbers.get(label, len(numbers)))
    if unknown:
        _report_unknown(file, train, unknown, labels.count(len(numbers)), len(labels), settings.scheme)
    split, nothing = encode_words(encoder, [sentence.words for sentence in file.sentences], labels)
    if len(nothing):
        lines = [line for sentence in file.sentences for line in sentence.lines]
        logger.warning(
            "%d words without a piece in the vocabulary became <unk>; the first: %s:%d",
            *(len(nothing), file.path, lines[nothing[0]]),
        )
    logger.info(
        "%s: %s sentences, %s words, %.2f pieces per word",
        *(file.path, f"{len(file.sentences):,}", f"{len(labels):,}", split.piece_counts.mean()),
    )
    return split


def _report_unknown(
    file: LabeledFile, train: Path, unknown: Mapping[str, int], words: int, of: int, scheme: str
) -> None:
    shown = ", ".join(f"{label!r} (line {line})" for label, line in list(unknown.items())[:_SHOWN])
    more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
    if scheme != PLAIN or 2 * words > of:
        raise ValueError(
            f"{file.path} has labels that {train} does not have: {shown}{more}. Correct them, or add sentences with "
            "them to the training file"
        )
    # Combined features are open-ended: every treebank's validation file has some that are not in its training file.
    logger.warning(
        "%s: %s of %s words (%.2f %%) always count as wrong, because %s does not have their labels: %s%s",
        *(file.path, f"{words:,}", f"{of:,}", 100 * words / of, train, shown, more),
    )
