"""The methods that fairseq and its tasks call on any model: heads, checkpoints, probabilities, the hub interface."""

import logging
import os
from functools import cached_property, partial
from typing import Any

import torch.nn.functional as F
from fairseq.models import FairseqEncoderModel
from torch import Tensor, nn

from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.checkpoints.fit import SETTINGS, fit_state_dict, model_settings, pack_settings, saved_settings
from fairseq_maelm.models.encoder import MaelmEncoder
from fairseq_maelm.modules.finetuning_heads import (
    ClassificationHead,
    ModernClassificationHead,
    ModernTokenHead,
    TokenHead,
)
from fairseq_maelm.modules.initialization import initialize

logger = logging.getLogger(__name__)


class FairseqTextModel(FairseqEncoderModel):
    """An encoder with heads that are registered by name; ``config`` is a complete ``MaelmModelConfig``."""

    def __init__(self, config: Any, encoder: MaelmEncoder) -> None:
        super().__init__(encoder)
        self.config, self.options = config, EncoderOptions.of(config)
        self.precision = str(config.precision)
        self.classification_heads = nn.ModuleDict()
        self.takes_heads = True  # whether loaded weights replace those of heads of the same name and size

    def initialize(self, module: nn.Module) -> None:
        """Initialize a part of this model with random weights."""
        module.apply(partial(initialize, std=self.config.init_std, embedding_std=self.config.embedding_init_std))

    def register_classification_head(
        self, name: str, num_classes: int, inner_dim: int | None = None, pooling: str = "first", **unused: Any
    ) -> None:
        """Add a sentence head with random weights, replacing any head of the same name.

        Args:
            name: name of the head, without dots.
            num_classes: number of classes or regression targets.
            inner_dim: width of the dense layer; D if None.
            pooling: what the head reads: the state of the "first" token, or the "mean" of all tokens' states.
            **unused: options for other fairseq models; fairseq's tasks pass them to every model.
        """
        _check_head(name, num_classes)
        width = self.config.encoder_embed_dim
        settings = width, inner_dim or width, num_classes, self.config.pooler_dropout, pooling
        if self.options.is_modern:
            self._add_head(name, ModernClassificationHead(*settings, self.options.eps))
        else:
            self._add_head(name, ClassificationHead(*settings))

    def register_token_head(self, name: str, num_outputs: int, dropout: float = 0.0) -> None:
        """Add a head with random weights that scores every token; see ``TokenHead``."""
        _check_head(name, num_outputs)
        width = self.config.encoder_embed_dim
        if self.options.is_modern:
            self._add_head(name, ModernTokenHead(width, num_outputs, dropout, self.options.eps))
        else:
            self._add_head(name, TokenHead(width, num_outputs, dropout))

    def _add_head(self, name: str, head: ClassificationHead | TokenHead) -> None:
        if name in self.classification_heads:
            logger.warning("replacing the head %r by a new one with %d outputs", name, head.out_proj.out_features)
        self.initialize(head)
        self.classification_heads[name] = head.to(self.encoder.embed_tokens.weight.device).train(self.training)

    def extract_features(
        self, src_tokens: Tensor, return_all_hiddens: bool = False
    ) -> tuple[Tensor, dict[str, list[Tensor] | None]]:
        """Return the encoder's last-layer states <float>[B, S, D] of unmasked sequences; see ``MaelmModel.forward``."""
        return self.forward(src_tokens, features_only=True, return_all_hiddens=return_all_hiddens)

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: dict[str, Any] | None = None
    ) -> Tensor:
        """Return (log-)probabilities in single precision; called by fairseq."""
        logits = net_output[0].float()
        return F.log_softmax(logits, dim=-1) if log_probs else F.softmax(logits, dim=-1)

    def get_extra_state(self) -> Tensor:
        """Return the settings that ``fit_state_dict`` compares; torch stores them with the weights."""
        return self._settings

    @cached_property
    def _settings(self) -> Tensor:
        # Averaged weights ask for it in every update, and reading the vocabulary takes milliseconds.
        return pack_settings(model_settings(self.config, self.encoder.dictionary))

    def set_extra_state(self, state: Tensor) -> None:
        """Check that the settings can be read; ``fit_state_dict`` has already compared them."""
        saved_settings({SETTINGS: state})

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Fit a checkpoint to this model before it is loaded strictly; called by fairseq."""
        super().upgrade_state_dict_named(state_dict, name)
        fit_state_dict(self, state_dict)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | os.PathLike[str],
        checkpoint_file: str | None = None,
        data_name_or_path: str = ".",
        **overrides: Any,
    ) -> Any:
        """Load a checkpoint with the hub interface; see ``fairseq_maelm.models.hub.load``."""
        from fairseq_maelm.models import hub  # the interface imports the model

        return hub.load(model_name_or_path, checkpoint_file, data_name_or_path, **overrides)


def _check_head(name: Any, outputs: Any) -> None:
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(f"the name of a head must be a string without dots, not {name!r}")
    if not isinstance(outputs, int) or outputs < 1:
        raise ValueError(f"the head {name!r} must have at least 1 output, not {outputs!r}")
