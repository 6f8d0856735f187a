"""``--arch maelm`` takes its sizes from a checkpoint; the decoders of the named sizes, and of earlier checkpoints."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.sources import PACKAGE, package_files, read_text
from fairseq import checkpoint_utils, options
from interop.export.checkpoints import train_vocabulary, write_checkpoint
from support import FAMILIES, batch_of, random_sequences

from fairseq_maelm.architecture.config import DECODER_OPTIONS, complete_config
from fairseq_maelm.architecture.encoder_options import ENCODER_OPTIONS, SIZES
from fairseq_maelm.checkpoints.reader import CheckpointError, read_checkpoint
from fairseq_maelm.models.build import build_model
from fairseq_maelm.models.decoder import SharedDecoder
from fairseq_maelm.text.dictionary import load_dictionary

CHECKPOINT = Path(__file__).parents[1] / "end_to_end" / "kept" / "checkpoint_last.pt"


def parse(*words: Any, task: str = "maelm") -> Namespace:
    """The options of fairseq-train, as it parses them."""
    parser = options.get_training_parser()
    command = ["data", "--task", task, "--criterion", task, "--arch", "maelm", *map(str, words)]
    return options.parse_args_and_arch(parser, command)


def test_an_option_of_the_layers_stands_in_the_list_and_in_the_rows_of_families() -> None:
    """All else takes it from there; modules have it as an argument."""
    rooms = ("architecture", "models", "checkpoints", "interop")
    texts = {path: read_text(path) for path in package_files() if path.relative_to(PACKAGE).parts[0] in rooms}
    for name in ("relative_max_distance", "local_attention", "layer_norm_eps", "relative_num_buckets"):
        named = {path.name for path, text in texts.items() if re.search(rf"\b{name}\b", text)}
        assert named == {"encoder_options.py", "families.py"}, name


@pytest.mark.parametrize("task", ["maelm", "maelm_prompt", "maelm_sentences", "maelm_squad"])
def test_sizes_are_the_checkpoints(task: str) -> None:
    parsed = parse("--finetune-from-model", CHECKPOINT, task=task)
    known = read_checkpoint(CHECKPOINT).config.model
    names = (*ENCODER_OPTIONS, *DECODER_OPTIONS, "imported_as")
    assert {name: getattr(parsed, name) for name in names} == {name: known[name] for name in names}
    assert parsed.max_positions != 512, "the task's default is another"


@pytest.mark.parametrize(("option", "value"), [("--encoder-layers", 3), ("--max-positions", 100)])
def test_an_option_that_contradicts_is_refused(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{option} {value} contradicts the checkpoint .* omit the option$"):
        parse("--finetune-from-model", CHECKPOINT, option, value)


def test_an_option_that_agrees_is_taken() -> None:
    known = read_checkpoint(CHECKPOINT).config.model.encoder_layers
    assert parse("--finetune-from-model", CHECKPOINT, "--encoder-layers", known).encoder_layers == known


def test_another_decoder_can_be_asked_for() -> None:
    parsed = parse("--finetune-from-model", CHECKPOINT, "--decoder-layers", 3)
    assert parsed.decoder_layers == 3 != read_checkpoint(CHECKPOINT).config.model.decoder_layers


@pytest.mark.parametrize(
    "option", ["encoder_embed_dim", "encoder_ffn_embed_dim", "max_positions", "relative_num_buckets"]
)
def test_a_size_that_its_weight_contradicts_is_refused(option: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint.pt", train_vocabulary(tmp_path / "data"))
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    state["cfg"]["model"][option] *= 2
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=f"says {option} {state['cfg']['model'][option]}, but its encoder"):
        read_checkpoint(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize(("overrides", "whose"), [({"dropout": 2.0}, ", with another dropout, has"), ({}, " holds")])
def test_a_wrong_option_is_not_blamed_on_the_checkpoint_if_the_caller_gave_it(
    overrides: dict[str, Any], whose: str, tmp_path: Path
) -> None:
    state = torch.load(CHECKPOINT, weights_only=False)
    if not overrides:
        state["cfg"]["model"]["dropout"] = 2.0
    torch.save(state, path := tmp_path / "checkpoint.pt")
    with pytest.raises(
        CheckpointError, match=f"checkpoint.pt{whose} options that do not .* --dropout must be at least 0"
    ):
        read_checkpoint(path, {**overrides, "data": str(tmp_path)})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"layer": "x"}, "the model.layer of .* must be one of post_norm, modern or empty, not 'x'"),
        ({"masked_input": "x"}, "the task.masked_input of .* must be one of dropped, "),
        ({"global_every": 1.5}, "the model.global_every of .* must be a whole number"),
    ],
)
def test_the_caller_s_options_are_checked_as_the_checkpoint_s(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(CHECKPOINT, overrides)


@pytest.mark.parametrize("option", ["decoder_attention", "precision", "masked_input"])
def test_fairseq_s_overrides_are_checked_too(option: str) -> None:
    changes = {"data": str(CHECKPOINT.parent / "data"), option: "x"}
    with pytest.raises(ValueError, match="one of .*kept|one of self|one of fp32"):
        checkpoint_utils.load_model_ensemble_and_task([str(CHECKPOINT)], changes)


def test_without_a_checkpoint_sizes_stay_open() -> None:
    assert not hasattr(parse(), "encoder_layers")


@pytest.mark.parametrize("name", SIZES)
def test_modern_sizes_share_their_layers_and_the_paper_s_have_self_attention(name: str) -> None:
    expected = "shared" if name.startswith("maelm_modern_") else "self"
    for given in ({}, {"decoder_attention": None}):
        completed, mlm, other = (Namespace(_name=name, **{**given, **more}) for more in ({}, MLM, OTHER))
        for config in (completed, mlm, other):
            complete_config(config)
        assert completed.decoder_attention == expected and completed.decoder_layers
        assert mlm.decoder_attention == "self", "the plain MLM of every size, without a decoder"
        assert other.decoder_attention == "self_cross"


@pytest.mark.parametrize(
    ("name", "given", "layers"),
    [
        ("maelm_modern_tiny", {"encoder_layers": 1}, 1),
        ("maelm_modern_tiny", {"encoder_layers": 5}, 2),
        ("maelm_base", {"decoder_attention": "shared"}, 6),
        ("maelm_modern_150m", {"decoder_attention": "cross"}, 4),
        ("maelm_modern_150m", {"decoder_attention": "self", "encoder_layers": 3}, 1),
        ("maelm_modern_150m", {"decoder_layers": 2}, 2),
    ],
)
def test_layers_of_the_decoder_by_default(name: str, given: dict[str, Any], layers: int) -> None:
    config = Namespace(_name=name, **given)
    complete_config(config)
    assert config.decoder_layers == layers


@pytest.mark.parametrize(
    ("layers", "encoder_layers", "expected"),
    [(1, 5, [4]), (2, 4, [1, 3]), (3, 7, [2, 4, 6]), (7, 12, [1, 3, 5, 6, 8, 10, 11]), (3, 3, [0, 1, 2])],
)
def test_layers_with_masks_are_spread_up_to_the_last(layers: int, encoder_layers: int, expected: list[int]) -> None:
    assert SharedDecoder(layers, encoder_layers).decoding_layers == expected


MLM, OTHER = {"decoder_layers": 0}, {"decoder_attention": "self_cross"}


@pytest.mark.parametrize(("layers", "attention"), [(1, "self"), (2, "cross"), (0, "self")])
def test_a_checkpoint_has_its_own_decoder_whatever_its_size_has_now(
    layers: int, attention: str, tmp_path: Path
) -> None:
    path, data = tmp_path / "checkpoint.pt", train_vocabulary(tmp_path / "data")
    model = write_checkpoint(path, data, **FAMILIES["modern"], decoder_layers=layers, decoder_attention=attention)
    state = torch.load(path, weights_only=False)
    state["cfg"]["model"]["_name"] = "maelm_modern_17m"
    torch.save(state, path)
    checkpoint = read_checkpoint(path)
    assert (checkpoint.config.model.decoder_layers, checkpoint.config.model.decoder_attention) == (layers, attention)
    loaded = build_model(checkpoint, load_dictionary(str(data)))
    net_input, _ = batch_of(random_sequences([9, 6]), [[2, 5], [1]], None if layers else 39)
    with torch.no_grad():
        torch.testing.assert_close(loaded(**net_input)[0], model(**net_input)[0], rtol=0.0, atol=0.0)
    # So does a task that starts from it.
    parsed = parse("--finetune-from-model", path)
    assert (parsed.decoder_layers, parsed.decoder_attention) == (layers, attention)
