"""Our models as classes of Hugging Face transformers; importing this package registers them there.

``transformers.AutoModel`` and its relatives then open exported folders without running code from them. Nothing here
needs fairseq.
"""

from pathlib import Path
from typing import Any

from fairseq_maelm.libraries import import_transformers

transformers = import_transformers()

from .bounds import refuse_sizes  # noqa: E402
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
            refuse_sizes(folder, kind, **safely)
        return kind.from_pretrained(folder, **options, local_files_only=True, **safely)
    except Exception as error:  # for damaged and for foreign folders transformers raises errors of every kind
        reason = " ".join(str(error).split())
        raise ValueError(f"transformers cannot read {folder}: {reason[:300] or type(error).__name__}") from error


__all__ = ["AUTO_CLASSES", "MaelmConfig", *(model.__name__ for model in AUTO_CLASSES.values()), "open_pretrained"]
