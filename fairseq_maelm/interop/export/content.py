"""What a checkpoint's folder is to hold: the encoder, the prediction of masks, or a fine-tuned head with its labels."""

import json
import logging
from pathlib import Path
from typing import Optional

from fairseq.data import Dictionary

from fairseq_maelm.interop.export.configuration import ARCHITECTURES, Content, obstacles
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.models.checkpoint import classification_heads
from fairseq_maelm.modules.heads import TokenHead
from fairseq_maelm.prepared_folder import MANIFEST_FILE

logger = logging.getLogger(__name__)

# The tasks whose heads on tokens find answers; other heads on tokens tag them.
_ANSWERING_TASKS = ("maelm_squad",)
_START_AND_END = ("start", "end")
# Where the folders of fine-tuning name labels: sentences by fairseq's dictionary, words in the manifest.
_LABEL_FILES = {"sequence-classification": "label/dict.txt", "token-classification": MANIFEST_FILE}


def choose_content(
    source: Source,
    form: str,
    architecture: Optional[str] = None,
    head: Optional[str] = None,
    labels: Optional[Path] = None,
) -> Content:
    """Decide what to export, and refuse what cannot be exact.

    Args:
        source: the checkpoint.
        form: "mpnet" or "maelm".
        architecture: one of ``ARCHITECTURES``; by default what the checkpoint was trained for, and in MPNet's format
            the encoder alone where that cannot hold the prediction of masks.
        head: name of a fine-tuned head, needed only where there are several.
        labels: file with the names of the head's outputs, one a line.

    Raises:
        ValueError: if there is no such head, or the format cannot hold it; says why.
    """
    wanted = architecture or _trained_for(source, head)
    if wanted not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {wanted!r}; choose one of {', '.join(ARCHITECTURES)}")
    content = _content(source, form, wanted, head, labels)
    found = obstacles(source, content)
    if found and architecture is None and wanted == "masked-lm":
        encoder = Content(form, "encoder")
        if not obstacles(source, encoder):
            logger.warning("the encoder is exported alone, without prediction of masks: %s", "; ".join(found))
            return encoder
    if found:
        other = " --format maelm holds it." if form == "mpnet" and _holds(source, content, "maelm") else ""
        raise ValueError(
            f"{source.checkpoint} cannot become a {content.class_name} of Hugging Face: {'; '.join(found)}.{other}"
        )
    return content


def _holds(source: Source, content: Content, form: str) -> bool:
    return not obstacles(source, Content(form, content.architecture, content.head, content.labels))


def _trained_for(source: Source, head: Optional[str]) -> str:
    if source.model.lm_head is not None and head is None:
        return "masked-lm"
    if not source.model.classification_heads:
        return "encoder"
    module = source.model.classification_heads[_head(source, head)]
    if not isinstance(module, TokenHead):
        return "sequence-classification"
    return "question-answering" if source.task_name in _ANSWERING_TASKS else "token-classification"


def _head(source: Source, name: Optional[str]) -> str:
    names = list(source.model.classification_heads)
    if name in names:
        return str(name)
    if name is not None:
        raise ValueError(f"the checkpoint has no head {name!r} (it has: {', '.join(names) or 'none'})")
    if not names:
        raise ValueError(f"{source.checkpoint} has no fine-tuned head: export it as encoder or masked-lm")
    if len(names) > 1:
        raise ValueError(f"the checkpoint has several heads: choose one of {', '.join(names)} with --head")
    return names[0]


def _content(source: Source, form: str, architecture: str, head: Optional[str], labels: Optional[Path]) -> Content:
    if architecture in ("encoder", "masked-lm"):
        if labels is not None:
            raise ValueError(f"--labels names the outputs of a fine-tuned head, and {architecture} has none")
        return Content(form, architecture)
    name = _head(source, head)
    module = source.model.classification_heads[name]
    if isinstance(module, TokenHead) != (architecture != "sequence-classification"):
        kind = "tokens" if isinstance(module, TokenHead) else "whole sequences"
        raise ValueError(f"the head {name!r} scores {kind} and cannot be exported as {architecture}")
    outputs = classification_heads(source.model.state_dict())[name][0]
    if architecture == "question-answering":
        if outputs != len(_START_AND_END):
            raise ValueError(f"an answer has a start and an end, and the head {name!r} has {outputs} outputs")
        return Content(form, architecture, name, _START_AND_END)
    return Content(form, architecture, name, _labels(source.data / _LABEL_FILES[architecture], outputs, labels))


def _labels(usual: Path, outputs: int, given: Optional[Path]) -> tuple[str, ...]:
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
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return [str(name) for name in manifest.get("tagging", {}).get("labels", [])]
    if path.name == "dict.txt":
        dictionary = Dictionary.load(str(path))
        # Labels are numbered behind fairseq's special symbols; padding to a round number is none.
        return [name for name in dictionary.symbols[dictionary.nspecial :] if not name.startswith("madeupword")]
    return [name.strip() for name in path.read_text(encoding="utf-8").split("\n") if name.strip()]
