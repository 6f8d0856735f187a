"""The whole analysis of several models: one file of results for each, so that an interrupted run loses one model."""

import hashlib
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from fairseq_maelm.analysis.collect import CONDITIONS, CollectSettings, collect
from fairseq_maelm.analysis.encoders import Encoder
from fairseq_maelm.analysis.measure import rank_rows, subspace_rows, theorem_rows
from fairseq_maelm.analysis.open import open_encoder
from fairseq_maelm.analysis.report import write_report
from fairseq_maelm.analysis.sequences import Blocks, TextBlocks, data_blocks
from fairseq_maelm.data.masking import MaskingScheme
from fairseq_maelm.files import read_json, write_json
from fairseq_maelm.libraries import import_pyplot

logger = logging.getLogger(__name__)

_SETTINGS_FILE = "settings.json"
_MODELS_FOLDER = "models"


@dataclass(frozen=True, kw_only=True)
class AnalysisSettings(CollectSettings):
    """What is measured, for all models alike.

    Attributes:
        data: prepared data folder, or None.
        split: of the data.
        text: text file to analyze in place of the data's split, or None.
        tau: of the effective rank.
        centered: subtract the mean of each set of representations.
        tokens_per_sample: longest sequence, cut to each model's.

    The others as in ``CollectSettings``, whose conditions may be none: those that suit each model.
    """

    data: Optional[Path]
    split: str
    text: Optional[Path]
    tau: float
    centered: bool
    tokens_per_sample: int

    def __post_init__(self) -> None:
        if self.data is None and self.text is None:
            raise ValueError("give --data or --text: without text there is nothing to analyze")
        for path in (self.data, self.text):
            if path is not None and not path.exists():
                raise FileNotFoundError(f"there is no {path}")
        if not 0.0 < self.tau <= 1.0:
            raise ValueError(f"--tau must lie in (0, 1] and is {self.tau}")
        for option, least in (("tokens", 1), ("batch_tokens", 1), ("tokens_per_sample", 8)):
            if getattr(self, option) < least:
                name = option.replace("_", "-")
                raise ValueError(f"--{name} must be at least {least} and is {getattr(self, option)}")
        # Refuses impossible probabilities before any model is loaded.
        no_tokens = np.empty(0, dtype=np.int64)
        MaskingScheme(self.mask_prob, no_tokens, self.leave_unmasked_prob, self.random_token_prob)

    def recorded(self) -> dict[str, Any]:
        """The settings as they stand in the results: paths as given, tuples as lists."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def for_encoder(self, name: str, encoder: Encoder) -> CollectSettings:
        """What to run with one model.

        Raises:
            ValueError: if the model lacks a layer, or its input cannot be made so.
        """
        suits = CONDITIONS if encoder.kind == "maelm" else CONDITIONS[:2]
        conditions = tuple(each for each in CONDITIONS if each in (self.conditions or suits))
        if "dropped" in conditions and encoder.settings["source"] == "Hugging Face":
            raise ValueError(f"{name}: masked tokens cannot be dropped from the input of a Hugging Face model")
        for layer in self.layers or ():
            if not 0 <= layer <= encoder.num_layers:
                raise ValueError(f"{name} has no layer {layer}: its layers are 0 (embeddings) to {encoder.num_layers}")
        return replace(self, conditions=conditions)


def analyze(models: dict[str, Path], settings: AnalysisSettings, output: Path, device: str) -> Path:
    """Analyze models, or those that ``output`` has no results of yet, and write the report on all.

    Args:
        models: paths by name, in the order of the figures.
        settings: for all of them.
        output: folder for results; new, empty, or of an analysis with the same settings.
        device: where the models run.

    Returns:
        the HTML page.

    Raises:
        ValueError, FileNotFoundError: say what is wrong with a setting, a model, a text or the folder.
    """
    import_pyplot()
    for path in models.values():
        if not path.exists():
            raise FileNotFoundError(f"there is no model {path}")
    recorded = settings.recorded()
    _claim(output, recorded)
    for name, path in models.items():
        file = output / _MODELS_FOLDER / f"{name}.json"
        model_fingerprint = _model_fingerprint(path)
        if file.exists():
            if read_json(file)["fingerprint"] != model_fingerprint:
                raise ValueError(f"{file} holds results of another model named {name!r}: choose another name or folder")
            logger.info("%s: has results already", name)
            continue
        write_json(file, {**_analyze_one(name, path, settings, device), "fingerprint": model_fingerprint})
    results = [{**read_json(output / _MODELS_FOLDER / f"{name}.json"), "settings": recorded} for name in models]
    write_report(results, output)
    return output / "report.html"


def _claim(output: Path, recorded: dict[str, Any]) -> None:
    """Take a folder for these settings, or refuse it."""
    path = output / _SETTINGS_FILE
    if path.exists():
        earlier = read_json(path)
        changed = [name for name in recorded if earlier.get(name) != recorded[name]]
        if changed:
            raise ValueError(
                f"{output} holds results with other settings ({', '.join(changed)} differ): choose another --output"
            )
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and holds no analysis: choose another --output")
    (output / _MODELS_FOLDER).mkdir(parents=True, exist_ok=True)
    write_json(path, recorded)


def _model_fingerprint(path: Path) -> str:
    """A model's checksum over sizes and times of its files; reading them whole would take as long as a small run."""
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((str(path.resolve()), facts)).encode()).hexdigest()


def _analyze_one(name: str, path: Path, settings: AnalysisSettings, device: str) -> dict[str, Any]:
    encoder = open_encoder(path, settings.data).to(device)
    chosen = settings.for_encoder(name, encoder)
    blocks = _blocks(encoder, settings)
    grams = collect(encoder, blocks, chosen, device, name)
    logger.info("%s: spectra, subspaces and the check of the theorem", name)
    whole = grams[chosen.conditions[0]].real[0].rows + grams[chosen.conditions[0]].mask[0].rows
    return {
        "name": name,
        "path": str(path),
        "kind": encoder.kind,
        "model_settings": encoder.settings,
        "num_layers": encoder.num_layers,
        "width": encoder.width,
        "text_tokens": whole,
        "ranks": rank_rows(grams, settings.tau, settings.centered),
        "subspace": subspace_rows(grams, settings.tau, settings.centered),
        "theorem": theorem_rows(encoder, blocks, chosen, device),
    }


def _blocks(encoder: Encoder, settings: AnalysisSettings) -> Blocks:
    length = min(settings.tokens_per_sample, encoder.max_length)
    if settings.text is not None:
        return TextBlocks(settings.text, encoder, length, settings.tokens)
    assert settings.data is not None
    return data_blocks(settings.data, settings.split, encoder, length)
