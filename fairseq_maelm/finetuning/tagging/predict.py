"""Labeling words with a fine-tuned checkpoint."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_maelm.finetuning.tagging.criterion import HEAD
from fairseq_maelm.finetuning.tagging.prepared import TaggedSplit, TaggingSettings, pieces_of_words
from fairseq_maelm.finetuning.tagging.schemes import convert
from fairseq_maelm.finetuning.tagging.task import TaggingTask
from fairseq_maelm.models.hub import MaelmHubInterface, load
from fairseq_maelm.models.predicting import predict
from fairseq_maelm.text.imported import open_encoder

# At the ends of a word between spaces, punctuation is a word of its own; within it ("don't", "3.5") it is not.
_AT_THE_ENDS = re.compile(r"^([^\w\s]*)(.*?)([^\w\s]*)$", re.DOTALL)


class Tagger:
    """A fine-tuned model and the labels that it knows.

    Args:
        checkpoint: of a run of ``maelm_tagging``.
        task_folder: of ``maelm prepare tagging``, the one that it was trained on.
        batch_size: windows at a time.
        device: torch's name of where the model runs.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the checkpoint is no tagger, or one of other labels.
    """

    def __init__(self, checkpoint: Path, task_folder: Path, batch_size: int = 32, device: str = "cpu") -> None:
        folder, name = os.path.split(os.path.abspath(checkpoint))
        self.hub: MaelmHubInterface = load(folder, name, os.path.abspath(task_folder))
        if not isinstance(self.hub.task, TaggingTask):
            raise ValueError(f"{checkpoint} was not trained by the task maelm_tagging, so it labels no words")
        self.task: TaggingTask = self.hub.task
        self.settings: TaggingSettings = self.task.settings
        outputs = len(self.hub.model.classification_heads.state_dict()[f"{HEAD}.out_proj.weight"])
        if outputs != len(self.settings.labels):
            raise ValueError(
                f"{checkpoint} knows {outputs} labels and {task_folder} has {len(self.settings.labels)}: give the "
                "folder that it was trained on"
            )
        self.hub.to(device)
        self.encoder = open_encoder(task_folder)
        self.batch_size = batch_size

    def label(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Label the words of sentences, of any length.

        Returns:
            for every sentence a label of each word, in the scheme that the model learned.
        """
        pieces, piece_counts, _ = pieces_of_words(self.encoder, sentences)
        word_counts = np.array([len(words) for words in sentences], dtype=np.int32)
        split = TaggedSplit(pieces, piece_counts, word_counts, np.zeros(len(piece_counts), dtype=np.int32))
        dataset = self.task.dataset_of(split, shuffle=False)

        def best(batch: dict[str, Any]) -> Iterator[list[int]]:
            logits, _ = self.hub.model(**batch["net_input"], classification_head_name=HEAD)
            numbers = iter(logits.flatten(0, 1).index_select(0, batch["rows"]).argmax(dim=1).tolist())
            return ([next(numbers) for _ in range(words)] for words in batch["words"].tolist())

        windows = predict(
            self.hub.model,
            dataset.sizes,
            lambda places: dataset.collater(places.tolist()),
            best,
            batch_size=self.batch_size,
            progress="labeling",
        )
        labels: list[list[str]] = [[] for _ in sentences]
        for (sentence, _), numbers in zip(dataset.windows, windows):
            labels[sentence] += [self.settings.labels[number] for number in numbers]
        return labels

    def label_as_in_files(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """As ``label``, with entities written in the scheme of the files that the task was prepared from."""
        return [convert(labels, self.settings.file_scheme) for labels in self.label(sentences)]


def words_of(text: str) -> list[str]:
    """Cut plain text into words at white space, and punctuation off their ends, one sign a word."""
    words: list[str] = []
    for part in text.split():
        found = _AT_THE_ENDS.match(part)
        before, word, after = found.groups() if found else ("", part, "")
        words += [*before, *([word] if word else []), *after]
    return words
