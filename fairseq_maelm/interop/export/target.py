"""Choose what an export contains: the encoder alone, masked-token prediction, or a fine-tuned head with its labels."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.architecture.families import FAMILIES, Family
from fairseq_maelm.checkpoints.reader import describe_checkpoint
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.interop.export.formats import ARCHITECTURES, AUTO_CLASSES, FORMATS, OUR_FORMAT
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.source_files import SourceFiles
from fairseq_maelm.models.labels import Labels, Numbers, Spans
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.vocabulary_folder import find_dictionary
from fairseq_maelm.modules.finetuning_heads import ClassificationHead, TokenHead
from fairseq_maelm.text.dictionary import load_dictionary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """The target of an export: format, architecture, head and labels, and the kept files of an imported source."""

    format: str  # one of ``FORMATS``
    architecture: str  # one of ``ARCHITECTURES``
    head: str | None = None  # name of the fine-tuned head
    labels: Labels | None = None  # what the head's outputs stand for
    kept: SourceFiles | None = None  # files and ids of the imported source, if the folder gets the same
    modules: bool = False  # whether the head is in modules of sentence-transformers, after an "encoder"

    @property
    def scored(self) -> str:
        """The architecture by which the folder's outputs are compared with the checkpoint's."""
        return "sequence-classification" if self.modules else self.architecture

    @property
    def description(self) -> str:
        """What the folder holds."""
        return f"{self.class_name} with its head, for sentence-transformers" if self.modules else self.class_name

    @property
    def class_name(self) -> str:
        """The name of the transformers class that opens the folder."""
        return FORMATS[self.format] + ARCHITECTURES[self.architecture]

    @property
    def auto_class(self) -> str:
        """The name of transformers' auto class for this architecture."""
        return AUTO_CLASSES[self.architecture]


def default_format(source: LoadedCheckpoint) -> str:
    """Return the first format that can represent the encoder: the import's, those of stock classes, and "maelm"."""
    kind = source.imported_as
    # Names of special tokens tell BERT from RoBERTa, whose layers are equal.
    like_bert = source.mask_text == "[MASK]"
    stock = ("modernbert", "mpnet", *(("bert", "roberta") if like_bert else ("roberta", "bert")))
    candidates = (form for form in (kind, *stock) if form in FORMATS)
    return next((form for form in candidates if not obstacles(source, Target(form, "encoder"))), OUR_FORMAT)


def choose_target(
    source: LoadedCheckpoint,
    form: str,
    architecture: str | None = None,
    head: str | None = None,
    labels: Path | None = None,
) -> Target:
    """Choose what to export in the format ``form``; raise ValueError if the export would not be exact.

    The default architecture is the one that the checkpoint was trained for. If the format's class cannot represent it,
    the encoder is exported alone instead of with its masked-token prediction, and a head of sentences is exported as
    modules of sentence-transformers. ``head`` is needed only if the checkpoint has several heads; ``labels`` is a file
    with one label per line.
    """
    target = _target(source, form, architecture or _trained_for(source, head), head, labels)
    found = obstacles(source, target)
    if not found:
        return target
    reasons, other = f"{'; '.join(found)}{_other_format(source, target)}", _instead(source, target)
    if other is None or architecture is not None:
        remedy = "" if other is None else f". Without --architecture, the folder gets {other.description}"
        raise ValueError(
            f"{source.checkpoint.path} cannot become a {target.class_name} of Hugging Face: {reasons}{remedy}"
        )
    if not other.modules:
        logger.warning("only the encoder is exported, without prediction of masks: %s", reasons)
    return other


def _instead(source: LoadedCheckpoint, target: Target) -> Target | None:
    """Return what can be exported in place of a target that the format's class cannot represent, if anything."""
    head = None if target.head is None else source.model.classification_heads[target.head]
    if target.architecture == "masked-lm":
        other = Target(target.format, "encoder")
    elif type(head) is ClassificationHead:  # modern heads have layers that sentence-transformers lacks
        other = replace(target, architecture="encoder", modules=True)
    else:
        return None
    return None if obstacles(source, other) else other


def _other_format(source: LoadedCheckpoint, target: Target) -> str:
    kept, what = (target.architecture, "it") if target.architecture != "masked-lm" else ("encoder", "its encoder")
    ours = replace(target, format=OUR_FORMAT, architecture=kept)
    return "" if obstacles(source, ours) else f". --format {OUR_FORMAT} represents {what}"


def target_after_training(checkpoint: Path, task: Any, data: Path, output: Path) -> Target | None:
    """Choose what the checkpoint of a fine-tuning will be exported to by default; None for tasks with other heads.

    ``checkpoint`` has the encoder, ``task`` the options of the fine-tuning's task, and ``data`` is its prepared folder.
    """
    before = describe_checkpoint(checkpoint)
    dictionary = load_dictionary(str(find_dictionary([checkpoint.parent, data])))
    with torch.device("meta"):
        model = MaelmModel(before.config.model, dictionary, predicts_masked_tokens=False)
        if task._name == "maelm_sentences":
            model.register_classification_head("new", 1, pooling=str(task.pooling))
        elif task._name in ("maelm_squad", "maelm_tagging"):
            model.register_token_head("new", 1 + (task._name == "maelm_squad"))
        else:
            return None
    config = OmegaConf.merge(before.config, {"task": {"_name": task._name}})
    after = replace(before, path=output / "checkpoint_best.pt", config=config, weights=model.state_dict())
    source = LoadedCheckpoint(after, model, dictionary, checkpoint.parent)
    return choose_target(source, default_format(source))


