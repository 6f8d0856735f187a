"""The model card: what the model is, how it was trained, and how to use it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_maelm.files import read_json, sha256_of
from fairseq_maelm.interop.agreement import Agreement
from fairseq_maelm.interop.export.content import Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.prepared_folder import MANIFEST_FILE
from fairseq_maelm.text.vocabulary import MASK_SYMBOL
from fairseq_maelm.version import __version__

_PIPELINES = {
    "encoder": "feature-extraction",
    "masked-lm": "fill-mask",
    "sequence-classification": "text-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
}

# Options worth a line, by section of the checkpoint's configuration.
_OPTIONS = {
    "task": (
        *("tokens_per_sample", "max_positions", "sample_break_mode", "mask_prob", "leave_unmasked_prob"),
        *("random_token_prob", "mask_whole_words", "masked_input", "encoder_mask_fraction", "encoder_positions"),
        *("protect_special_tokens", "num_classes", "regression_target"),
    ),
    "optimization": ("lr", "max_update", "max_epoch", "clip_norm", "update_freq"),
    "dataset": ("batch_size", "max_tokens"),
    "optimizer": ("_name", "adam_betas", "adam_eps", "weight_decay"),
    "lr_scheduler": ("_name", "warmup_updates", "total_num_update", "power"),
    "common": ("seed", "fp16"),
    "model": ("dropout", "attention_dropout", "pooler_dropout", "precision", "init_std", "embedding_init_std"),
}


def model_card(
    source: Source,
    content: Content,
    name: str,
    license: str | None,
    agreements: Sequence[Agreement],
    tokenizer_differences: Mapping[str, str],
    use: str | None = None,
    more: Sequence[str] = (),
) -> str:
    """Return README.md of an exported folder.

    Args:
        source: the checkpoint.
        content: what the folder holds.
        name: of the model.
        license: SPDX identifier, or None to leave it open.
        agreements: of the verification.
        tokenizer_differences: texts that are known to be read differently, with the reason.
        use: lines of Python for a folder that transformers does not open.
        more: further sections.
    """
    held = "ONNX files" if use else f"the class `{content.class_name}`"
    mask = source.tokenizer.mask_text
    how = f"```python\n{use or usage(content, name, mask)}\n```" + ("" if use else f"\n\n{_notes(content)}")
    sections = [
        _front_matter(content, license, "onnx" if use else "transformers"),
        f"# {name}\n\n{_summary(source)} The folder holds {held}.",
        f"## Use\n\n{how}",
        f"## Training\n\n{_table(_training(source))}",
        f"### Hyper-parameters\n\n{_table(_hyper_parameters(source))}",
        f"### Data\n\n{_data(source)}",
        f"## Exactness\n\n{_exactness(source, agreements, tokenizer_differences)}",
        *more,
        f"## License\n\n{license or 'To be filled in by whoever publishes this model, here and in the first lines.'}",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(content: Content, license: str | None, library: str) -> str:
    lines = [
        f"library_name: {library}",
        f"pipeline_tag: {_PIPELINES[content.architecture]}",
        f"license: {license or 'unknown'}",
        "tags:\n- mae-lm\n- fairseq",
    ]
    return "\n".join(["---", *lines, "---"])


def _summary(source: Source) -> str:
    config, model = source.options, source.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    relative = "no relative positions"
    if config.positions == "rotary":
        relative = f"ModernBERT's layers, rotary positions of base {config.rotary_base:,}"
    elif str(config.relative_buckets) != "none":
        relative = f"{config.relative_num_buckets} {config.relative_buckets} buckets of relative positions up to "
        relative += f"distance {config.relative_max_distance}"
    seen = (
        "sees [MASK] in pretraining"
        if source.checkpoint.view.asks_with_masks
        else "never sees [MASK] in pretraining (MAE-LM)"
    )
    about = (
        f"whose encoder {seen}"
        if model.lm_head is not None
        else f"fine-tuned on the task `{source.checkpoint.task_name}`"
    )
    return (
        f"A text encoder trained with fairseq and fairseq_maelm, {about}: {config.encoder_layers} layers of width "
        f"{config.encoder_embed_dim} with {config.encoder_attention_heads} heads, {relative}, {config.max_positions} "
        f"positions, {len(source.dictionary):,} symbols; {parameters:,} parameters in the checkpoint."
    )


def usage(content: Content, name: str, mask: str = MASK_SYMBOL) -> str:
    """Return five lines of Python that open the folder and compute something; ``mask`` is its tokenizer's spelling."""
    remote = ", trust_remote_code=True" if content.format == "maelm" else ""
    opening = [
        f"from transformers import {content.auto_class}, AutoTokenizer",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{remote})',
        f'model = {content.auto_class}.from_pretrained("{name}"{remote})',
    ]
    text = '"What was first?", "First there was the word."' if content.architecture == "question-answering" else None
    if content.architecture == "masked-lm":
        text = f'"The {mask} is old."'
    result = {
        "encoder": "states = model(**batch).last_hidden_state",
        "masked-lm": "word = tokenizer.decode(model(**batch).logits[0, batch.input_ids[0] == tokenizer.mask_token_id]"
        ".argmax(-1))",
        "sequence-classification": "label = model.config.id2label[int(model(**batch).logits[0].argmax())]",
        "token-classification": "labels = [model.config.id2label[int(i)] for i in model(**batch).logits[0].argmax(-1)]",
        "question-answering": "start, end = (logits[0].argmax() for logits in model(**batch).to_tuple()[:2])",
    }[content.architecture]
    batch = f'batch = tokenizer({text or chr(34) + "A sentence." + chr(34)}, return_tensors="pt")'
    return "\n".join([*opening, batch, result])


