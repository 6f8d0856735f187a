"""An encoder's frozen states of texts and words, computed once for all layers in batches of similar length."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.analysis.checkpoints import CheckpointEncoder
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.windows import cut_windows
from fairseq_maelm.models.batched_inference import Places, batches_by_length
from fairseq_maelm.modules.autocast import computing_in

POOLINGS = ("mean", "first")
States = NDArray[np.float32]


class EncodedWords(NamedTuple):
    """Sentences of words as sequences of tokens; words that do not fit into a sequence continue in the next one."""

    sequences: list[NDArray[np.int64]]  # <int64>[n] each, special symbols included
    places: NDArray[np.int64]  # <int64>[words, 3] sequence index, first token, end token (exclusive)


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder, with the settings for computing its states."""

    name: str  # for progress bars
    encoder: CheckpointEncoder  # on ``device``
    layers: list[int]  # layers whose states are kept, 0 for the embeddings
    max_length: int  # maximum number of tokens in a sequence; longer texts are truncated
    batch_tokens: int  # number of tokens in a batch, padding included
    precision: str  # one of ``fairseq_maelm.options.PRECISIONS``; the states are single precision
    device: str

    @property
    def _room(self) -> int:
        return min(self.max_length, self.encoder.max_length) - 2

    def _enclosed(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        vocabulary = self.encoder.vocabulary
        return np.array([vocabulary.first, *tokens, vocabulary.line_end], dtype=np.int64)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return a text's token ids <int64>[n], special symbols included, truncated to ``max_length``."""
        return self._enclosed(self.encoder.encode_line(text)[: self._room])

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> EncodedWords:
        """Tokenize each word separately, as if it followed a space."""
        words = dict.fromkeys(word for sentence in sentences for word in sentence)
        known = {word: self.encoder.encode_line(f" {word}")[: self._room] for word in words}
        sequences, places = list[NDArray[np.int64]](), list[tuple[int, int, int]]()
        for sentence in sentences:
            pieces = [known[word] for word in sentence]
            ends = [0, *itertools.accumulate(map(len, pieces))]
            for start, stop in cut_windows(ends, self._room, 0):
                # 1 for the first symbol; a word without any tokens is represented by the token after it.
                shift = 1 - ends[start]
                places += [(len(sequences), ends[word] + shift, ends[word + 1] + shift) for word in range(start, stop)]
                sequences.append(self._enclosed(list(itertools.chain(*pieces[start:stop]))))
        return EncodedWords(sequences, np.array(places, dtype=np.int64))

    def states(
        self, sequences: Sequence[NDArray[np.int64]], title: str
    ) -> Iterator[tuple[Places, Tensor, list[Tensor]]]:
        """Yield batches: indices, tokens <int64>[B, S], and states <float32>[B, S, D] for each chosen layer."""
        for places, tokens in self.batches(sequences, title):
            with torch.inference_mode(), self.computing():
                states = self.encoder.hidden_states(tokens)
            yield places, tokens, [states[layer].float() for layer in self.layers]

    def batches(self, sequences: Sequence[NDArray[np.int64]], title: str) -> Iterator[tuple[Places, Tensor]]:
        """Yield batches: sequence indices, and tokens <int64>[B, S]."""
        lengths = np.array([len(sequence) for sequence in sequences])
        with tqdm(total=len(sequences), desc=f"{self.name}: {title}", unit=" texts", mininterval=1, leave=False) as bar:
            for places in batches_by_length(lengths, self.batch_tokens):
                rows = [sequences[place] for place in places.tolist()]
                tokens = pad_rows(rows, lengths[places], self.encoder.vocabulary.pad)
                yield places, torch.from_numpy(tokens).to(self.device)
                bar.update(len(places))

    def computing(self) -> AbstractContextManager[Any]:
        """Return a context manager for computation in the chosen precision."""
        return computing_in(self.precision, torch.empty(0, device=self.device), training=False)

    def pooled(self, texts: Sequence[str], title: str) -> States:
        """Return pooled states <float32>[layers, poolings, texts, D].

        Mean pooling excludes special symbols, except for a text that has no other tokens.
        """
        result = np.empty((len(self.layers), len(POOLINGS), len(texts), self.encoder.width), dtype=np.float32)
        for places, tokens, states in self.states([self.encode(text) for text in texts], title):
            counted = tokens.ne(self.encoder.vocabulary.pad)
            lengths = counted.sum(dim=1)
            own = counted.clone()
            own[:, 0] = False
            own[torch.arange(len(own)), lengths - 1] = False
            counted = torch.where((lengths > 2)[:, None], own, counted)
            weights = (counted / counted.sum(dim=1, keepdim=True))[:, None, :]
            for layer, each in enumerate(states):
                result[layer, 0, places] = (weights @ each)[:, 0].cpu()
                result[layer, 1, places] = each[:, 0].cpu()
        return result

    def first_subwords(self, sentences: Sequence[Sequence[str]], title: str) -> States:
        """Return the states <float32>[layers, words, D] of the first token of each word."""
        encoded = self.encode_words(sentences)
        order = np.argsort(encoded.places[:, 0], kind="stable")
        bounds = np.searchsorted(encoded.places[order, 0], np.arange(len(encoded.sequences) + 1))
        result = np.empty((len(self.layers), len(order), self.encoder.width), dtype=np.float32)
        for places, _, states in self.states(encoded.sequences, title):
            words = [order[bounds[place] : bounds[place + 1]] for place in places.tolist()]
            rows = torch.from_numpy(np.repeat(np.arange(len(places)), [len(each) for each in words]))
            chosen = np.concatenate(words)
            columns = torch.from_numpy(encoded.places[chosen, 1])
            for layer, each in enumerate(states):
                result[layer, chosen] = each[rows, columns].cpu()
        return result
