"""The values of ``--arch``: named sizes, and "maelm", which takes the sizes of a checkpoint."""

from functools import partial
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY, register_model_architecture
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from fairseq_maelm.architecture.checks import refuse_stock_bf16
from fairseq_maelm.architecture.config import DECODER_OPTIONS, MaelmModelConfig, fill_from_size
from fairseq_maelm.architecture.encoder_options import ENCODER_OPTIONS, SIZES
from fairseq_maelm.checkpoints.reader import describe_checkpoint

__all__ = ["register_architectures"]


def register_architectures() -> None:
    """Register the architectures with fairseq, after the model."""
    # fairseq has registered the model's name as an architecture that fills in nothing.
    ARCH_CONFIG_REGISTRY["maelm"] = _take_sizes_from_checkpoint
    for name in SIZES:
        register_model_architecture("maelm", name)(partial(_take_named_sizes, name=name))


def _take_named_sizes(cfg: Any, name: str) -> None:
    """Fill in the options of a named size; called by fairseq."""
    refuse_stock_bf16(cfg)  # fairseq-train would look for a TPU before it builds the model
    fill_from_size(cfg, name)


def _take_sizes_from_checkpoint(cfg: Any) -> None:
    """Fill in the model options of the checkpoint given by ``--finetune-from-model``, in place; called by fairseq.

    Encoder options must agree with the checkpoint. Decoder options come from the checkpoint unless they were given,
    because a task may replace the decoder. From a checkpoint without a decoder, only tasks that predict masked tokens
    take decoder options.
    """
    refuse_stock_bf16(cfg)
    path = getattr(cfg, "finetune_from_model", None)
    if not path:
        return
    checkpoint = describe_checkpoint(Path(path))
    model = checkpoint.config.model
    task_options = TASK_DATACLASS_REGISTRY.get(getattr(cfg, "task", None))
    for name in ENCODER_OPTIONS:
        known = model[name]
        wanted = getattr(cfg, name, known)
        # A task may have an option of the same name: then ``wanted`` can be that option's default.
        if wanted != known and wanted != getattr(task_options, name, None):
            raise ValueError(
                f"--{name.replace('_', '-')} {wanted} contradicts the checkpoint {path}, whose encoder has {known}: "
                "omit the option"
            )
        setattr(cfg, name, known)
    cfg.imported_as = model.imported_as
    keeps = getattr(TASK_REGISTRY.get(getattr(cfg, "task", None)), "predicts_masked_tokens", False)
    if not checkpoint.has_decoder and getattr(cfg, "decoder_attention", None) == "shared":
        # With all layers, the decoder begins as what the checkpoint has learned.
        model["decoder_layers"] = model["encoder_layers"]
    for name in DECODER_OPTIONS if keeps or checkpoint.has_decoder else ():
        default = MaelmModelConfig.__dataclass_fields__[name].default
        if getattr(cfg, name, default) == default:
            setattr(cfg, name, model[name])
