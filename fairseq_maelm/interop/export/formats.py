"""Options, formats and architectures of ``maelm export``, without slow imports, so that ``--help`` is fast."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.checkpoints.locate import checkpoint_path
from fairseq_maelm.options import existing_path, number, option

# Format -> start of its class names; architecture -> end of the class name.
FORMATS = {
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "bert": "Bert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "modernbert": "ModernBert",
    "maelm": "Maelm",
}
ARCHITECTURES = {
    "encoder": "Model",
    "masked-lm": "ForMaskedLM",
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
}
# Our own format, and the files of its folders that have the model's code.
OUR_FORMAT, MODEL_CODE = "maelm", ("configuration_maelm.py", "layers_maelm.py", "modeling_maelm.py")
AUTO_CLASSES = {name: f"AutoModel{ending.removeprefix('Model')}" for name, ending in ARCHITECTURES.items()}
# The formats for fairseq: this package's own model, and fairseq's model roberta.
FAIRSEQ, FAIRSEQ_ROBERTA = "fairseq", "fairseq-roberta"
_OF_HUGGING_FACE = ("architecture", "head", "labels", "name", "license")


def _format(text: str) -> str:
    """Return the name of a format; for "onnx", raise an error that explains how to export to ONNX."""
    if text == "onnx":
        raise argparse.ArgumentTypeError(
            "there is no direct export to ONNX: use --format mpnet, roberta or modernbert, and pass the exported "
            "model to torch.onnx.export, as shown in the guide docs/guides/onnx.md"
        )
    return text


class Mix(NamedTuple):
    """A checkpoint, and its share in a mean of weights."""

    source: Path
    share: float


def _mix(text: str) -> Mix:
    source, equals, share = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} must be SOURCE=SHARE, such as FOLDER=0.5")
    return Mix(checkpoint_path(source), number(float, above=0, below=1)(share))


@dataclass(frozen=True)
class ExportSettings:
    """Options of ``maelm export``."""

    format: str | None = option(
        None,
        type=_format,
        choices=(*FORMATS, FAIRSEQ, FAIRSEQ_ROBERTA),
        help="format of the folder. Opened by stock transformers: 'mpnet' (for --relative-buckets t5 with 32 buckets "
        "and distance 128), 'roberta', 'xlm-roberta', 'camembert', 'bert', 'distilbert', 'electra' (for "
        "--relative-buckets none) and 'modernbert' (for the architectures maelm_modern_*). 'maelm' is for all other "
        "encoders; it is opened with trust_remote_code=True (the folder has the code) or after `import "
        "fairseq_maelm.hf`. 'fairseq' is a fairseq checkpoint with its vocabulary, without the optimizer's state, and "
        "'fairseq-roberta' one of fairseq's own model roberta, for masked language models with --relative-buckets "
        "none. Default: the original format of an imported "
        "model, with its ids and tokenizer files; otherwise a stock format that gives the same results, or 'maelm' if "
        "there is none",
    )
    averaged_weights: bool = option(
        False, help="export the running average of the weights, which training with --store-ema saves"
    )
    mix: Mix | None = option(
        None,
        type=_mix,
        metavar="SOURCE=SHARE",
        help="export a weighted mean of the encoders' weights: SHARE of the checkpoint SOURCE, from which --checkpoint "
        "was trained, and the rest of --checkpoint. It keeps more of what SOURCE knew",
    )
    architecture: str | None = option(
        None,
        choices=tuple(ARCHITECTURES),
        help="architecture of the exported model (default: what the checkpoint was trained for, or the encoder if the "
        "format cannot represent the checkpoint's masked-token head)",
    )
    head: str | None = option(None, metavar="NAME", help="name of the fine-tuned head to export, if there are several")
    labels: Path | None = option(
        None,
        type=existing_path,
        metavar="FILE",
        help="file with names of the head's outputs, one per line (default: the labels in the vocabulary's folder)",
    )
    with_mlm_head: bool = option(
        False,
        help="export the encoder with its LM head as a masked language model, without the decoder that predicted "
        "masked tokens in training; how well the head fits is measured on the validation set in --vocabulary",
    )
    name: str | None = option(None, help="name of the model in its card (default: the folder's name)")
    license: str | None = option(None, metavar="SPDX", help="license in the card (default: left to be filled in)")
    dtype: str = option(
        "float32", choices=("float32", "float16"), help="data type of the weights in a folder for transformers"
    )
    complete: bool = option(
        False,
        help="also store the decoder, heads, options and vocabulary, so that the folder works as --checkpoint",
    )

    def __post_init__(self) -> None:
        given = [name for name in _OF_HUGGING_FACE if getattr(self, name) is not None]
        for_fairseq = self.format in (FAIRSEQ, FAIRSEQ_ROBERTA)
        if for_fairseq and (self.complete or self.dtype != "float32"):
            raise ValueError(
                f"--complete and --dtype apply only to exports for transformers: omit them with --format {self.format}"
            )
        if self.complete and self.architecture not in (None, "encoder"):
            raise ValueError(
                "with --complete the exported transformers model is always the encoder: omit --architecture"
            )
        if self.with_mlm_head and (self.format == FAIRSEQ or self.complete or self.architecture or self.head):
            raise ValueError(
                "--with-mlm-head cannot be combined with --architecture, --head, --complete or --format fairseq: omit "
                "these"
            )
        if for_fairseq and given:
            raise ValueError(f"--{given[0]} has no effect with --format {self.format}: omit it")
