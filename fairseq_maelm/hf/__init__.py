"""Our models as classes of Hugging Face transformers; importing this package registers them there.

``transformers.AutoModel`` and its relatives then open exported folders without running code from them. Nothing here
needs fairseq.
"""

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


def _register() -> None:
    transformers.AutoConfig.register(MaelmConfig.model_type, MaelmConfig, exist_ok=True)
    # With these, save_pretrained copies the code beside the weights, and the folder stays one that anybody can open.
    MaelmConfig.register_for_auto_class()
    for name, model in AUTO_CLASSES.items():
        getattr(transformers, name).register(MaelmConfig, model, exist_ok=True)
        model.register_for_auto_class(name)


_register()

__all__ = ["AUTO_CLASSES", "MaelmConfig", *(model.__name__ for model in AUTO_CLASSES.values())]
