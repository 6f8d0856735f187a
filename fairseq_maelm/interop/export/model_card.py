"""The model card (README.md) of an exported or imported folder, made from the template ``model_card.md``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from omegaconf import OmegaConf

from fairseq_maelm import __version__
from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.checkpoints.plain_data import plain_sections
from fairseq_maelm.files.atomic import read_json, sha256_of
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.interop.compare_outputs import Agreement
from fairseq_maelm.interop.export.formats import OUR_FORMAT
from fairseq_maelm.interop.export.target import Target
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.source_files import SOURCE_CARD, SourceFiles
from fairseq_maelm.models.labels import Classes, Numbers, Sets, Spans

CARD_OF_SOURCE = "README_of_source.md"

# Architecture -> the pipeline of its models, an input, and the line that computes the result.
_USE = {
    "encoder": ("feature-extraction", '"A sentence."', "states = model(**batch).last_hidden_state"),
    "masked-lm": (
        "fill-mask",
        '"The {mask} is old."',
        "word = tokenizer.decode(model(**batch).logits[0, batch.input_ids[0] == tokenizer.mask_token_id].argmax(-1))",
    ),
    "sequence-classification": (
        "text-classification",
        '"A sentence."',
        "label = model.config.id2label[int(model(**batch).logits[0].argmax())]",
    ),
    "token-classification": (
        "token-classification",
        '"A sentence."',
        "labels = [model.config.id2label[int(i)] for i in model(**batch).logits[0].argmax(-1)]",
    ),
    "question-answering": (
        "question-answering",
        '"What was first?", "First there was the word."',
        "start, end = (logits[0].argmax() for logits in model(**batch).to_tuple()[:2])",
    ),
}
# The line that computes other results than a class.
_RESULTS: dict[type, str] = {
    Sets: "labels = [model.config.id2label[int(i)] for i in (model(**batch).logits[0] >= 0).nonzero()]",
    Numbers: "value = float(model(**batch).logits)",
}
# The same for modules of sentence-transformers, by the kind of labels.
_USE_OF_MODULES: dict[type, list[str]] = {
    Classes: ["for row in scores.softmax(dim=-1):", "    print(labels[int(row.argmax())], float(row.max()))"],
    Sets: ["for row in scores.sigmoid():", "    print([labels[int(i)] for i in (row >= 0.5).nonzero()])"],
    Numbers: ["print(scores[:, 0].tolist())"],
}
_MODULES = " Its modules for sentence-transformers are the fine-tuned head: the embedding of a text is its scores."
# The options in the table of hyper-parameters, by section of the checkpoint's configuration.
HYPER_PARAMETERS = {
    "task": "tokens_per_sample half_length_until max_positions sample_break_mode mask_prob mask_prob_end "
    "leave_unmasked_prob random_token_prob mask_whole_words masked_input encoder_mask_fraction encoder_positions "
    "protect_special_tokens num_classes regression_target",
    "optimization": "lr max_update max_epoch clip_norm update_freq",
    "dataset": "batch_size max_tokens",
    "optimizer": "_name adam_betas adam_eps weight_decay muon_momentum muon_lr_ratio",
    "lr_scheduler": "_name warmup_updates total_num_update power phase_ratio init_lr_scale final_lr_scale",
    "common": "seed fp16",
    "model": "dropout attention_dropout pooler_dropout precision init_std embedding_init_std",
}


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """Fill in a template that is in the folder of this module."""
    return Template(Path(__file__).with_name(name).read_text(encoding="utf-8")).substitute(values)


def model_card(
    source: LoadedCheckpoint,
    target: Target,
    name: str,
    license: str | None,
    training: str,
    exactness: Sequence[str],
    more: Sequence[str] = (),
) -> str:
    """Return the README.md of a folder.

    ``license`` is an SPDX identifier. ``training`` is the section about the model's training or origin, ``exactness``
    has lines about comparisons with the original, as from ``compared``, and ``more`` further sections.
    """
    kept = source.origin
    origin = {} if kept is None else kept.facts
    license = license or origin.get("license")
    if kept is not None and origin:
        training = f"{training}\n\n### Source\n\n{_source_section(kept, origin)}"
    base_model = f"base_model: {json.dumps(origin['source'])}\n" if origin else ""
    values = {
        "library": "sentence-transformers" if target.modules else "transformers",
        "pipeline": _USE[target.scored][0],
        "license": license or "unknown",
        "base_model": base_model,
        "name": name,
        "summary": _summary(source),
        "class_name": target.class_name,
        "modules": _MODULES * target.modules,
        "usage": _usage(source, target, name),
        "notes": " ".join(_notes(source, target)),
        "training": training,
        "exactness": "\n".join(f"- {line}" for line in exactness),
        "more": "".join(f"{section.strip()}\n\n" for section in more),
        "license_text": license or "To be filled in by the publisher of this model, here and in the first lines.",
    }
    return fill_template("model_card.md", values)


def _notes(source: LoadedCheckpoint, target: Target) -> list[str]:
    """Return what users of the folder must know for the answers of ``maelm predict``."""
    limits, task, labels = source.limits(target.head), source.checkpoint.config.task, target.labels
    notes = ["`truncation=True` truncates inputs to the model's number of positions."]
    if target.head is not None and target.kept is None:
        notes = [
            f"Training and `maelm predict` read at most {limits.tokens} tokens, to which "
            + (
                "longer inputs are truncated."
                if target.modules
                else "`truncation=True` truncates inputs (also in a pipeline)."
            )
        ]
    if target.modules and limits.texts == 2:
        notes.append("A pair of texts is a tuple of two.")
    if limits.at_the_end and not target.modules:
        notes.append("They cut the end of a pair, and `truncation=True` the longer text.")
    if isinstance(labels, Numbers):
        what = "Scores are" if target.modules else "A pipeline returns the number as score,"
        notes.append(f"{what} in the units of the training data.")
    elif isinstance(labels, Spans):
        notes += _notes_on_answers(task, limits.tokens, labels)
    elif target.architecture == "token-classification" and "window_overlap" in task:
        notes.append(
            f"Longer sentences are read in windows that share {task.window_overlap} tokens: in a pipeline, give "
            f'`aggregation_strategy="first", stride={task.window_overlap}`.'
        )
    if target.head is not None and source.tokenizer_file.suffix == ".json":
        notes.append(
            "`maelm predict` replaces control characters and runs of white space by a space; this tokenizer may not."
        )
    if target.format == OUR_FORMAT:
        notes.append("After `import fairseq_maelm.hf`, which registers the same classes, omit `trust_remote_code`.")
    if (target.format, target.scored) == ("mpnet", "encoder"):
        notes.append("The model has no trained pooler: use `last_hidden_state`, not `pooler_output`.")
    return notes


def _notes_on_answers(task: Any, longest: int, labels: Spans) -> list[str]:
    """Return the rules by which the task answers, and their names in the pipeline of transformers 4."""
    if "doc_stride" not in task:
        return []
    notes = [
        f"Longer contexts are read in windows of {longest} tokens, with {task.doc_stride} tokens from start to "
        f"start; questions have at most {task.max_question_length} tokens and answers {task.max_answer_length}. The "
        f"pipeline of transformers 4 has other defaults: give `max_seq_len={longest}, "
        f"max_question_len={task.max_question_length}, max_answer_len={task.max_answer_length}, align_to_words=False`."
    ]
    if labels.version != "1.1":
        notes.append(
            "There is no answer if the score of the first token exceeds that of the best answer by more than "
            f"{labels.null_threshold:g} logits (`null_threshold` in config.json). `handle_impossible_answer=True` "
            "makes the pipeline do so, with a threshold of 0 in each window."
        )
    return notes


def compared(agreements: Sequence[Agreement], other: str) -> list[str]:
    """Return a line for each output with its largest difference from the model ``other``."""
    return [
        f"{each.what}: largest difference from {other} {each.difference:.1e} in double precision and {each.single:.1e} "
        f"in single precision, of values up to {each.size:.1f}"
        for each in agreements
    ]


def table(facts: Mapping[str, Any]) -> str:
    """Return facts as a table of two columns."""
    rows = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def training_section(source: LoadedCheckpoint) -> str:
    """Return the section about a checkpoint's training: progress, options and data."""
    return (
        f"{table(_training(source))}\n\n### Hyper-parameters\n\n{table(_hyper_parameters(source))}\n\n"
        f"### Data\n\n{_data(source)}"
    )


