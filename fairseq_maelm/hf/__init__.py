"""Our models as classes of Hugging Face transformers; importing this package registers them there.

``transformers.AutoModel`` and its relatives then open exported folders without running code from them. Nothing here
needs fairseq.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm.libraries import import_transformers

transformers = import_transformers()

from .configuration_maelm import MaelmConfig  # noqa: E402  (transformers is imported the safe way first)
from .modeling_maelm import (  # noqa: E402
    MaelmForMaskedLM,
    MaelmForQuestionAnswering,
    MaelmForSequenceClassification,
    MaelmForTokenClassification,
    MaelmModel,
)

AUTO_CLASSES = {
    "AutoModel": MaelmModel,
    "AutoModelForMaskedLM": MaelmForMaskedLM,
    "AutoModelForSequenceClassification": MaelmForSequenceClassification,
    "AutoModelForTokenClassification": MaelmForTokenClassification,
    "AutoModelForQuestionAnswering": MaelmForQuestionAnswering,
}

# Families whose first position is pad + 1, so that their tables have that many rows more than positions.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", MaelmConfig.model_type}
# Of which a model makes as many modules as they say, and the most that any has.
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers")
_DEEPEST = 1000
# Larger numbers of anything must be the size of some weight: positions may be computed, and have none.
_COMMON = 100_000
# A pooler, or a head that the weights lack, is made anew.
_SLACK = 2


def _register() -> None:
    transformers.AutoConfig.register(MaelmConfig.model_type, MaelmConfig, exist_ok=True)
    # With these, save_pretrained copies the code beside the weights, and the folder stays one that anybody can open.
    MaelmConfig.register_for_auto_class()
    for name, model in AUTO_CLASSES.items():
        getattr(transformers, name).register(MaelmConfig, model, exist_ok=True)
        model.register_for_auto_class(name)


_register()


def open_pretrained(auto_class: str, folder: Path, **options: Any) -> Any:
    """Open a local folder with one of transformers' auto classes, without downloading and without code of the folder.

    Args:
        auto_class: such as "AutoModel" or "AutoTokenizer".
        folder: that ``save_pretrained`` or ``maelm export`` wrote.
        options: of ``from_pretrained``.

    Raises:
        ValueError: transformers cannot read the folder, or only by running its code; the message is one line.
    """
    safely, kind = {"trust_remote_code": False}, getattr(transformers, auto_class)
    try:
        if hasattr(kind, "from_config"):
            _refuse_sizes(folder, kind, **safely)
        return kind.from_pretrained(folder, **options, local_files_only=True, **safely)
    except Exception as error:  # for damaged and for foreign folders transformers raises errors of every kind
        reason = " ".join(str(error).split())
        raise ValueError(f"transformers cannot read {folder}: {reason[:300] or type(error).__name__}") from error


def longest_sequence(tokenizer: Any, config: Any) -> int:
    """Return the tokens of the longest sequence that a model has positions for, special symbols included."""
    offset = tokenizer.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS else 0
    return min(int(config.max_position_embeddings) - offset, int(tokenizer.model_max_length))


def _refuse_sizes(folder: Path, auto_class: Any, **safely: Any) -> None:
    """Refuse sizes in config.json that the weights do not have, before anything of these sizes is made."""
    shapes = dict(_shapes(folder))
    if not shapes:
        return
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    largest = max(_COMMON, *(size for shape in shapes.values() for size in shape))
    for name, value in options.items():
        if type(value) is int and value > (_DEEPEST if name in _DEPTHS else largest):
            raise ValueError(f"config.json says {name} {value}, which the weights beside it do not have")
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **safely)
        model = auto_class.from_config(config, **safely)
    held = sum(torch.Size(shape).numel() for shape in shapes.values())
    asked = sum(parameter.numel() for parameter in model.parameters())
    if asked > _SLACK * held:
        raise ValueError(f"config.json asks for {asked:,} numbers, and the weights beside it are {held:,}")


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for file in sorted(folder.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(file, "pt") as weights:
            yield from ((name, tuple(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118
    for file in sorted(folder.glob("pytorch_model*.bin")):
        state = torch.load(file, map_location="meta", weights_only=True)
        yield from ((name, tuple(weight.shape)) for name, weight in state.items())


__all__ = [
    *("AUTO_CLASSES", "MaelmConfig", "longest_sequence", "open_pretrained"),
    *(model.__name__ for model in AUTO_CLASSES.values()),
]
