"""The options of ``maelm analyze``, in a module that imports neither torch nor fairseq."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_maelm.data.masking import MaskingScheme
from fairseq_maelm.options import existing_path, option

CONDITIONS = ("whole", "masked", "dropped")
_TEXT, _MEASURED, _RUN = "text", "measurement", "execution"


@dataclass(frozen=True, kw_only=True)
class AnalysisSettings:
    """Options of ``maelm analyze``, the same for all models; a ValueError tells of impossible ones."""

    conditions: tuple[str, ...] = option(
        (), help="inputs to compare: whole (unmasked text), masked (with <mask>), dropped (without the masked tokens) "
        "(default: whole and masked; for MAE-LM checkpoints also dropped)", choices=CONDITIONS, group=_MEASURED,
    )  # fmt: skip
    layers: tuple[int, ...] | None = option(
        None, help="layers, such as 0 6 12; 0 is the embeddings (default: all)", group=_MEASURED
    )
    mask_prob: float = option(0.15, help="fraction of tokens to mask", above=0, below=1, group=_MEASURED)
    leave_unmasked_prob: float = option(
        0.0, help="fraction of the predicted tokens that the encoder reads unchanged (BERT: 0.1)", minimum=0,
        group=_MEASURED,
    )  # fmt: skip
    random_token_prob: float = option(
        0.0, help="fraction of the predicted tokens that the encoder reads as random real tokens (BERT: 0.1)",
        minimum=0, group=_MEASURED,
    )  # fmt: skip
    skip_special_tokens: bool = option(
        False, help="exclude the states of special symbols (the model still sees these symbols)", group=_MEASURED
    )
    tokens: int = option(
        5_000_000, help="number of tokens to analyze, rounded up to whole blocks", minimum=1, group=_RUN
    )
    batch_tokens: int = option(16_384, help="number of tokens in a batch, padding included", minimum=1, group=_RUN)
    seed: int = option(1, help="random seed for masks and text selection", minimum=0, group=_RUN)
    double: bool = option(
        False,
        help="compute products in double precision, which resolves singular values below 1e-3 of the largest",
        group=_RUN,
    )
    data: Path | None = option(None, help="prepared data folder", metavar="FOLDER", type=existing_path, group=_TEXT)
    split: str = option("", help="split of --data to analyze (default: valid)", group=_TEXT)
    text: Path | None = option(
        None, help="text file to analyze instead of --data: one paragraph per line, a blank line between documents",
        metavar="FILE", type=existing_path, group=_TEXT,
    )  # fmt: skip
    vocabulary: Path | None = option(
        None, help="folder with dict.txt and the tokenizer, for checkpoints whose folder lacks them (default: "
        "--data)", metavar="FOLDER", type=existing_path, group=_TEXT,
    )  # fmt: skip
    max_length: int = option(
        512,
        help="maximum number of tokens in a sequence, at most the model's number of positions",
        minimum=8,
        group=_TEXT,
    )
    tau: float = option(
        0.9, help="the effective rank is the smallest number of singular values with this fraction of energy (the sum "
        "of their squares)", above=0, maximum=1, group=_MEASURED,
    )  # fmt: skip
    centered: bool = option(
        False, help="center each set of representations (subtract its mean); the paper does not", group=_MEASURED
    )

    def __post_init__(self) -> None:
        if self.data is None and self.text is None:
            raise ValueError("there is no text to analyze: give --data or --text")
        if self.split and self.text is not None:
            raise ValueError("--split is a part of --data, but --text is analyzed instead: omit one of them")
        # Refuses impossible probabilities before any model is loaded.
        no_tokens = np.empty(0, dtype=np.int64)
        MaskingScheme(self.mask_prob, no_tokens, self.leave_unmasked_prob, self.random_token_prob)

    def recorded(self) -> dict[str, Any]:
        """Return the settings as JSON types, for the results."""
        return dict(json.loads(json.dumps({**asdict(self), "split": self.split or "valid"}, default=str)))
