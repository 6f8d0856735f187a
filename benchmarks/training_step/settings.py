"""What one side-by-side measurement is made with, and its written form."""

from dataclasses import asdict, dataclass, fields
from typing import Any

# encoder layers, width, feed-forward width, heads, decoder layers: those of maelm_tiny, maelm_small and maelm_base; of
# the encoder that comes with the package; and of maelm_modern_32m and maelm_modern_150m. The feed-forward width of the
# last three is gated: two thirds of the number here.
SIZES = {
    "tiny": (2, 128, 512, 2, 1),
    "small": (6, 384, 1536, 6, 2),
    "base": (12, 768, 3072, 12, 4),
    "14m": (6, 384, 1536, 6, 1),
    "32m": (10, 384, 864, 6, 2),
    "modern": (22, 768, 1728, 12, 4),
}
PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Settings:
    """Everything that is the same for all contenders of one measurement."""

    size: str  # row of ``SIZES``; the numbers after it may have been changed one by one
    layers: int  # of the encoder, as are width, ffn and heads
    width: int
    ffn: int  # gated feed-forward networks take two thirds of it
    heads: int
    decoder_layers: int  # of MAE-LM's decoder, which has the encoder's width
    length: int  # tokens of each sequence, <s> included; no sequence is shorter
    sequences: int  # of one step
    masking: float  # fraction of the tokens to predict
    dropout: float  # of states and of attention weights
    precision: str  # of the matrix products
    device: str  # "cpu" or "cuda"
    threads: int  # of each contender's process
    num_workers: int  # processes that prepare batches, where data are included; 0: the step's process

    @property
    def tokens(self) -> int:
        """Raw tokens of one step."""
        return self.length * self.sequences

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of_size(cls, size: str, layers: int | None = None, **others: Any) -> "Settings":
        """Return the settings of a row of ``SIZES``, perhaps with another number of encoder layers."""
        own, width, ffn, heads, decoder_layers = SIZES[size]
        shape = {"width": width, "ffn": ffn, "heads": heads, "decoder_layers": decoder_layers}
        return cls(size=size, layers=layers or own, **shape, **others)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """From JSON; what this version does not know is left out."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def describe(self) -> str:
        """Return a readable line."""
        return (
            f"{self.size}: {self.layers} layers of {self.width}, {self.sequences} x {self.length} tokens a step, "
            f"{self.masking:.0%} masking, dropout {self.dropout:g}, {self.precision} on {self.device}"
        )
