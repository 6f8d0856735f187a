"""The hub interface: an object that applies a checkpoint to sentences."""

import copy
import functools
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import tasks
from torch import Tensor, nn

from fairseq_maelm.architecture.families import FAMILIES
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.checkpoints.fit import build_with_heads
from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.models.batched_inference import Places, predict
from fairseq_maelm.models.classification import find_head, labels_of_head, score_texts
from fairseq_maelm.models.labels import Labels, Numbers, TextLabel, read_labels
from fairseq_maelm.models.mask_filling import MaskCandidate, fill_masks
from fairseq_maelm.models.text_limits import TextLimits, read_limits
from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.modules.finetuning_heads import pool
from fairseq_maelm.text.cleaning import checked_texts, clean_text
from fairseq_maelm.text.tokenizer import ImportedTokenizer, TextTokenizer, open_tokenizer
from fairseq_maelm.text.truncation import SEPARATORS, join_sentences

logger = logging.getLogger(__name__)

SENTENCE_HEAD = "sentence_classification_head"  # the name in fairseq's fine-tuning
# Arguments of fairseq's from_pretrained that name a tokenizer, as users of its RoBERTa write.
_OF_TOKENIZERS = ("bpe", "sentencepiece_model", "gpt2_encoder_json", "gpt2_vocab_bpe", "tokenizer")


