"""What an exported folder holds: the encoder, the prediction of masks, or a fine-tuned head with its labels."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_maelm.files import read_json
from fairseq_maelm.interop.agreement import STATES, scores_of
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.lines import numbered_lines
from fairseq_maelm.modules.heads import ClassificationHead, TokenHead
from fairseq_maelm.prepared_folder import MANIFEST_FILE

logger = logging.getLogger(__name__)

# Format -> the beginning of its classes' names, and architecture -> the end.
FORMATS = {"mpnet": "MPNet", "roberta": "Roberta", "modernbert": "ModernBert", "maelm": "Maelm"}
ARCHITECTURES = {
    "encoder": "Model",
    "masked-lm": "ForMaskedLM",
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
}
AUTO_CLASSES = {name: f"AutoModel{ending.removeprefix('Model')}" for name, ending in ARCHITECTURES.items()}

# MPNetEncoder.compute_position_bias has these numbers of its own and does not ask its configuration.
_MPNET_BUCKETS = ("t5", 32, 128)
# The tasks whose heads on tokens find answers; other heads on tokens tag them.
_ANSWERING_TASKS = ("maelm_squad",)
_START_AND_END = ("start", "end")
# Where the folders of fine-tuning name labels: sentences in fairseq's dictionary, words in the manifest.
_LABEL_FILES = {"sequence-classification": "label/dict.txt", "token-classification": MANIFEST_FILE}


@dataclass(frozen=True)
class Content:
    """What a folder is to hold.

    Attributes:
        format: one of ``FORMATS``.
        architecture: one of ``ARCHITECTURES``.
        head: name of the fine-tuned head, None for the encoder and for the prediction of masks.
        labels: names of the head's outputs, or None.
    """

    format: str
    architecture: str
    head: str | None = None
    labels: tuple[str, ...] | None = None

    @property
    def class_name(self) -> str:
        """The class that opens the folder."""
        return FORMATS[self.format] + ARCHITECTURES[self.architecture]

    @property
    def auto_class(self) -> str:
        """The class of transformers that finds it."""
        return AUTO_CLASSES[self.architecture]

    @property
    def what(self) -> str:
        """The name of what it computes."""
        return STATES if self.architecture == "encoder" else scores_of(self.architecture)


def choose_content(
    source: Source,
    form: str,
    architecture: str | None = None,
    head: str | None = None,
    labels: Path | None = None,
) -> Content:
    """Decide what to export, and refuse what cannot be exact.

    Args:
        source: the checkpoint.
        form: one of ``FORMATS``.
        architecture: one of ``ARCHITECTURES``; by default what the checkpoint was trained for, and the encoder alone
            where the format cannot hold the prediction of masks.
        head: name of a fine-tuned head, needed only where there are several.
        labels: file with the names of the head's outputs, one a line.

    Raises:
        ValueError: there is no such head, or the format cannot hold it; says why.
    """
    wanted = architecture or _trained_for(source, head)
    content = _content(source, form, wanted, head, labels)
    found = obstacles(source, content)
    if found and architecture is None and wanted == "masked-lm":
        encoder = Content(form, "encoder")
        if not obstacles(source, encoder):
            logger.warning("the encoder is exported alone, without prediction of masks: %s", "; ".join(found))
            return encoder
    if found:
        other = "" if obstacles(source, replace(content, format="maelm")) else " --format maelm holds it."
        raise ValueError(
            f"{source.checkpoint.path} cannot become a {content.class_name} of Hugging Face: {'; '.join(found)}.{other}"
        )
    return content


def obstacles(source: Source, content: Content) -> list[str]:
    """Return why a format cannot hold this; empty if it can."""
    if (source.options.layer == "modern") != (content.format == "modernbert"):
        return [
            f"its layers are {source.options.layer}: --format modernbert is for modern ones, others are for the rest"
        ]
    found = _obstacles_of_positions(source.options, content.format)
    if content.architecture == "masked-lm":
        found += _obstacles_of_prediction(source, content.format)
    head = None if content.head is None else source.model.classification_heads[content.head]
    if isinstance(head, ClassificationHead) and head.dense.out_features != head.dense.in_features:
        found.append(f"the head {content.head!r} has a dense layer of another width than the model's")
    return found


def _obstacles_of_positions(config: Any, form: str) -> list[str]:
    buckets = (str(config.relative_buckets), config.relative_num_buckets, config.relative_max_distance)
    if form == "mpnet" and buckets[0] == "none":
        return ["it has no relative position bias, which every MPNet has"]
    if form == "mpnet" and buckets != _MPNET_BUCKETS:
        return [
            f"its relative positions are {buckets[0]} buckets {buckets[1]}/{buckets[2]}, and transformers' MPNet "
            "always computes T5's 32/128, whatever its configuration says: the folder would load and be wrong"
        ]
    if form == "roberta" and buckets[0] != "none":
        return ["it has a relative position bias, and RoBERTa has absolute positions only"]
    if (config.positions == "rotary") != (form == "modernbert"):
        return [f"its positions are {config.positions}, and those of {FORMATS[form]} are not"]
    return []


def _obstacles_of_prediction(source: Source, form: str) -> list[str]:
    model, view, found = source.model, source.checkpoint.view, []
    if model.lm_head is None:
        found.append("the checkpoint has no prediction head: it was fine-tuned")
    if model.decoder is not None and model.decoder.reads_encoder:
        found.append(f"its decoder has cross-attention (--decoder-attention {model.decoder.attention})")
    elif model.decoder is not None and form != "maelm":
        found.append(f"it predicts masked tokens by its decoder, which {FORMATS[form]} does not have")
    elif form != "maelm" and (not view.asks_with_masks or view.masked_input == "reset"):
        found.append(f"its encoder does not predict from <mask> (--masked-input {view.masked_input})")
    return found


def _trained_for(source: Source, head: str | None) -> str:
    if source.model.lm_head is not None and head is None:
        return "masked-lm"
    if not source.checkpoint.heads:
        return "encoder"
    if not isinstance(source.model.classification_heads[_head(source, head)], TokenHead):
        return "sequence-classification"
    return "question-answering" if source.checkpoint.task_name in _ANSWERING_TASKS else "token-classification"


def _head(source: Source, name: str | None) -> str:
    names = list(source.checkpoint.heads)
    if name in names:
        return str(name)
    if name is not None:
        raise ValueError(f"the checkpoint has no head {name!r} (it has: {', '.join(names) or 'none'})")
    if not names:
        raise ValueError(f"{source.checkpoint.path} has no fine-tuned head: export it as encoder or masked-lm")
    if len(names) > 1:
        raise ValueError(f"the checkpoint has several heads: choose one of {', '.join(names)} with --head")
    return names[0]


def _content(source: Source, form: str, architecture: str, head: str | None, labels: Path | None) -> Content:
    if architecture in ("encoder", "masked-lm"):
        if labels is not None:
            raise ValueError(f"--labels names the outputs of a fine-tuned head, and {architecture} has none")
        if head is not None:
            raise ValueError(f"--head names a fine-tuned head, and {architecture} has none: give --architecture")
        return Content(form, architecture)
    name = _head(source, head)
    scores_tokens = isinstance(source.model.classification_heads[name], TokenHead)
    if scores_tokens != (architecture != "sequence-classification"):
        kind = "tokens" if scores_tokens else "whole sequences"
        raise ValueError(f"the head {name!r} scores {kind} and cannot be exported as {architecture}")
    outputs = source.checkpoint.heads[name][0]
    if architecture == "question-answering":
        if outputs != len(_START_AND_END):
            raise ValueError(f"an answer has a start and an end, and the head {name!r} has {outputs} outputs")
        return Content(form, architecture, name, _START_AND_END)
    return Content(form, architecture, name, _labels(source.data / _LABEL_FILES[architecture], outputs, labels))


def _labels(usual: Path, outputs: int, given: Path | None) -> tuple[str, ...]:
    path = given or usual
    names = _read_labels(path) if given is not None or (outputs > 1 and usual.is_file()) else []
    if given is None and not names:
        if outputs > 1:
            logger.warning("no labels in %s: the outputs are called LABEL_0 ...; --labels names them", usual)
        return tuple(f"LABEL_{number}" for number in range(outputs))
    if len(names) != outputs:
        raise ValueError(f"{path} names {len(names)} labels, and the head has {outputs} outputs")
    if len(set(names)) < len(names):
        raise ValueError(f"{path} names a label twice")
    return tuple(names)


def _read_labels(path: Path) -> list[str]:
    if path.suffix == ".json":
        return [str(name) for name in read_json(path).get("tagging", {}).get("labels", [])]
    if path.name == "dict.txt":
        dictionary = Dictionary.load(str(path))
        # Labels follow fairseq's special symbols; what pads the dictionary to a round size is none.
        return [name for name in dictionary.symbols[dictionary.nspecial :] if not name.startswith("madeupword")]
    return [name.strip() for _, name in numbered_lines(path, blank=False)]
