"""Import a model into a verified folder for fairseq: checkpoint, dictionary and tokenizer."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf, open_dict
from torch import Tensor

from fairseq_maelm import __version__
from fairseq_maelm.architecture.checks import check_config
from fairseq_maelm.architecture.config import MaelmModelConfig, complete_config
from fairseq_maelm.architecture.encoder_options import DEFAULT_SIZE, SIZES
from fairseq_maelm.checkpoints.fit import SETTINGS, dictionary_fingerprint, model_settings, pack_settings
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE, shipped_encoders
from fairseq_maelm.checkpoints.reader import Checkpoint
from fairseq_maelm.data.masking import MAX_LENGTH
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.interop.compare_outputs import (
    Agreement,
    agreements,
    checkpoint_outputs,
    compare_tokens,
    comparison_batches,
)
from fairseq_maelm.interop.configuration import model_options
from fairseq_maelm.interop.export.complete_folder import complete, complete_section
from fairseq_maelm.interop.export.exporter import CARD_FILE, write_model
from fairseq_maelm.interop.export.model_card import compared, model_card, table
from fairseq_maelm.interop.export.target import choose_target, default_format
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, tokenizer_files
from fairseq_maelm.interop.importing.source import MLM_TASK, Source, refuse
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.source_files import CONFIG_FILE, POSITIONS, SourceFiles, facts_and_card, with_text_limit
from fairseq_maelm.launch.command_line import words_of
from fairseq_maelm.launch.continued import effects_of_pretraining
from fairseq_maelm.models.build import build_model
from fairseq_maelm.options import UsageError
from fairseq_maelm.tasks.maelm import MaelmTaskConfig
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.sentencepiece_model import warn_of_export
from fairseq_maelm.text.tokenizer_file import open_tokenizer_file
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, TOKENIZER_FILE


class Imported(NamedTuple):
    """The result of an import."""

    folder: Path
    agreements: list[Agreement]
    model_options: list[str]  # options of fairseq-train that build the model
    task_options: list[str]  # options of the task maelm that continue its pretraining
    reads_text: bool  # the folder holds a sentencepiece model or tokenizer
    effects: list[str]  # what continued pretraining costs the encoder


def download(name: str) -> Path:
    """Download a model of the Hugging Face Hub, preferably as safetensors, and return its folder."""
    if Path(name).is_dir():
        raise ValueError(f"{name} is a folder on this machine: omit --download")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError("--download needs huggingface_hub: pip install 'fairseq_maelm[hf]'") from error
    # The last two are for modules of sentence-transformers, such as 2_Dense.
    settings = ["*.json", "*.txt", "*.model", "[1-9]_*/model.safetensors", "[1-9]_*/pytorch_model.bin"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "model*.safetensors"]))
        if not any(folder.glob("model*.safetensors")):
            huggingface_hub.snapshot_download(name, allow_patterns=[*settings, "pytorch_model*.bin"])
    except Exception as error:  # errors of the network and of the Hub, and for wrong names
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{name} cannot be downloaded from the Hugging Face Hub: {reason}") from error
    return folder


def import_model(
    path: Path,
    output: Path,
    vocabulary: Path | None = None,
    name: str | None = None,
    symbols: str | None = None,
    cased: bool = False,
    positions: int | None = None,
) -> Imported:
    """Import a Hugging Face folder or a checkpoint of fairseq's RoBERTa into a new folder, which appears once verified.

    ``vocabulary`` is the folder of a checkpoint's dict.txt, by default the checkpoint's. ``name`` is the source's for
    the records, by default the last part of the path, or its name on the Hub. For ``symbols`` and ``cased`` see
    ``open_checkpoint`` and ``readable_folder``; for ``positions``, if they are to be more, ``with_positions``. A
    ValueError says that the source cannot be imported exactly; no files are left behind.
    """
    with whole_folder(output, "maelm import") as folder:
        _refuse_checkpoint(path)
        # Each kind of source needs a large library.
        if path.is_file():
            from fairseq_maelm.interop.importing.fairseq_roberta import open_checkpoint

            if cased:
                raise UsageError(f"--cased is for folders, but {path} is a file: omit the option")
            source = open_checkpoint(path, vocabulary, symbols)
        elif path.is_dir():
            from fairseq_maelm.interop.importing.huggingface import open_folder

            if vocabulary is not None:
                raise UsageError(f"--vocabulary is for checkpoint files, but {path} is a folder: omit the option")
            path = _snapshot(path)
            source = open_folder(path, cased, symbols)
        else:
            raise FileNotFoundError(
                f"there is no folder or checkpoint {path}: give a folder that save_pretrained wrote, a checkpoint "
                "file, or --download with a name on the Hugging Face Hub"
            )
        imported = _write(path, source, folder, name or _name_of(path), output.name, positions)
    return imported._replace(folder=output)


def _snapshot(folder: Path) -> Path:
    """Return the folder, or the only snapshot in a folder of the Hub's cache."""
    found = sorted(path for path in (folder / "snapshots").glob("*") if path.is_dir())
    if not found or (folder / CONFIG_FILE).is_file():
        return folder
    if len(found) > 1:
        raise ValueError(
            f"{folder} is a folder of the Hugging Face cache with {len(found)} snapshots: give one, such as {found[0]}"
        )
    return found[0]