def _summary(source: LoadedCheckpoint) -> str:
    config, model, view = source.options, source.model, source.checkpoint.view
    positions, buckets = f"{config.max_positions} positions", EncoderOptions.of(config).buckets
    if config.positions == "rotary":
        positions += f", rotary of base {config.rotary_base:,}"
    elif buckets is not None:
        positions += f", {buckets[1]} {buckets[0]} buckets of relative positions up to distance {buckets[2]}"
    about = f"fine-tuned on the task `{source.checkpoint.task_name}`" if source.checkpoint.heads else "without a head"
    if model.lm_head is not None:
        sees, updates = "sees" if view.sees_masks else "never sees", source.checkpoint.history.get("num_updates")
        method = "" if view.sees_masks else " (MAE-LM)"
        about = f"whose encoder {sees} [MASK] in pretraining{method}"
        if source.origin is not None:
            name = source.origin.facts.get("source", "a published model")
            about = f"imported from {name}"
            if updates:
                about += f", then trained for {updates:,} updates in which its encoder {sees} [MASK]{method}"
    return (
        f"A text encoder for fairseq and fairseq_maelm, {about}: {config.encoder_layers} layers of width "
        f"{config.encoder_embed_dim} with {config.encoder_attention_heads} heads, {positions}, "
        f"{len(source.dictionary):,} symbols; {sum(each.numel() for each in model.parameters()):,} parameters in the "
        "checkpoint."
    )