class MaelmHubInterface(nn.Module):
    """A model with its task and tokenizer. ``MaelmModel.from_pretrained`` returns it, ready for inference.

    It is a torch module, so ``hub.cuda()`` moves it. Functions for downstream tasks take it as first argument.

    Args:
        config: the checkpoint's whole fairseq configuration.
        task: the checkpoint's task.
        model: the model.
        tokenizer: tokenizer that the model was trained with.
    """

    def __init__(self, config: Any, task: Any, model: Any, tokenizer: TextTokenizer) -> None:
        super().__init__()
        # "cfg" is fairseq's name, "config" that of the argument.
        self.cfg = self.config = config
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        self.dictionary = task.source_dictionary
        self._data = Path(task.cfg.data)

    @functools.cached_property
    def labels(self) -> Labels | None:
        """What the outputs of the task's head stand for; None for a pretrained or imported model."""
        return read_labels(self.config, [self._data])

    @functools.cached_property
    def limits(self) -> TextLimits:
        """The number of tokens and texts of an example, as in training."""
        return read_limits(self.config, self.model.max_positions())

    def __deepcopy__(self, memo: dict[int, Any]) -> "MaelmHubInterface":
        """Copy everything but the task, which fairseq cannot copy: its ``StatefulContainer`` then calls itself."""
        memo[id(self.task)] = self.task
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    @property
    def bpe(self) -> TextTokenizer:
        """The tokenizer, by fairseq's name; its ``encode`` returns ids of the dictionary."""
        return self.tokenizer

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return self.model.encoder.embed_tokens.weight.device

    def encode(self, sentence: str, *more_sentences: str, max_length: int | None = None, masks: bool = True) -> Tensor:
        """Turn one or more sentences into tokens.

        Args:
            sentence: the first sentence.
            more_sentences: further sentences.
            max_length: maximum number of tokens; None for no limit. Longer texts are truncated as in training: at the
                end with ``--shorten-method truncate``, otherwise as in ``maelm prepare``, which keeps every </s> and
                shortens the longer text of a pair.
            masks: read ``<mask>`` in a text as the mask symbol. If False, it is ordinary text, and texts are cleaned
                and encoded as in ``maelm prepare``.

        Returns:
            <int64>[n]: ``<s> a </s>``, then ``</s> b </s>`` for each further sentence, as in fairseq's RoBERTa. With a
            head that came with an imported model, sentences are joined as by that model's tokenizer.

        Raises:
            ValueError: ``max_length`` is too small for one token per sentence, or is given for more than two
                sentences.
        """
        sentences = checked_texts((sentence, *more_sentences))
        end = self.dictionary.eos()
        if masks:
            parts = [np.array([*self.tokenizer.encode(each), end]) for each in sentences]
        else:
            parts = self.tokenizer.encoder.encode([clean_text(each) for each in sentences])
        separators = SEPARATORS if len(sentences) == 1 else self._separators
        joined = join_sentences(parts, self.dictionary.bos(), max_length, self.limits.at_the_end, separators)
        return torch.from_numpy(joined.astype(np.int64))

    @functools.cached_property
    def _separators(self) -> int:
        """The number of </s> between two texts: as in fine-tuning here, or as a head's source joins them."""
        of_source = self.config.task._name == "maelm" and self.model.classification_heads
        if not isinstance(self.tokenizer, ImportedTokenizer) or not of_source:
            return SEPARATORS
        separators, types_differ = self.tokenizer.pair_template()
        family = FAMILIES.get(self.config.model.imported_as)
        if types_differ and family is not None and family.token_types > 1:
            logger.warning(
                "the source gives the second text of a pair another token type, which our encoder lacks: scores of "
                "pairs differ from the source's"
            )
        return separators

    def encode_batch(self, sentences: Sequence[str], max_length: int | None = None) -> Tensor:
        """Turn sentences into tokens <int64>[B, S], padded on the right; ``max_length`` as in ``encode``."""
        return self._pad([self.encode(text, max_length=max_length).numpy() for text in _some(sentences)])

    def decode(self, tokens: Tensor) -> str | list[str]:
        """Turn tokens <int64>[n] into text, or into a list of texts if ``encode`` joined several sentences.

        The text is as the tokenizer normalized it; for example, an uncased vocabulary gives lower case.
        """
        self._check_tokens(tokens, "decode", 1)
        special = {self.dictionary.bos(), self.dictionary.pad()}
        sentences: list[list[int]] = [[]]
        separators = 0
        for token in tokens.tolist():
            separators = separators + 1 if token == self.dictionary.eos() else 0
            if separators == 2:
                sentences.append([])
            elif not separators and token not in special:
                sentences[-1].append(token)
        texts = [self.tokenizer.decode(sentence) for sentence in sentences]
        return texts[0] if len(texts) == 1 else texts

    def extract_features(self, tokens: Tensor, return_all_hiddens: bool = False) -> Tensor | list[Tensor]:
        """Return the encoder's states of unmasked sequences.

        Args:
            tokens: <int64>[S] or, padded on the right, <int64>[B, S].
            return_all_hiddens: return the states of all layers.

        Returns:
            <float>[B, S, D], where B is 1 for a single sequence; or a list of L + 1 such tensors, the embeddings first.

        Raises:
            ValueError: the sequences are longer than the model's positions.
        """
        tokens = self._check_encoded(tokens, "extract_features")
        states, extra = self.model.extract_features(tokens.to(self.device), return_all_hiddens)
        return states if extra["inner_states"] is None else extra["inner_states"]

    def extract_features_aligned_to_words(self, sentence: str) -> Tensor:
        """Return word states <float>[W, D]: the mean over each word's tokens, for the W words in ``sentence.split()``.

        A word without tokens, such as one of control characters only, gets zeros.
        """
        words = [clean_text(word) for word in checked_texts([sentence])[0].split()]
        first, *others = words or [""]  # without words, one of no tokens, whose state is left out at the end
        encoder = self.tokenizer.encoder
        encoded = encoder.encode([first, *(word and encoder.word_prefix + word for word in others)])
        pieces = [ids[:-1].tolist() for ids in encoded]
        tokens = torch.tensor([self.dictionary.bos(), *itertools.chain(*pieces), self.dictionary.eos()])
        states: Any = self.extract_features(tokens)
        parts = states[0, 1:-1].split([len(each) for each in pieces])
        return torch.stack([part.sum(dim=0) / max(1, len(part)) for part in parts])[: len(words)]

    @torch.no_grad()
    def embed(self, sentences: Sequence[str], pooling: str = "mean", batch_size: int = 32) -> Tensor:
        """Return a vector for each sentence <float32>[B, D], on the CPU.

        Args:
            sentences: texts no longer than the model's maximum length.
            pooling: "mean" for the mean of all token states, <s> and </s> included; "first" for the state of <s>.
            batch_size: sentences in a batch; sentences of similar length share a batch.
        """
        if pooling not in ("mean", "first"):
            raise ValueError(f"pooling must be 'mean' or 'first', not {pooling!r}")
        rows = [self.encode(text, masks=False).numpy() for text in _some(sentences)]
        pad = self.dictionary.pad()

        def forward(tokens: Tensor) -> Tensor:
            states: Any = self.extract_features(tokens)
            return pool(states.float(), tokens.ne(pad), pooling).cpu()

        def collate(places: Places) -> Tensor:
            return self._pad([rows[place] for place in places])

        return torch.stack(predict(self.model, [len(row) for row in rows], collate, forward, batch_size=batch_size))

    def fill_mask(
        self, text: str | Sequence[str], topk: int = 5
    ) -> list[list[MaskCandidate]] | list[list[list[MaskCandidate]]]:
        """Predict the tokens at every ``<mask>`` of one or several texts.

        Args:
            text: a text with at least one ``<mask>``, or a sequence of such texts, which are computed in one batch.
            topk: number of candidates for each mask.

        Returns:
            One list for each mask, in order: its candidates by descending probability. For several texts, a list with
            such a result for each text.

        Raises:
            ValueError: a text has no mask or is too long, or the model has no LM head or an autoregressive decoder.
        """
        return fill_masks(self, text, topk)

    def register_classification_head(self, name: str, num_classes: int, **options: Any) -> None:
        """Add a head with random weights; see ``MaelmModel.register_classification_head``."""
        self.model.register_classification_head(name, num_classes, **options)

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """Score sequences or, with a token head, every token.

        Args:
            head: name of a head, such as ``SENTENCE_HEAD``.
            tokens: <int64>[S] or, padded on the right, <int64>[B, S].
            return_logits: return scores instead of log-probabilities; necessary for regression, whose scores
                ``classify`` multiplies by the scale of the data.

        Returns:
            <float>[B, classes], or <float>[B, S, outputs] from a token head.

        Raises:
            ValueError: there is no such head.
        """
        find_head(self.model, head)
        tokens = self._check_encoded(tokens, "predict")
        logits, _ = self.model(tokens.to(self.device), classification_head_name=head)
        if return_logits:
            return logits
        return (self.labels or Labels(())).log_probabilities(logits)

    def classify(
        self, texts: Sequence[str | Sequence[str]], head: str = SENTENCE_HEAD, batch_size: int = 32
    ) -> list[TextLabel] | list[list[TextLabel]] | list[float]:
        """Return the most likely label of each text or pair and its probability, or the value of a regression.

        For a model of texts with any number of labels, return a list of those with a probability of at least 0.5. A
        ValueError is raised if the checkpoint has no names of classes, and for the reasons in ``score_texts``.
        """
        labels = labels_of_head(self, head)
        return labels.answers(score_texts(self, texts, head, batch_size))

    def class_probabilities(
        self, texts: Sequence[str | Sequence[str]], head: str = SENTENCE_HEAD, batch_size: int = 32
    ) -> list[dict[str, float]]:
        """Return the probability of each class by name for each text or pair; raise a ValueError for a regression."""
        labels = labels_of_head(self, head)
        if isinstance(labels, Numbers):
            raise ValueError(f"the head {head!r} predicts values, which have no probabilities: use classify")
        probabilities = labels.probabilities(score_texts(self, texts, head, batch_size))
        return [dict(zip(labels.names, row, strict=True)) for row in probabilities.tolist()]

    def _pad(self, sequences: list[np.ndarray]) -> Tensor:
        lengths = np.array([len(sequence) for sequence in sequences])
        return torch.from_numpy(pad_rows(sequences, lengths, self.dictionary.pad()))

    def _check_tokens(self, tokens: Any, function: str, *dimensions: int) -> None:
        shapes = " or ".join("<int64>[n]" if each == 1 else "<int64>[B, n]" for each in dimensions)
        if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() not in dimensions:
            given = f"<{tokens.dtype}>{list(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ValueError(f"{function} takes tokens as {shapes}, not {given.replace('torch.', '')}")
        wrong = tokens[(tokens < 0) | (tokens >= len(self.dictionary))]
        if len(wrong):
            raise ValueError(f"{function} takes token ids from 0 to {len(self.dictionary) - 1}, not {int(wrong[0])}")

    def _check_encoded(self, tokens: Tensor, function: str) -> Tensor:
        """Return the tokens as <int64>[B, S], or refuse tokens that the model cannot read."""
        self._check_tokens(tokens, function, 1, 2)
        tokens = (tokens[None] if tokens.dim() == 1 else tokens).long()
        if not tokens.numel():
            raise ValueError(f"{function} needs at least one token, got shape {list(tokens.shape)}")
        positions = self.model.max_positions()
        self.check_length(tokens.shape[1], f"split it, or truncate it by encode(..., max_length={positions})")
        return tokens

    def check_length(self, length: int, remedy: str = "split it") -> None:
        """Raise a ValueError if a text has more tokens than the model has positions."""
        positions = self.model.max_positions()
        if length > positions:
            raise ValueError(f"the text has {length} tokens and the model has {positions} positions: {remedy}")


