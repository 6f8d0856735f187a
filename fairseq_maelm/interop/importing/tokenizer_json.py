"""The file tokenizer.json of the library tokenizers: reading it, and giving its tokens other numbers."""

import json
from typing import Any

from fairseq_maelm.interop.importing.source import refuse


def renumber(content: str, number_of: dict[int, int], where: Any) -> str:
    """Give every token of a tokenizer.json another number.

    Args:
        content: of the file.
        number_of: old number -> new number, for all tokens.
        where: named in errors.

    Returns:
        the content of the new file.

    Raises:
        ValueError: for a kind of model or template that numbers are not known to stand in.
    """
    state = json.loads(content)
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: number_of[number] for token, number in model["vocab"].items()}
    elif model.get("type") == "Unigram":
        model["vocab"], model["unk_id"] = _renumber_unigram(model, number_of, where)
    else:
        raise refuse(where, f"the tokens of a tokenizer {model.get('type')!r} cannot be given other numbers")
    for token in state["added_tokens"]:
        token["id"] = number_of[token["id"]]
    state["added_tokens"].sort(key=lambda token: int(token["id"]))
    if state.get("post_processor") is not None:
        state["post_processor"] = _renumber_template(state["post_processor"], number_of, where)
    return json.dumps(state, ensure_ascii=False, indent=2)


def _renumber_unigram(model: dict[str, Any], number_of: dict[int, int], where: Any) -> tuple[list[Any], Any]:
    """Numbers are places in the list; a place that gets no piece stands for an added token, which is found first."""
    pieces: dict[int, Any] = {number_of[number]: piece for number, piece in enumerate(model["vocab"])}
    if sorted(pieces) != list(range(len(pieces))):
        raise refuse(where, "its tokens would leave gaps in the list of a Unigram tokenizer")
    unknown = model.get("unk_id")
    return [pieces[number] for number in range(len(pieces))], None if unknown is None else number_of[unknown]


def _renumber_template(processor: dict[str, Any], number_of: dict[int, int], where: Any) -> dict[str, Any]:
    kind = processor["type"]
    if kind == "Sequence":
        parts = [_renumber_template(each, number_of, where) for each in processor["processors"]]
        return {**processor, "processors": parts}
    if kind in ("RobertaProcessing", "BertProcessing"):
        ends = {name: [processor[name][0], number_of[processor[name][1]]] for name in ("sep", "cls")}
        return {**processor, **ends}
    if kind == "TemplateProcessing":
        special = {
            name: {**each, "ids": [number_of[number] for number in each["ids"]]}
            for name, each in processor["special_tokens"].items()
        }
        return {**processor, "special_tokens": special}
    if kind == "ByteLevel":
        return processor
    raise refuse(where, f"numbers of tokens in a post-processor {kind!r} are not known")
