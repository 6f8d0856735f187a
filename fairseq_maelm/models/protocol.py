"""What the hub interface and predictions of masked tokens ask of a model; ``MaelmModel`` is what they get."""

from typing import Any, Dict, List, Optional, Protocol, Tuple

from torch import Tensor, nn


class Model(Protocol):
    """An encoder with, after pretraining, a decoder and a prediction head; see ``MaelmModel`` for all of it.

    Attributes:
        encoder: with ``embed_tokens`` and ``padding_idx``.
        decoder: None if there is none.
        classification_heads: by name.
        mask_index: the number of <mask>.
        training: whether dropout is on.
    """

    encoder: Any
    decoder: Any
    classification_heads: nn.ModuleDict
    mask_index: int
    training: bool

    def __call__(self, src_tokens: Tensor, **options: Any) -> Tuple[Tensor, Dict[str, Any]]:
        """Compute what ``MaelmModel.forward`` does."""

    def extract_features(
        self, src_tokens: Tensor, return_all_hiddens: bool = False
    ) -> Tuple[Tensor, Dict[str, Optional[List[Tensor]]]]:
        """Encode whole sequences."""

    def max_positions(self) -> int:
        """Return the longest sequence that has positions."""

    def register_classification_head(self, name: str, num_classes: int, **options: Any) -> None:
        """Add a head with fresh weights."""

    def train(self, mode: bool = True) -> Any:
        """Turn dropout on or off."""

    def eval(self) -> Any:
        """Turn dropout off."""
