"""How large the miniature is."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A stage of pretraining.

    Attributes:
        tokens_per_sample: longest sequence.
        max_tokens: tokens of an update.
        updates: their number.
        mask_prob: share of tokens to predict.
    """

    tokens_per_sample: int
    max_tokens: int
    updates: int
    mask_prob: float


@dataclass(frozen=True)
class Scale:
    """All that decides the results besides texts and tasks.

    Attributes:
        vocabulary_size: pieces of the vocabulary.
        model: options of both models.
        decoder_layers: of MAE-LM's decoder.
        stages: of pretraining, from short sequences to long ones: from long sequences alone, a model does not find out
            within a short training that neighbors tell about a masked token. The learning rate falls in the last.
        learning_rate: of all stages.
        fine_tuning_rate: of all tasks.
        fine_tuning_epochs: of all tasks, in batches of 32.
        most_examples: to fine-tune on, for each task; None for all.
        analyzed_tokens: of held-out text.
    """

    vocabulary_size: int
    model: dict[str, Any]
    decoder_layers: int
    stages: tuple[Stage, ...]
    learning_rate: float
    fine_tuning_rate: float
    fine_tuning_epochs: int
    most_examples: int | None
    analyzed_tokens: int

    @property
    def last(self) -> Stage:
        """The stage that most of the time is for."""
        return self.stages[-1]

    def shrunk(self, budget: float) -> "Scale":
        """The same with a fraction of the updates, of the examples and of the tokens to analyze."""
        if budget >= 1:
            return self

        def part(number: int, least: int) -> int:
            return max(least, round(budget * number))

        return replace(
            self,
            stages=tuple(replace(stage, updates=part(stage.updates, 4)) for stage in self.stages),
            most_examples=part(self.most_examples or 10_000, 32),
            analyzed_tokens=part(self.analyzed_tokens, 1_000),
        )


SCALES = {
    "cpu": Scale(
        vocabulary_size=4000,
        # The usual scale of the random weights, 0.02, is meant for a width of 768 and more.
        model={
            "arch": "maelm_tiny", "encoder-layers": 4, "encoder-attention-heads": 4,
            "init-std": 0.05, "embedding-init-std": 0.08, "dropout": 0, "attention-dropout": 0,
        },
        decoder_layers=1,
        stages=(Stage(8, 2048, 800, 0.4), Stage(32, 4096, 400, 0.4), Stage(64, 4096, 3000, 0.4)),
        learning_rate=1e-3,
        fine_tuning_rate=5e-4,
        fine_tuning_epochs=3,
        most_examples=3000,
        analyzed_tokens=200_000,
    ),
    "gpu": Scale(
        vocabulary_size=8000,
        model={
            "arch": "maelm_small", "encoder-layers": 12, "encoder-embed-dim": 512, "encoder-ffn-embed-dim": 2048,
            "encoder-attention-heads": 8, "init-std": 0.025, "embedding-init-std": 0.04,
        },
        decoder_layers=4,
        stages=(Stage(16, 16_384, 1000, 0.4), Stage(32, 32_768, 500, 0.4), Stage(128, 65_536, 3000, 0.15)),
        learning_rate=5e-4,
        fine_tuning_rate=1e-4,
        fine_tuning_epochs=3,
        most_examples=None,
        analyzed_tokens=1_000_000,
    ),
}  # fmt: skip
