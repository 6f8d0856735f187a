"""One training step of a recipe on a fake GPU: forward pass, loss, backward pass, clipping and update."""

from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_maelm import register
from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.data.masking_variants import VisibleTokens, encoder_input
from fairseq_maelm.models.maelm import MaelmModel, MaelmModelConfig, complete_config
from fairseq_maelm.modules.layer_modes import execute, layers_of
from fairseq_maelm.optim import adamw
from fairseq_maelm.optim.fused_adamw import FusedAdamW, FusedAdamWConfig
from fairseq_maelm.training.options import parse_training

from .device import Record

DEVICE = "cuda:0"
PAD = 1


class Step(NamedTuple):
    """The record of a step.

    Attributes:
        layers: of encoder and decoder.
        launches, copies, moved: as in ``Record``, of forward, loss and backward pass.
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
    moved: int


def dictionary_of(symbols: int) -> Dictionary:
    """Return a vocabulary of a size."""
    dictionary = Dictionary()
    for number in range(symbols - len(dictionary) - 1):
        dictionary.add_symbol(f"piece{number}")
    dictionary.add_symbol("<mask>")
    return dictionary


def batch_of(sequences: int, length: int, symbols: int, kept: bool) -> dict[str, Any]:
    """Return a padded batch with 15 % of its tokens masked."""
    generator = np.random.default_rng(1)
    lengths = np.full(sequences, length) - generator.integers(0, max(2, length // 50), sequences)
    lengths[0] = length
    inside = np.arange(length) < lengths[:, None]
    masked = (generator.random(inside.shape).argsort(axis=1) < round(0.15 * length)) & inside
    tokens = np.where(inside, generator.integers(4, symbols - 1, inside.shape), PAD)
    visible = inside if kept else inside & ~masked
    shown = np.where(masked, symbols - 1, tokens) if kept else tokens
    net_input = encoder_input(VisibleTokens(shown, visible, visible), masked, lengths, pad=PAD)
    target, ntokens = torch.from_numpy(tokens[masked]), int(lengths.sum())
    return {"net_input": net_input, "target": target, "ntokens": ntokens, "nsentences": sequences}


def take_step(
    arch: str,
    sequences: int,
    length: int,
    symbols: int,
    precision: str = "bf16",
    recompute: bool = False,
    **changes: Any,
) -> Step:
    """Train a new model for a step, and record the next one.

    Args:
        arch: name of an architecture.
        sequences: number of sequences of the batch.
        length: their length in tokens.
        symbols: size of the vocabulary.
        precision: "fp32", "bf16" or "fp16", fairseq's, with its single-precision copy of the weights.
        recompute: use ``--checkpoint-activations``.
        **changes: other options of the model.
    """
    mode, record = FakeTensorMode(), Record()
    with mode:
        model = _new_model(arch, length, symbols, precision, changes)
        execute(model, compiles=False, recomputes=recompute)
        sample = _moved(mode, batch_of(sequences, length, symbols, kept=model.decoder is None))
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
            record.moved = 0
            for parameter in [*model.parameters(), *masters]:
                parameter.grad = None
            with record:
                loss, size, _ = MaelmCriterion(None)(model, sample)
                (loss * 128.0 if precision == "fp16" else loss).backward()
                launches, moved, missing = record.launches.total(), record.moved, _without_gradient(model)
                if precision == "fp16":
                    masters[0].grad = torch.cat([each.grad.flatten().float() for each in model.parameters()])
                optimizer.multiply_grads(1.0 / size)
                optimizer.clip_grad_norm(2.0)
                optimizer.step()
            del loss
    layers = sum(1 for _ in layers_of(model))
    return Step(layers, launches, record.copies, record.launches.total() - launches, record.peak, missing, moved)


def take_fine_tuning_step(words: list[str], sequences: int) -> Step:
    """Run forward pass, loss and backward pass of fine-tuning on a batch of examples, in bfloat16.

    Args:
        words: those after ``fairseq-train``: folder, task, criterion and options.
        sequences: examples of the batch, with all lengths of the data.
    """
    register()
    config = convert_namespace_to_omegaconf(parse_training([*words, "--cpu", "--precision", "bf16"]))
    task = tasks.setup_task(config.task)
    mode, record = FakeTensorMode(), Record()
    # A new head is moved to the encoder's device, where it is already; fake parameters cannot be moved.
    with mode, torch.device(DEVICE), mock.patch.object(nn.Module, "to", lambda module, *_: module):
        model = task.build_model(config.model).train()
        criterion = task.build_criterion(config.criterion)
    task.load_dataset("train", combine=True)
    dataset = task.dataset("train")
    sample = dataset.collater(dataset.ordered_indices()[:: max(1, len(dataset) // sequences)][:sequences])
    with mode:
        sample = _moved(mode, sample)
        with record:
            loss, _, _ = criterion(model, sample)
            loss.backward()
    layers = sum(1 for _ in layers_of(model))
    return Step(layers, record.launches.total(), record.copies, 0, record.peak, _without_gradient(model), record.moved)


def _new_model(arch: str, length: int, symbols: int, precision: str, changes: dict[str, Any]) -> MaelmModel:
    register()
    defaults = {name: field.default for name, field in MaelmModelConfig.__dataclass_fields__.items()}
    computed = "bf16" if precision == "bf16" else "fp32"
    config = SimpleNamespace(**{**defaults, "_name": arch, "max_positions": length, "precision": computed, **changes})
    complete_config(config)
    with torch.device(DEVICE):
        return MaelmModel(config, dictionary_of(symbols)).train()


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


def _moved(mode: FakeTensorMode, value: Any) -> Any:
    """Do what fairseq's ``move_to_cuda`` does with a batch."""
    if isinstance(value, dict):
        return {name: _moved(mode, each) for name, each in value.items()}
    return mode.from_tensor(value).to(DEVICE) if isinstance(value, torch.Tensor) else value
