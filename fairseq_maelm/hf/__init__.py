"""MAE-LM models as classes of Hugging Face transformers; importing this package registers them.

``transformers.AutoModel`` and other auto classes then open exported folders without running code from the folders. This
package does not need fairseq.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm.files.optional_imports import import_transformers

transformers = import_transformers()

from .configuration_maelm import MaelmConfig  # noqa: E402  (import_transformers must run first)
from .modeling_maelm import (  # noqa: E402
    MaelmForQuestionAnswering,
    MaelmForSequenceClassification,
    MaelmForTokenClassification,
    MaelmModel,
)

AUTO_CLASSES = {
    "AutoModel": MaelmModel,
    "AutoModelForSequenceClassification": MaelmForSequenceClassification,
    "AutoModelForTokenClassification": MaelmForTokenClassification,
    "AutoModelForQuestionAnswering": MaelmForQuestionAnswering,
}

# Numbers of layers in config.json, and the largest that is accepted.
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_DEEPEST = 1000
# Larger numbers of config.json must be the size of a weight. Smaller ones need not: computed positions have no table.
_COMMON = 100_000
# Numbers that are not sizes: transformers writes 10^30 where no length is known.
_NO_SIZES = ("model_max_length", "global_rope_theta", "local_rope_theta")
# A model may have this many times the parameters of its weight files: poolers and new heads are not in them.
_SLACK = 2

transformers.AutoConfig.register(MaelmConfig.model_type, MaelmConfig, exist_ok=True)
# register_for_auto_class makes save_pretrained copy the code, so that anybody can open the folder.
MaelmConfig.register_for_auto_class()
for _name, _model in AUTO_CLASSES.items():
    getattr(transformers, _name).register(MaelmConfig, _model, exist_ok=True)
    _model.register_for_auto_class(_name)


def open_pretrained(auto_class: str, folder: Path, **options: Any) -> Any:
    """Open a local folder with an auto class of transformers, without downloads or running code from the folder.

    Args:
        auto_class: name of the class, such as "AutoModel" or "AutoTokenizer".
        folder: folder written by ``save_pretrained`` or ``maelm export``.
        options: options of ``from_pretrained``.

    Raises:
        ValueError: transformers cannot read the folder without running code from it; the message is one line.
    """
    kind = getattr(transformers, auto_class)
    safely: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        if hasattr(kind, "from_config"):
            options["config"] = _checked_config(folder, kind, **safely)
        return kind.from_pretrained(folder, **options, **safely)
    except Exception as error:  # transformers raises errors of all kinds for damaged and foreign folders
        reason = " ".join(str(error).split())
        raise ValueError(f"transformers cannot read {folder}: {reason[:300] or type(error).__name__}") from error


def _checked_config(folder: Path, auto_class: Any, **safely: Any) -> Any:
    """Return the configuration; raise a ValueError, before memory is allocated, if its sizes do not match the weights.

    Attention is always "eager", because config.json could name a kernel on the Hub, and kernels are code.
    """
    shapes = dict(_shapes(folder))
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    largest = max((_COMMON, *(size for shape in shapes.values() for size in shape)))
    for name, value in options.items():
        if type(value) is int and name not in _NO_SIZES and value > (_DEEPEST if name in _DEPTHS else largest):
            raise ValueError(f"config.json has {name} {value}, which does not match the weights")
    config = transformers.AutoConfig.from_pretrained(folder, **safely)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = auto_class.from_config(config, trust_remote_code=False)
    held = sum(torch.Size(shape).numel() for shape in shapes.values())
    asked = sum(parameter.numel() for parameter in model.parameters())
    if shapes and asked > _SLACK * held:
        raise ValueError(f"config.json asks for {asked:,} parameters, but the weights have {held:,}")
    return config


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for file in sorted(folder.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(file, "pt") as weights:
            yield from ((name, tuple(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118
    for file in sorted(folder.glob("pytorch_model*.bin")):
        state = torch.load(file, map_location="meta", weights_only=True)
        yield from ((name, tuple(weight.shape)) for name, weight in state.items())


__all__ = ["AUTO_CLASSES", "MaelmConfig", "open_pretrained", *(model.__name__ for model in AUTO_CLASSES.values())]