def _some(sentences: Sequence[str]) -> Sequence[str]:
    texts = checked_texts(sentences, "sentences")
    if not texts:
        raise ValueError("the list of sentences is empty: give at least one")
    return texts


def load(
    folder: str | os.PathLike[str], checkpoint_file: str | None = None, data_folder: str = ".", **overrides: Any
) -> MaelmHubInterface:
    """Load a checkpoint of pretraining or fine-tuning, ready for inference.

    Args:
        folder: folder of the checkpoint, or the name of an encoder that comes with this package.
        checkpoint_file: name of the checkpoint; by default the best one in the folder, or else the last one.
        data_folder: folder of a prepared corpus or task, to use its vocabulary instead of the copy that training put
            next to the checkpoint; a path that starts with "." is relative to ``folder``.
        **overrides: options of the checkpoint to change, such as ``dropout``. Without ``precision``, the model computes
            in single precision, regardless of the precision in training. fairseq's options for a tokenizer, such as
            ``bpe``, have no effect: the vocabulary's folder holds the tokenizer.

    Raises:
        FileNotFoundError: the checkpoint, the dictionary or the sentencepiece model is missing.
        ValueError: the checkpoint does not fit the data, is damaged, or has content that training does not write; see
            ``fairseq_maelm.checkpoints.reader``.
    """
    if given := [name for name in _OF_TOKENIZERS if overrides.pop(name, None) is not None]:
        logger.info("%s: not used, because the tokenizer in the vocabulary's folder reads texts", ", ".join(given))
    if checkpoint_file is None:
        folder, checkpoint_file = os.path.split(find_checkpoint(Path(folder)))
    path = os.path.join(folder, checkpoint_file)
    data = os.path.abspath(os.path.join(folder, data_folder) if data_folder.startswith(".") else data_folder)
    checkpoint = read_checkpoint(Path(path), {**overrides, "data": data})
    config = checkpoint.config
    task = tasks.setup_task(config.task, from_checkpoint=True)
    if not checkpoint.predicts_masked_tokens:
        task.predicts_masked_tokens = False
    model = build_with_heads(
        lambda: task.build_model(config.model, from_checkpoint=True), checkpoint.weights, checkpoint.path
    )
    model.load_state_dict(checkpoint.weights, strict=True, model_cfg=config.model)
    tokenizer = open_tokenizer(find_tokenizer([Path(data), Path(folder)]), task.source_dictionary)
    return MaelmHubInterface(config, task, model, tokenizer).eval()


def open_checkpoint(
    path: Path, vocabulary: Path | None = None, device: str = "cpu", **overrides: Any
) -> MaelmHubInterface:
    """Load the checkpoint that a command was given, by default with the vocabulary in its folder; see ``load``."""
    data = (vocabulary or path.parent).absolute()
    return load(str(path.parent), path.name, str(data), **overrides).to(device)