def _name_of(path: Path) -> str:
    """Return the model's name on the Hub, ORGANIZATION/MODEL, if the path is in its cache, or else the last part."""
    entry = path.parent.parent.name
    return entry[8:].replace("--", "/") if entry.startswith("models--") else path.name


def _refuse_checkpoint(path: Path) -> None:
    """Refuse a folder that is already a fairseq checkpoint, or the name of an encoder included in the package."""
    if (path / CHECKPOINT_FILE).is_file() or (not path.exists() and str(path) in shipped_encoders()):
        raise ValueError(
            f"{path} is a checkpoint already: give it as --checkpoint; `maelm export --checkpoint {quote(str(path))} "
            "--format fairseq` writes a checkpoint file of fairseq"
        )


def _write(path: Path, given: Source, folder: Path, name: str, title: str, positions: int | None) -> Imported:
    source = given if positions is None else with_positions(path, given, positions)
    vocabulary = given.vocabulary
    symbols = "".join(f"{symbol} 1\n" for symbol in vocabulary.symbols)
    (folder / DICTIONARY_FILE).write_text(symbols, encoding="utf-8", newline="\n")
    for file, encoder in vocabulary.files.items():
        (folder / file).write_bytes(encoder)
    dictionary = load_dictionary(str(folder))
    if len(dictionary) != len(vocabulary.order):
        raise refuse(path, f"its {len(vocabulary.order)} symbols became {len(dictionary)} in dict.txt")
    ours = converted(given, dictionary, folder)
    found, other = _verify(path, given, ours), "the source"
    if source is not given:
        ours, other = converted(source, dictionary, folder), "the source, compared with its own positions,"
    if source.files or path.is_file():
        order, fingerprint = torch.tensor(vocabulary.order), dictionary_fingerprint(dictionary)
        files = source.files | facts_and_card(name, source.facts, path.parent if path.is_file() else path)
        kept = SourceFiles(order, fingerprint, files, source.kept_weights, source.heads)
        kept.write(folder, source.options["max_positions"])
    target = choose_target(ours, default_format(ours), "encoder")
    write_model(ours, target, folder)
    if vocabulary.files and (TOKENIZER_FILE in vocabulary.files or not warn_of_export(folder / MODEL_FILE)):
        _write_tokenizer(ours, folder)
    if vocabulary.tokenize is not None:
        compare_tokens(
            path, vocabulary.tokenize, ours.tokenizer.encode, vocabulary.order, vocabulary.added, vocabulary.own
        )
    model, task = fairseq_options(source.options), arguments_of(MLM_TASK)
    facts = {"source": name, **source.facts, "model": f"`{' '.join(model)}`"}
    facts |= {
        "continued pretraining": f"`--task maelm {' '.join(task)}`",
        "imported by": f"fairseq_maelm {__version__}",
    }
    card = model_card(
        ours, target, title, None, f"Imported, and not trained since.\n\n{table(facts)}", compared(found, other),
        [complete_section(ours, title)],
    )  # fmt: skip
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    complete(ours, folder)
    return Imported(folder, found, model, task, bool(vocabulary.files), effects_of_pretraining(ours.checkpoint))


def _write_tokenizer(ours: LoadedCheckpoint, folder: Path) -> None:
    """Write tokenizer files for transformers, with our ids; existing files are kept."""
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = open_tokenizer_file(folder / TOKENIZER_FILE)
    else:
        tokenizer = build_tokenizer(folder / MODEL_FILE, ours.dictionary)
    for file, text in tokenizer_files(tokenizer, ours.model.max_positions()).items():
        if not (folder / file).exists():
            (folder / file).write_text(text, encoding="utf-8")


def _verify(path: Path, source: Source, ours: LoadedCheckpoint) -> list[Agreement]:
    """Compare the source's outputs with the checkpoint's; raise ValueError for more than rounding errors."""
    head = next(iter(ours.checkpoint.heads), None)
    return agreements(
        source.compute,
        lambda tokens: checkpoint_outputs(ours.model, ours.checkpoint.view, source.architecture, head, tokens),
        comparison_batches(ours.model, masks=source.architecture == "masked-lm"),
        str(refuse(path, "the checkpoint computes different values")),
    )


