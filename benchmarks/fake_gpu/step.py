"""One training step of a recipe on a fake GPU: forward pass, loss, backward pass, clipping and update."""

from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_maelm import register
from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.data.encoder_view import Shown, encoder_input
from fairseq_maelm.models.maelm import MaelmModel, MaelmModelConfig, complete_config
from fairseq_maelm.modules.execution import execute, layers_of
from fairseq_maelm.optim import adamw
from fairseq_maelm.optim.fused_adamw import FusedAdamW, FusedAdamWConfig

from .device import Record

DEVICE = "cuda:0"
PAD = 1


class Step(NamedTuple):
    """What a step did.

    Attributes:
        layers: of encoder and decoder.
        launches, copies: as in ``Record``, of forward, loss and backward pass.
        update_launches: of clipping and update.
        peak: bytes, with the optimizer's state.
        without_gradient: names of parameters that got none.
    """

    layers: int
    launches: int
    copies: list[str]
    update_launches: int
    peak: int
    without_gradient: list[str]


def dictionary_of(symbols: int) -> Dictionary:
    """Return a vocabulary of a size."""
    dictionary = Dictionary()
    for number in range(symbols - len(dictionary) - 1):
        dictionary.add_symbol(f"piece{number}")
    dictionary.add_symbol("<mask>")
    return dictionary


def batch_of(sequences: int, length: int, symbols: int, kept: bool) -> tuple[dict[str, Any], torch.Tensor, int]:
    """Return a padded batch with 15 % of its tokens masked, its targets, and its number of tokens."""
    generator = np.random.default_rng(1)
    lengths = np.full(sequences, length) - generator.integers(0, max(2, length // 50), sequences)
    lengths[0] = length
    inside = np.arange(length) < lengths[:, None]
    masked = (generator.random(inside.shape).argsort(axis=1) < round(0.15 * length)) & inside
    tokens = np.where(inside, generator.integers(4, symbols - 1, inside.shape), PAD)
    visible = inside if kept else inside & ~masked
    shown = np.where(masked, symbols - 1, tokens) if kept else tokens
    net_input = encoder_input(Shown(shown, visible, visible), masked, lengths, pad=PAD)
    return net_input, torch.from_numpy(tokens[masked]), int(lengths.sum())


def take_step(
    arch: str,
    sequences: int,
    length: int,
    symbols: int,
    precision: str = "bf16",
    recompute: bool = False,
    **changes: Any,
) -> Step:
    """Train a new model for a step, and tell of the next one.

    Args:
        arch: name of an architecture.
        sequences, length, symbols: of the batch and of the vocabulary.
        precision: "fp32", "bf16" or "fp16", fairseq's, with its single-precision copy of the weights.
        recompute: as ``--checkpoint-activations``.
        changes: other options of the model.
    """
    mode, record = FakeTensorMode(), Record()
    with mode:
        model = _new_model(arch, length, symbols, precision, True, changes)
        execute(model, compiles=False, recomputes=recompute)
        sample = _on_device(mode, *batch_of(sequences, length, symbols, kept=model.decoder is None))
        parameters = list(model.parameters())
        masters = parameters
        if precision == "fp16":
            masters = [nn.Parameter(torch.empty(sum(each.numel() for each in parameters), device=DEVICE))]
            _halve(model)
        optimizer = _optimizer(masters)
        for tensor in [*model.parameters(), *model.buffers(), *masters]:
            record.hold(tensor)
        # In the second step the optimizer has its state.
        for _ in range(2):
            record.launches.clear()
            for parameter in [*model.parameters(), *masters]:
                parameter.grad = None
            with record:
                loss, size, _ = MaelmCriterion(None)(model, sample)
                (loss * 128.0 if precision == "fp16" else loss).backward()
                launches, missing = record.launches.total(), _without_gradient(model)
                if precision == "fp16":
                    masters[0].grad = torch.cat([each.grad.flatten().float() for each in model.parameters()])
                optimizer.multiply_grads(1.0 / size)
                optimizer.clip_grad_norm(2.0)
                optimizer.step()
            del loss
    layers = sum(1 for _ in layers_of(model))
    return Step(layers, launches, record.copies, record.launches.total() - launches, record.peak, missing)


def take_fine_tuning_step(arch: str, sequences: int, length: int, symbols: int, **changes: Any) -> Step:
    """Run forward and backward pass of a head on padded sentences in bfloat16; arguments as in ``take_step``."""
    mode, record = FakeTensorMode(), Record()
    with mode:
        model = _new_model(arch, length, symbols, "bf16", False, changes)
        # A new head is moved to the encoder's device, where it is already; fake parameters cannot be moved.
        with torch.device(DEVICE), mock.patch.object(nn.Module, "to", lambda module, *_: module):
            model.register_classification_head("head", 2)
        rows = np.full((sequences, length), PAD)
        for row, count in enumerate(np.linspace(2, length, sequences, dtype=int)):
            rows[row, :count] = 4
        tokens, target = (_to_device(mode, torch.from_numpy(each)) for each in (rows, np.zeros(sequences, np.int64)))
        with record:
            scores, _ = model(tokens, features_only=True, classification_head_name="head")
            F.cross_entropy(scores.float(), target).backward()
    layers = sum(1 for _ in layers_of(model))
    return Step(layers, record.launches.total(), record.copies, 0, record.peak, _without_gradient(model))


def _new_model(
    arch: str, length: int, symbols: int, precision: str, predicts_masked_tokens: bool, changes: dict[str, Any]
) -> MaelmModel:
    register()
    defaults = {name: field.default for name, field in MaelmModelConfig.__dataclass_fields__.items()}
    computed = "bf16" if precision == "bf16" else "fp32"
    config = SimpleNamespace(**{**defaults, "_name": arch, "max_positions": length, "precision": computed, **changes})
    complete_config(config)
    with torch.device(DEVICE):
        return MaelmModel(config, dictionary_of(symbols), predicts_masked_tokens).train()


def _optimizer(parameters: list[nn.Parameter]) -> FusedAdamW:
    adamw.has_fused_kernel = lambda device: True
    config = FusedAdamWConfig(adam_betas="(0.9, 0.98)", adam_eps=1e-6, weight_decay=0.01, lr=[1e-4])
    return FusedAdamW(config, parameters)


def _halve(model: nn.Module) -> None:
    """Do what ``model.half()`` does, which would swap tensors that somebody refers to."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().half()))


def _without_gradient(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


def _on_device(mode: FakeTensorMode, net_input: dict[str, Any], target: torch.Tensor, tokens: int) -> dict[str, Any]:
    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: moved(each) for name, each in value.items()}
        return _to_device(mode, value) if isinstance(value, torch.Tensor) else value

    return moved(
        {"net_input": net_input, "target": target, "ntokens": tokens, "nsentences": len(net_input["src_tokens"])}
    )


def _to_device(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    return mode.from_tensor(tensor).to(DEVICE)