def obstacles(source: LoadedCheckpoint, target: Target) -> list[str]:
    """Return the reasons why the format cannot represent the target; empty if there are none."""
    family = FAMILIES[target.format]
    found = fixed_otherwise(source.options, family, FORMATS[target.format])
    if found and "--layer" in found[0]:
        return found
    if target.architecture == "masked-lm":
        found += _obstacles_of_prediction(source, target.format)
    if target.head is not None and not target.modules:
        found += _obstacles_of_head(source.model.classification_heads[target.head], target)
    return found


def _obstacles_of_head(head: Any, target: Target) -> list[str]:
    family, found = FAMILIES[target.format], list[str]()
    if target.architecture not in family.heads:
        found.append(f"{target.class_name} computes scores differently from our head")
    if isinstance(head, ClassificationHead):
        dense = head.dense_layer
        if dense.out_features != dense.in_features:
            found.append(f"the head {target.head!r} has a dense layer whose width is not the model's")
        if head.pooling == "mean" and not family.is_modern:
            found.append(
                f"the head {target.head!r} reads the mean of all states, and {target.class_name} the first token's"
            )
    return found


def fixed_otherwise(config: Any, family: Family, name: str) -> list[str]:
    """Return the first option of the encoder, in words, that the family's class ``name`` has fixed to another value."""
    options = EncoderOptions.of(config)
    for option, fixed in family.fixed.items():
        value = getattr(options, option)
        if value != fixed:
            return [f"its --{option.replace('_', '-')} is {value}, but {name} always computes {fixed}"]
    return []


def _obstacles_of_prediction(source: LoadedCheckpoint, form: str) -> list[str]:
    model, view, found = source.model, source.checkpoint.view, []
    if model.lm_head is None:
        found.append("the checkpoint has no LM head")
    if form == OUR_FORMAT:
        found.append("Maelm has no class that predicts masks: `maelm fill` and `maelm score` do")
    elif model.decoder is not None and model.decoder.reads_encoder:
        found.append(f"masks read the encoder's states (--decoder-attention {model.decoder.attention})")
    elif model.decoder is not None:
        found.append(f"it predicts masked tokens by its decoder, which {FORMATS[form]} does not have")
    elif not view.sees_masks or view.masked_input == "reset":
        found.append(f"its encoder does not predict from <mask> (--masked-input {view.masked_input})")
    return found


def _trained_for(source: LoadedCheckpoint, head: str | None) -> str:
    if source.model.lm_head is not None and head is None:
        return "masked-lm"
    if not source.checkpoint.heads and head is None:
        return "encoder"
    if not isinstance(source.model.classification_heads[_head(source, head)], TokenHead):
        return "sequence-classification"
    answers = source.checkpoint.task_name == "maelm_squad" or source.imported_head.endswith("ForQuestionAnswering")
    return "question-answering" if answers else "token-classification"


def _head(source: LoadedCheckpoint, name: str | None) -> str:
    names = list(source.checkpoint.heads)
    if name in names:
        return str(name)
    if name is not None:
        raise ValueError(f"the checkpoint has no head {name!r} (it has: {', '.join(names) or 'none'})")
    if not names:
        raise ValueError(f"{source.checkpoint.path} has no fine-tuned head: give --architecture encoder or masked-lm")
    if len(names) > 1:
        raise ValueError(f"the checkpoint has several heads: choose one of {', '.join(names)} with --head")
    return names[0]


def _target(source: LoadedCheckpoint, form: str, architecture: str, head: str | None, labels: Path | None) -> Target:
    if architecture in ("encoder", "masked-lm"):
        if labels is not None:
            raise ValueError(
                f"--labels names the outputs of a fine-tuned head, but {architecture} has none: omit --labels"
            )
        if head is not None:
            raise ValueError(
                f"--head names a fine-tuned head, but {architecture} has none: give --architecture for a model with a "
                "head"
            )
        return Target(form, architecture)
    name = _head(source, head)
    scores_tokens = isinstance(source.model.classification_heads[name], TokenHead)
    if scores_tokens != (architecture != "sequence-classification"):
        kind = "tokens" if scores_tokens else "whole sequences"
        raise ValueError(f"the head {name!r} scores {kind} and cannot be exported as {architecture}")
    outputs = source.checkpoint.heads[name][0]
    if architecture == "question-answering":
        spans = source.labels if isinstance(source.labels, Spans) else Spans()
        if outputs != len(spans.names):
            raise ValueError(f"an answer has a start and an end, but the head {name!r} has {outputs} outputs")
        return Target(form, architecture, name, spans)
    own = labels_of(source.source_files.config, outputs) if source.imported_head and source.source_files else None
    if labels is None and own is not None:
        return Target(form, architecture, name, Labels(own))
    return Target(form, architecture, name, _labels(source, outputs, labels))


def labels_of(config: dict[str, Any], outputs: int) -> tuple[str, ...]:
    """Return the names of a head's outputs by a config.json, with transformers' default."""
    names = config.get("id2label") or {}
    return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(outputs))


def _labels(source: LoadedCheckpoint, outputs: int, given: Path | None) -> Labels:
    """Return the labels of the task, with the names in the file ``given`` if there is one."""
    own, place = source.labels, source.data if given is None else given
    if own is None or (outputs == 1) != isinstance(own, Numbers):
        own = Numbers() if outputs == 1 else Labels(())
    names = own.names if given is None else tuple(name.strip() for _, name in numbered_lines(given, blank=False))
    if not names and given is None:
        logger.warning("no labels in %s: the outputs are named LABEL_0 ...; give names with --labels", place)
        names = labels_of({}, outputs)
    if len(names) != outputs:
        raise ValueError(f"{place} names {len(names)} labels, but the head has {outputs} outputs")
    if len(set(names)) < len(names):
        raise ValueError(f"{place} names a label twice")
    return replace(own, names=names)
