"""The model card of an exported folder: the model, its training, and its use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_maelm import __version__
from fairseq_maelm.checkpoints.plain_data import plain_sections
from fairseq_maelm.files.atomic import read_json, sha256_of
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.interop.compare_outputs import Agreement
from fairseq_maelm.interop.export.target import Content
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.text.vocabulary import MASK_SYMBOL

_PIPELINES = {
    "encoder": "feature-extraction",
    "masked-lm": "fill-mask",
    "sequence-classification": "text-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
}
# The options in the table of hyper-parameters, by section of the checkpoint's configuration.
HYPER_PARAMETERS = {
    "task": "tokens_per_sample max_positions sample_break_mode mask_prob mask_prob_end leave_unmasked_prob "
    "random_token_prob mask_whole_words masked_input encoder_mask_fraction encoder_positions protect_special_tokens "
    "num_classes regression_target",
    "optimization": "lr max_update max_epoch clip_norm update_freq",
    "dataset": "batch_size max_tokens",
    "optimizer": "_name adam_betas adam_eps weight_decay muon_momentum muon_lr_ratio",
    "lr_scheduler": "_name warmup_updates total_num_update power phase_ratio init_lr_scale final_lr_scale",
    "common": "seed fp16",
    "model": "dropout attention_dropout pooler_dropout precision init_std embedding_init_std",
}
_INPUTS = {"masked-lm": '"The {mask} is old."', "question-answering": '"What was first?", "First there was the word."'}
_RESULTS = {
    "encoder": "states = model(**batch).last_hidden_state",
    "masked-lm": "word = tokenizer.decode(model(**batch).logits[0, batch.input_ids[0] == tokenizer.mask_token_id]"
    ".argmax(-1))",
    "sequence-classification": "label = model.config.id2label[int(model(**batch).logits[0].argmax())]",
    "token-classification": "labels = [model.config.id2label[int(i)] for i in model(**batch).logits[0].argmax(-1)]",
    "question-answering": "start, end = (logits[0].argmax() for logits in model(**batch).to_tuple()[:2])",
}


def model_card(
    source: LoadedCheckpoint,
    content: Content,
    name: str,
    license: str | None,
    agreements: Sequence[Agreement],
    tokenizer_differences: Mapping[str, str],
    more: Sequence[str] = (),
) -> str:
    """Return the README.md of an exported folder.

    ``license`` is an SPDX identifier or None, ``tokenizer_differences`` gives the reason for each text that is known to
    be tokenized differently, and ``more`` are further sections.
    """
    code = usage(content, name, source.tokenizer.mask_text)
    front_matter = [
        "library_name: transformers",
        f"pipeline_tag: {_PIPELINES[content.architecture]}",
        f"license: {license or 'unknown'}",
        "tags:\n- mae-lm\n- fairseq",
    ]
    sections = [
        "\n".join(["---", *front_matter, "---"]),
        f"# {name}\n\n{_summary(source)} The folder holds the class `{content.class_name}`.",
        f"## Use\n\n```python\n{code}\n```\n\n{_notes(content)}",
        f"## Training\n\n{_table(_training(source))}",
        f"### Hyper-parameters\n\n{_table(_hyper_parameters(source))}",
        f"### Data\n\n{_data(source)}",
        f"## Exactness\n\n{_exactness(source, agreements, tokenizer_differences)}",
        *more,
        f"## License\n\n{license or 'To be filled in by the publisher of this model, here and in the first lines.'}",
    ]
    return "\n\n".join(sections) + "\n"


def _summary(source: LoadedCheckpoint) -> str:
    config, model = source.options, source.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    relative = "no relative positions"
    if config.positions == "rotary":
        relative = f"ModernBERT's layers, rotary positions of base {config.rotary_base:,}"
    elif str(config.relative_buckets) != "none":
        relative = f"{config.relative_num_buckets} {config.relative_buckets} buckets of relative positions up to "
        relative += f"distance {config.relative_max_distance}"
    about = f"fine-tuned on the task `{source.checkpoint.task_name}`"
    if model.lm_head is not None:
        sees_masks = source.checkpoint.view.asks_with_masks
        about = f"whose encoder {'sees' if sees_masks else 'never sees'} [MASK] in pretraining"
        about += "" if sees_masks else " (MAE-LM)"
    return (
        f"A text encoder trained with fairseq and fairseq_maelm, {about}: {config.encoder_layers} layers of width "
        f"{config.encoder_embed_dim} with {config.encoder_attention_heads} heads, {relative}, {config.max_positions} "
        f"positions, {len(source.dictionary):,} symbols; {parameters:,} parameters in the checkpoint."
    )


def usage(content: Content, name: str, mask: str = MASK_SYMBOL) -> str:
    """Return five lines of Python that open a folder and compute its result; ``mask`` is the spelling of a mask."""
    remote = ", trust_remote_code=True" if content.format == "maelm" else ""
    text = _INPUTS.get(content.architecture, '"A sentence."').format(mask=mask)
    lines = [
        f"from transformers import {content.auto_class}, AutoTokenizer",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{remote})',
        f'model = {content.auto_class}.from_pretrained("{name}"{remote})',
        f'batch = tokenizer({text}, return_tensors="pt")',
        _RESULTS[content.architecture],
    ]
    return "\n".join(lines)


def _notes(content: Content) -> str:
    notes = ["`truncation=True` cuts inputs to the model's positions."]
    if content.format == "maelm":
        notes.append("After `import fairseq_maelm.hf`, which registers the same classes, omit `trust_remote_code`.")
    if (content.format, content.architecture) == ("mpnet", "encoder"):
        notes.append("The model has no trained pooler: use `last_hidden_state`, not `pooler_output`.")
    return " ".join(notes)


def _training(source: LoadedCheckpoint) -> dict[str, Any]:
    history, config = source.checkpoint.history, source.checkpoint.config
    facts: dict[str, Any] = {"task": f"`{source.checkpoint.task_name}`"}
    names = {"num_updates": "updates", "epoch": "epoch", "val_loss": "last validation metric", "best": "best of them"}
    facts |= {label: history[name] for name, label in names.items() if name in history}
    metric = OmegaConf.select(config, "checkpoint.best_checkpoint_metric")
    if metric is not None and "val_loss" in history:
        facts["the validation metric is"] = f"`{metric}`"
    if "training_seconds" in history:
        facts["hours"] = round(history["training_seconds"] / 3600, 2)
    per_update = OmegaConf.select(config, "optimization.update_freq") or [1]
    steps = int(per_update[0]) * int(OmegaConf.select(config, "distributed_training.distributed_world_size") or 1)
    limits = {"sequences": "dataset.batch_size", "tokens": "dataset.max_tokens"}
    sizes = {unit: OmegaConf.select(config, option) for unit, option in limits.items()}
    if any(sizes.values()):
        found = [f"{int(size) * steps:,} {unit}" for unit, size in sizes.items() if size]
        facts["batch"] = f"up to {' or '.join(found)} per update"
    facts["checkpoint"] = f"`{source.checkpoint.path.name}`, SHA-256 {sha256_of(source.checkpoint.path)}"
    facts["exported by"] = f"fairseq_maelm {__version__}"
    return facts


def _hyper_parameters(source: LoadedCheckpoint) -> dict[str, Any]:
    values = {
        section.replace("_", " ") if option == "_name" else option: OmegaConf.select(
            source.checkpoint.config, f"{section}.{option}"
        )
        for section, options in HYPER_PARAMETERS.items()
        for option in options.split()
    }
    # A loaded checkpoint computes in single precision, however it was trained.
    trained = plain_sections(source.checkpoint.state, source.checkpoint.path).get("model", {})
    values["precision"] = trained.get("precision")
    return {name: value for name, value in values.items() if value is not None}


def _data(source: LoadedCheckpoint) -> str:
    path = source.data / MANIFEST_FILE
    if not path.is_file():
        return "To be filled in: the folder of the vocabulary has no manifest of `maelm prepare corpus`."
    manifest = read_json(path)
    settings, counts = manifest.get("settings", {}), manifest.get("counts", {})
    files = [each for group in manifest.get("files", {}).values() for each in group if isinstance(each, dict)]
    facts: dict[str, Any] = {
        # Only file names, because paths are private.
        "files": ", ".join(f"`{Path(str(each.get('file'))).name}`" for each in files),
        "vocabulary": f"{settings.get('preset')}, {len(source.dictionary):,} symbols with <mask>",
    }
    for split, numbers in counts.items():
        if isinstance(numbers, dict):
            facts[split] = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in numbers.items())
    return _table(facts)


def _exactness(
    source: LoadedCheckpoint, agreements: Sequence[Agreement], tokenizer_differences: Mapping[str, str]
) -> str:
    lines = [
        f"- {each.what}: largest difference from the checkpoint {each.difference:.1e}, of values up to {each.size:.1f}"
        for each in agreements
    ]
    lines.append(
        f"- tokenizer: the ids of {source.tokenizer_file.name} and dict.txt, on hard texts and on every piece as a word"
    )
    lines += [
        f"- known to be tokenized differently: {ascii(text)}: {why}" for text, why in tokenizer_differences.items()
    ]
    return "\n".join(lines)


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows])
