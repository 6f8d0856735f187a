"""What several tests need: small vocabularies, models and batches made without files."""

import contextlib
import logging
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from maelm_in_one_file import Config, State, t5_bucket
from plain.authors_buckets import reference_bucket

from fairseq_maelm.cli import main
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme
from fairseq_maelm.data.masking_variants import EncoderView, encoder_input
from fairseq_maelm.models.maelm import MaelmModel, MaelmModelConfig, complete_config
from fairseq_maelm.text.dictionary import real_tokens


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Keep the root logger, which commands set up for a separate process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let files of this process grow to so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def logged_metrics(reduce_metrics: Callable[[Any], None], steps: Iterable[list[dict[str, Any]]]) -> dict[str, float]:
    """Return the metrics that fairseq logs for steps, each with the logging outputs of all ranks."""
    with metrics.aggregate(new_root=True) as validation:
        for outputs in steps:
            with metrics.aggregate():
                reduce_metrics(outputs)
    return dict(validation.get_smoothed_values())


def usage_error(capsys: pytest.CaptureFixture[str], words: Sequence[object]) -> str:
    """Run ``maelm`` with wrong options, check that it exits with status 2 and one line, and return that line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def dictionary_of(size: int) -> Dictionary:
    """A vocabulary of ``size`` symbols, fairseq's special ones and <mask> included."""
    dictionary = Dictionary()
    for number in range(size - 5):
        dictionary.add_symbol(("\u2581" if number % 2 else "") + f"piece{number}")
    dictionary.add_symbol("<mask>")
    assert len(dictionary) == size
    return dictionary


# Options of the two kinds of models: the paper's and those of ModernBERT's layer.
FAMILIES: dict[str, dict[str, Any]] = {"paper": {}, "modern": {"layer": "modern", "positions": "rotary"}}


def model_config(**changes: Any) -> SimpleNamespace:
    """A complete configuration of a model of 2 + 2 layers, 32 wide, without dropout."""
    numbers = {
        "encoder_layers": 2,
        "encoder_embed_dim": 32,
        "encoder_ffn_embed_dim": 64,
        "encoder_attention_heads": 4,
        "decoder_layers": 2,
        "relative_num_buckets": 8,
        "relative_max_distance": 20,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "max_positions": 64,
    }
    defaults = {name: field.default for name, field in MaelmModelConfig.__dataclass_fields__.items()}
    config = SimpleNamespace(**{**defaults, **numbers, **changes})
    complete_config(config)
    return config


def model_of(vocabulary_size: int = 40, seed: int = 0, **changes: Any) -> MaelmModel:
    """A model with random weights, large enough in scale that no part of it hides in rounding errors."""
    torch.manual_seed(seed)
    model = MaelmModel(model_config(**changes), dictionary_of(vocabulary_size))
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return model.eval()


def plain_of(model: MaelmModel) -> tuple[State, Config]:
    """The leaf parameters of a model in double precision, and what its plain re-implementation is to know."""
    config = model.config
    state = {
        name: tensor.detach().double().requires_grad_()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }
    return state, Config(
        encoder_layers=config.encoder_layers,
        encoder_attention_heads=config.encoder_attention_heads,
        decoder_layers=config.decoder_layers,
        decoder_attention_heads=config.encoder_attention_heads,
        mask_index=model.mask_index,
        bucket={"t5": t5_bucket, "reference": reference_bucket, "none": None}[config.relative_buckets],
        relative_num_buckets=config.relative_num_buckets,
        relative_max_distance=config.relative_max_distance,
        modern=config.layer == "modern",
        decoder_rotary=config.decoder_positions == "rotary",
        rotary_base=config.rotary_base,
        local_rotary_base=config.local_rotary_base,
        local_attention=config.local_attention or None,
        global_every=config.global_every,
        decoder_attention=config.decoder_attention,
    )


def scheme_of(vocabulary_size: int = 40, **changes: Any) -> MaskingScheme:
    """A masking scheme over ``dictionary_of(vocabulary_size)``."""
    settings: dict[str, Any] = {"mask_prob": 0.15, **changes}
    return MaskingScheme(real_tokens=real_tokens(dictionary_of(vocabulary_size)), **settings)


def random_sequences(lengths: list[int], vocabulary_size: int = 40, seed: int = 0) -> list[np.ndarray]:
    """Sequences <int64>[n] of real tokens between <s> and </s>."""
    generator = np.random.default_rng(seed)
    inner = [generator.integers(4, vocabulary_size - 1, length - 2) for length in lengths]
    return [np.concatenate([[0], tokens, [2]]) for tokens in inner]


def batch_of(
    sequences: Sequence[np.ndarray],
    masked: list[list[int]],
    mask_index: int | None = None,
    view: EncoderView | None = None,
    everything: bool = False,
    spare: tuple[int, int] | None = None,
) -> tuple[dict[str, Any], torch.Tensor]:
    """The model's input, with the full sequences for decoders that read them, and targets for given masked positions.

    Masked tokens are dropped, or kept as ``mask_index``, or as another view says; its random tokens are 7, and of a
    fraction of masks those of each second sequence stay. Targets are the masked tokens, or everything. With ``spare``,
    T and the planned number of masks, padding makes a batch of few shapes.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    width, planned = spare or (lengths.max(), None)
    tokens = np.ones((len(sequences), width), dtype=np.int64)
    predicted = np.zeros(tokens.shape, dtype=bool)
    for row, (sequence, positions) in enumerate(zip(sequences, masked)):
        tokens[row, : len(sequence)] = sequence
        predicted[row, positions] = True
    inside = np.arange(tokens.shape[1])[None, :] < lengths[:, None]
    view = view or EncoderView("dropped" if mask_index is None else "kept")
    staying = predicted & (np.arange(len(sequences)) % 2 == 0)[:, None]
    draw, random = MaskDraw(predicted, predicted, tokens), np.full_like(tokens, 7)
    fillers = staying if view.mask_fraction else None, random if view.shows_random_tokens else None
    shown = view.apply(draw, inside, 39 if mask_index is None else mask_index, *fillers)
    targets = inside if everything else predicted
    net_input = encoder_input(shown, targets, lengths, 1, view.positions, planned)
    net_input["layout"]["full_tokens"] = torch.from_numpy(tokens)
    return net_input, torch.from_numpy(tokens[targets])


def assert_padding_changes_nothing(model: Any, batch: torch.Tensor) -> None:
    """Compare logits of a batch with padding, 1, on the right with those of each sequence alone and padded on the left.

    Pipelines for generation pad on the left; positions then start at the text.
    """
    with torch.no_grad():
        for row, tokens in zip(model(batch).logits, batch):
            alone = tokens[tokens != 1]
            torch.testing.assert_close(row[: len(alone)], model(alone[None]).logits[0], rtol=1e-4, atol=1e-5)
            padded = torch.cat([torch.ones(3, dtype=torch.int64), alone])
            left = model(padded[None], padded.ne(1).long()[None]).logits[0, 3:]
            torch.testing.assert_close(left, row[: len(alone)], rtol=1e-4, atol=1e-5)