def _source_section(kept: SourceFiles, facts: Mapping[str, Any]) -> str:
    """Return what is known of an imported model: where it came from, its license and its pooling."""
    known = dict(facts)
    for name, content in kept.files.items():
        if name.endswith("_Pooling/config.json"):
            modes = [mode for mode, on in json.loads(content).items() if mode.startswith("pooling_mode") and on is True]
            known["pooling in sentence-transformers"] = ", ".join(
                mode.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for mode in modes
            )
    lines = [table({name: value for name, value in known.items() if value})]
    if SOURCE_CARD in kept.files:
        lines.append(f"The source's model card, which describes the original training, is `{CARD_OF_SOURCE}`.")
    return "\n\n".join(lines)


def _usage(source: LoadedCheckpoint, target: Target, name: str) -> str:
    """Return a Python example that opens the folder and runs the model."""
    remote = ", trust_remote_code=True" if target.format == OUR_FORMAT else ""
    if target.modules:
        return _usage_of_modules(source, target, name, remote)
    _, text, result = _USE[target.architecture]
    result = _RESULTS.get(type(target.labels), result)
    text = text.format(mask=source.mask_text)
    if source.limits(target.head).texts == 2:
        text += ', "Another sentence."'
    lines = [
        f"from transformers import {target.auto_class}, AutoTokenizer",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{remote})',
        f'model = {target.auto_class}.from_pretrained("{name}"{remote})',
        f'batch = tokenizer({text}, truncation=True, return_tensors="pt")',
        result,
    ]
    if target.kept is not None and "modules.json" in target.kept.files and target.architecture == "encoder":
        lines += [
            "",
            "# Sentence embeddings, with the source's pooling",
            "from sentence_transformers import SentenceTransformer",
            f'embeddings = SentenceTransformer("{name}").encode(["A sentence."])',
        ]
    return "\n".join(lines)


def _usage_of_modules(source: LoadedCheckpoint, target: Target, name: str, remote: str) -> str:
    texts = '["A sentence.", "And one more."]'
    if source.limits(target.head).texts == 2:
        texts = '[("A sentence.", "And its pair."), ("One more.", "And its pair.")]'
    lines = [
        "from sentence_transformers import SentenceTransformer",
        f'model = SentenceTransformer("{name}"{remote})',
        *([] if isinstance(target.labels, Numbers) else ["labels = model[0].auto_model.config.id2label"]),
        f"scores = model.encode({texts}, convert_to_tensor=True)",
    ]
    return "\n".join([*lines, *_USE_OF_MODULES.get(type(target.labels), _USE_OF_MODULES[Classes])])


def _training(source: LoadedCheckpoint) -> dict[str, Any]:
    history, config = source.checkpoint.history, source.checkpoint.config
    facts: dict[str, Any] = {"task": f"`{source.checkpoint.task_name}`"}
    names = {"num_updates": "updates", "val_loss": "last validation metric", "best": "best of all"}
    facts |= {label: history[name] for name, label in names.items() if name in history}
    metric = OmegaConf.select(config, "checkpoint.best_checkpoint_metric")
    if metric is not None and "val_loss" in history:
        facts["validation metric"] = f"`{metric}`"
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
    # Only the settings of a new vocabulary have a preset.
    vocabulary = next(filter(None, map(settings.get, ("preset", "vocabulary", "sentencepiece_model"))), None)
    symbols = f"{len(source.dictionary):,} symbols with <mask>"
    facts: dict[str, Any] = {
        # Only file names, because paths are private.
        "files": ", ".join(f"`{Path(str(each.get('file'))).name}`" for each in files),
        "vocabulary": f"{vocabulary}, {symbols}" if vocabulary else symbols,
    }
    for split, numbers in counts.items():
        if isinstance(numbers, dict):
            facts[split] = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in numbers.items())
    return table(facts)