def fairseq_options(model: dict[str, Any]) -> list[str]:
    """Return the arguments of fairseq-train that build a model: --arch, and all options with non-default values.

    The default of an option may depend on another option: --local-rotary-base defaults to --rotary-base.
    """

    def agrees(size: dict[str, Any]) -> bool:
        return all(model.get(name, value) == value for name, value in size.items() if not name.startswith("decoder_"))

    arch = next((name for name, size in SIZES.items() if agrees(size)), DEFAULT_SIZE)
    given: dict[str, Any] = {}
    # In declaration order: options are declared after the options that their defaults depend on.
    for name in [name for name in MaelmModelConfig.__dataclass_fields__ if name in model]:
        config = MaelmModelConfig(_name=arch, **given)
        complete_config(config)
        if getattr(config, name) != model[name]:
            given[name] = model[name]
    return arguments_of({"arch": arch, **given})


def arguments_of(options: dict[str, Any]) -> list[str]:
    """Return options of the model or the task ``maelm`` as arguments of fairseq-train."""
    return words_of({name.replace("_", "-"): value for name, value in options.items()})


def converted(source: Source, dictionary: Any, folder: Path) -> LoadedCheckpoint:
    """Convert a source to the checkpoint to be saved in ``folder``; ``dictionary`` includes <mask>."""
    weights, order = dict(source.weights), source.vocabulary.order
    if order != list(range(len(order))):
        for name in ("encoder.embed_tokens.weight", "lm_head.bias"):
            if name in weights:
                weights[name] = weights[name][torch.tensor(order)]
    # Without copying, every slice would hold the whole storage.
    weights = {name: weight.detach().clone() for name, weight in weights.items()}
    config = _configuration(source)
    check_config(config.model)
    weights[SETTINGS] = pack_settings(model_settings(config.model, dictionary))
    checkpoint = Checkpoint(folder / CHECKPOINT_FILE, config, weights, state={})
    return LoadedCheckpoint(checkpoint, build_model(checkpoint, dictionary), dictionary, folder)


def _configuration(source: Source) -> Any:
    """Return a config with the sections "task" and "model", with all defaults that fairseq-train would fill in."""
    tokens = source.options["max_positions"]
    # The data folder is given when the checkpoint is loaded.
    task = MaelmTaskConfig(_name="maelm", data=".", tokens_per_sample=tokens, **MLM_TASK)
    model = MaelmModelConfig(_name=fairseq_options(source.options)[1], **source.options)
    config = OmegaConf.create(OmegaConf.structured(FairseqConfig(task=task, model=model)))
    with open_dict(config):
        complete_config(config.model)
    whole: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return OmegaConf.create({section: whole[section] for section in ("task", "model")})


logger = logging.getLogger(__name__)

_OURS, _LENGTH = "encoder.embed_positions.weight", "max_position_embeddings"


def with_positions(path: Path, source: Source, positions: int) -> Source:
    """Return a source with more positions; a learned table is stretched to them by linear interpolation.

    The first and the last row stay. Rows that repeat the old ones would keep the states of short texts, but a token of
    a long text could not tell its neighbors from tokens one table away; continued pretraining learns it more slowly.
    """
    had = int(source.options["max_positions"])
    if not had < positions <= MAX_LENGTH:
        raise UsageError(f"--positions {positions}: {path} has {had}, so give a number from {had + 1} to {MAX_LENGTH}")
    options, weights, kept = {**source.options, "max_positions": positions}, dict(source.weights), source.kept_weights
    config = json.loads(source.files.get(CONFIG_FILE, b"{}"))
    if _LENGTH in config:
        config[_LENGTH] += positions - had  # RoBERTa's number includes rows that no token uses
    if _OURS in weights:
        weights[_OURS] = _stretched(weights[_OURS], had, positions)
        kept = {name: _stretched(each, had, positions) if name == POSITIONS else each for name, each in kept.items()}
        how = f"{positions}, interpolated from {had}"
    else:
        options = model_options(config)  # a window that held all old positions may not hold all new ones
        how = f"{positions} instead of {had}; they are rotary, without a table"
    logger.info("positions: %s", how)
    changes = {CONFIG_FILE: config, "tokenizer_config.json": {"model_max_length": positions}}
    files = {
        name: _changed(content, changes.get(name, {})) for name, content in with_text_limit(source.files, had).items()
    }
    facts = {**source.facts, "positions": how}
    return replace(source, options=options, weights=weights, kept_weights=kept, files=files, facts=facts)


def _stretched(table: Tensor, had: int, positions: int) -> Tensor:
    """Stretch the last ``had`` rows of a table <float>[R, D] to ``positions``; the rows in front stay as they are."""
    unused, rows = table[:-had], table[-had:]
    longer = F.interpolate(rows.T[None], positions, mode="linear", align_corners=True)[0].T
    return torch.cat([unused, longer])


def _changed(content: bytes, changes: dict[str, Any]) -> bytes:
    """Return the content of a JSON file with other values."""
    if not changes:
        return content
    return (json.dumps({**json.loads(content), **changes}, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
