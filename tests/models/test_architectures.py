"""``--arch maelm`` takes its sizes from the checkpoint that it is fine-tuned from."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq import options

from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.config import DECODER_OPTIONS, ENCODER_OPTIONS

CHECKPOINT = Path(__file__).parents[1] / "end_to_end" / "kept" / "checkpoint_last.pt"


def parse(*words: Any, task: str = "maelm") -> Namespace:
    """The options of fairseq-train, as it parses them."""
    parser = options.get_training_parser()
    command = ["data", "--task", task, "--criterion", task, "--arch", "maelm", *map(str, words)]
    return options.parse_args_and_arch(parser, command)


@pytest.mark.parametrize("task", ["maelm", "maelm_prompt", "maelm_sentences", "maelm_squad"])
def test_sizes_are_the_checkpoints(task: str) -> None:
    parsed = parse("--finetune-from-model", CHECKPOINT, task=task)
    known = read_checkpoint(CHECKPOINT).config.model
    names = (*ENCODER_OPTIONS, *DECODER_OPTIONS)
    assert {name: getattr(parsed, name) for name in names} == {name: known[name] for name in names}
    assert parsed.max_positions != 512, "the task's default is another"


@pytest.mark.parametrize(("option", "value"), [("--encoder-layers", 3), ("--max-positions", 100)])
def test_an_option_that_contradicts_is_refused(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{option} {value} contradicts the checkpoint .* leave the option out$"):
        parse("--finetune-from-model", CHECKPOINT, option, value)


def test_an_option_that_agrees_is_taken() -> None:
    known = read_checkpoint(CHECKPOINT).config.model.encoder_layers
    assert parse("--finetune-from-model", CHECKPOINT, "--encoder-layers", known).encoder_layers == known


def test_another_decoder_can_be_asked_for() -> None:
    parsed = parse("--finetune-from-model", CHECKPOINT, "--decoder-layers", 3)
    assert parsed.decoder_layers == 3 != read_checkpoint(CHECKPOINT).config.model.decoder_layers


def test_without_a_checkpoint_sizes_stay_open() -> None:
    assert not hasattr(parse(), "encoder_layers")
