"""Continued pretraining: the recipe settings that follow from the checkpoint."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from fairseq_maelm.checkpoints.fit import dictionary_fingerprint
from fairseq_maelm.checkpoints.reader import Checkpoint
from fairseq_maelm.data.token_files import read_index
from fairseq_maelm.launch.recipes import PretrainingRecipe
from fairseq_maelm.text.dictionary import load_dictionary

# BERT's masking (Devlin et al., 2019), which published encoders were trained with.
_MLM: dict[str, Any] = {"masked-input": "kept", "leave-unmasked-prob": 0.1, "random-token-prob": 0.1}
_MLM |= {"decoder-layers": 0, "decoder-attention": None}
# What a new LM head would otherwise learn first, at the cost of the encoder.
_NEW_HEAD = {"initial-output-bias": "frequencies"}
_SPOILED = (
    "the source is a sentence encoder: further pretraining makes its sentence embeddings worse, more with each update; "
    "`maelm export --mix BASE=0.5`, where BASE is this source, restores most of it (docs/results/sentence_encoders.md)"
)
# Share of general text in training, the rise of its loss (bits) that ends a run, and the validation splits.
_GENERAL = {"general-ratio": 0.25, "general-loss-bound": 0.1, "valid-subset": "valid,general"}
# Default number of validations in a run, and the smallest default number of updates between two.
_VALIDATIONS, _FEWEST_UPDATES = 20, 10
# The published configurations of ModernBERT and Ettin have no dropout, nor have our modern sizes.
_WITHOUT_DROPOUT = {"dropout": 0, "attention-dropout": 0}


def continue_from(
    recipe: PretrainingRecipe,
    given: Collection[str],
    checkpoint: Checkpoint,
    data: list[Path],
    objective: str,
    general_data: str | None,
) -> PretrainingRecipe:
    """Return a recipe for further pretraining of a checkpoint on folders of prepared text, and perhaps on general text.

    ``given`` has the names of the settings that the user has chosen. Another vocabulary is refused, fewer positions
    than the user's sequence length, and the objective "mlm" for a checkpoint with a decoder.
    """
    for folder in (data[0], *map(Path, general_data.split(":") if general_data else ())):
        _check_vocabulary(checkpoint, folder)
    model = checkpoint.config.model
    wanted = int(recipe.setting["sequence-length"])
    length = min(wanted, model.max_positions)
    if "sequence-length" in given and length < wanted:
        raise ValueError(
            f"--set sequence-length={wanted}: {checkpoint.path} has {length} positions, so give at most {length}"
        )
    decided = _prediction(checkpoint, objective)
    if model.layer == "modern":
        decided = {**decided, **_WITHOUT_DROPOUT}
    options = {**recipe.options, **{name: decided[name] for name in decided if name not in given}}
    options |= {"arch": "maelm", "finetune-from-model": checkpoint.path}
    if "max-positions" not in given:  # fairseq-train refuses a number that contradicts the checkpoint
        options["max-positions"] = model.max_positions
    setting = {**recipe.setting, "sequence-length": length}
    if general_data is not None:
        options = {**_GENERAL, **options, "general-data": general_data}
    if "max-update" not in options:
        options["max-update"] = max(_VALIDATIONS, _updates(setting, float(options.get("general-ratio") or 0.0), data))
    if "warmup-updates" in options and "warmup-updates" not in given:
        # A short run would end before it reaches its learning rate.
        options["warmup-updates"] = min(options["warmup-updates"], max(1, options["max-update"] // 2))
    interval = options.get("validate-interval-updates", max(_FEWEST_UPDATES, options["max-update"] // _VALIDATIONS))
    options = {"validate-interval-updates": interval, "save-interval-updates": interval, **options}
    return replace(recipe, setting=setting, options=options)


def _check_vocabulary(checkpoint: Checkpoint, folder: Path) -> None:
    if dictionary_fingerprint(load_dictionary(str(folder))) != checkpoint.vocabulary:
        path = checkpoint.path
        raise ValueError(
            f"{folder} was not prepared with the vocabulary of {path}: run `maelm prepare corpus TEXT --vocabulary "
            f"{quote(str(path.parent))} --output FOLDER`, and give this folder"
        )


def _updates(setting: Mapping[str, Any], general: float, data: list[Path]) -> int:
    """Return the updates that read the text of the domain ``passes`` times; ``general`` is the share of other text."""
    tokens = sum(int(read_index(str(folder / "train"))[0].sum()) for folder in data)
    if 0.0 <= general < 1.0:  # fairseq-train refuses all others
        tokens = round(tokens / (1.0 - general))
    batch = int(setting["batch-sequences"]) * setting["sequence-length"]
    return math.ceil(float(setting["passes"]) * tokens / batch)


def effects_of_pretraining(checkpoint: Checkpoint) -> list[str]:
    """Return what further pretraining costs an encoder that was trained for something else, a sentence for each."""
    effects = []
    if checkpoint.heads and not checkpoint.predicts_masked_tokens:
        effects.append(f"the source was fine-tuned: its {' and '.join(checkpoint.heads)} is dropped")
    if checkpoint.is_sentence_encoder:
        effects.append(_SPOILED)
    if not checkpoint.predicts_masked_tokens:
        effects.append("the source has no LM head: a new one begins with the frequencies of the text's words")
    return effects


def _prediction(checkpoint: Checkpoint, objective: str) -> dict[str, Any]:
    """Return the options for predicting masked tokens; an option with the value None is left to the checkpoint."""
    if not checkpoint.has_decoder:
        head = {} if checkpoint.predicts_masked_tokens else _NEW_HEAD
        return {**head, **(_MLM if objective == "mlm" else {})}
    if objective == "mlm":
        raise ValueError(
            f"{checkpoint.path} predicts masked tokens by its decoder, so its encoder cannot be trained by --objective "
            "mlm: omit the option"
        )
    view = checkpoint.view
    known = {"masked-input": view.masked_input, "encoder-mask-fraction": view.mask_fraction or None}
    return {**known, "encoder-positions": view.positions, "decoder-layers": None, "decoder-attention": None}