def _notes(content: Content) -> str:
    notes = ["Inputs are cut at the model's positions by `truncation=True`."]
    if content.format == "maelm":
        notes.append(
            "`import fairseq_maelm.hf` registers the same classes, and `trust_remote_code` is not needed any more."
        )
    if (content.format, content.architecture) == ("mpnet", "encoder"):
        notes.append("`pooler_output` means nothing: the model has no trained pooler. Take `last_hidden_state`.")
    return " ".join(notes)


def _training(source: Source) -> dict[str, Any]:
    history = source.checkpoint.history
    facts: dict[str, Any] = {"task": f"`{source.checkpoint.task_name}`"}
    names = {"num_updates": "updates", "epoch": "epoch", "val_loss": "last validation metric", "best": "best of them"}
    facts.update({label: history[name] for name, label in names.items() if name in history})
    metric = OmegaConf.select(source.checkpoint.config, "checkpoint.best_checkpoint_metric")
    if metric is not None and "val_loss" in history:
        facts["the validation metric is"] = f"`{metric}`"
    if "training_seconds" in history:
        facts["hours"] = round(history["training_seconds"] / 3600, 2)
    batch = _batch(source.checkpoint.config)
    if batch:
        facts["batch"] = batch
    facts["checkpoint"] = f"`{source.checkpoint.path.name}`, SHA-256 {sha256_of(source.checkpoint.path)}"
    facts["exported by"] = f"fairseq_maelm {__version__}"
    return facts


def _batch(config: Any) -> str:
    per_update = OmegaConf.select(config, "optimization.update_freq") or [1]
    steps = int(per_update[0]) * int(OmegaConf.select(config, "distributed_training.distributed_world_size") or 1)
    limits = {"sequences": "dataset.batch_size", "tokens": "dataset.max_tokens"}
    sizes = {what: OmegaConf.select(config, option) for what, option in limits.items()}
    found = [f"{int(size) * steps:,} {what}" for what, size in sizes.items() if size]
    return f"up to {' or '.join(found)} an update" if found else ""


def _hyper_parameters(source: Source) -> dict[str, Any]:
    values = {
        section.replace("_", " ") if option == "_name" else option: OmegaConf.select(
            source.checkpoint.config, f"{section}.{option}"
        )
        for section, options in _OPTIONS.items()
        for option in options
    }
    return {name: value for name, value in values.items() if value is not None}


def _data(source: Source) -> str:
    path = source.data / MANIFEST_FILE
    if not path.is_file():
        return "To be filled in: the folder of the vocabulary has no manifest of `maelm prepare corpus`."
    manifest = read_json(path)
    settings, counts = manifest.get("settings", {}), manifest.get("counts", {})
    files = [each for group in manifest.get("files", {}).values() for each in group if isinstance(each, dict)]
    facts: dict[str, Any] = {
        # Names alone: where the files were on somebody's machine is nobody's business.
        "files": ", ".join(f"`{Path(str(each.get('file'))).name}`" for each in files),
        "vocabulary": f"{settings.get('preset')}, {len(source.dictionary):,} symbols with <mask>",
    }
    for split, numbers in counts.items():
        if isinstance(numbers, dict):
            facts[split] = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in numbers.items())
    return _table(facts)


def _exactness(source: Source, agreements: Sequence[Agreement], tokenizer_differences: Mapping[str, str]) -> str:
    lines = [
        f"- {each.what}: largest difference from the checkpoint {each.difference:.1e}, of values up to {each.size:.1f}"
        for each in agreements
    ]
    lines.append(
        f"- tokenizer: the ids of {source.tokenizer_file.name} and dict.txt, on hard texts and on every piece as a word"
    )
    lines += [f"- known to be read differently: {ascii(text)}: {why}" for text, why in tokenizer_differences.items()]
    return "\n".join(lines)


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows])
