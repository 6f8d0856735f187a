"""Every form of ModernBERT's configuration gives the options that compute the same."""

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_maelm import MaelmModel
from fairseq_maelm.architecture.config import MaelmModelConfig, complete_config
from fairseq_maelm.architecture.encoder_options import ENCODER_OPTIONS
from fairseq_maelm.interop.importing.importer import import_model

from . import sources

WINDOW = sources.MODERN_SIZES["local_attention"]
BASES = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources.modernbert_folder(tmp_path_factory.mktemp("modernbert") / "source")


@pytest.fixture
def copied(modernbert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(modernbert, tmp_path / "source"))


def every(period: int) -> dict[str, Any]:
    """Return the period of global layers, which version 4 of transformers reads instead of the list of layers."""
    return {"global_attn_every_n_layers": period}


OLD_NAMES = {"layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 3}
# Changes of the configuration -> rotary bases, window, period of global layers.
CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "written by version 4, with whole bases and an unknown length": (
        {**OLD_NAMES, "global_rope_theta": 160_000, "local_rope_theta": 10_000, "model_max_length": 10**30},
        [160_000, 10_000, WINDOW, 3],
    ),
    "defaults of version 4": (OLD_NAMES, [160_000, 10_000, WINDOW, 3]),
    "Ettin": (
        {"rope_parameters": sources.rope(**dict.fromkeys(BASES, 160_000.0)), "local_rope_theta": 160_000.0},
        [160_000, 160_000, WINDOW, 3],
    ),
    "every second layer": (
        {"layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"], **every(2)},
        [160_000, 10_000, WINDOW, 2],
    ),
    "a window that just holds all": ({"local_attention": 78}, [160_000, 10_000, 0, 3]),
    "all global": ({"layer_types": ["full_attention"] * 5, **every(1)}, [160_000, 160_000, 0, 3]),
}


def built_by(words: list[str]) -> dict[str, Any]:
    """Return the options of the encoder that fairseq-train builds from the printed words."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", dest="_name")
    gen_parser_from_dataclass(parser, MaelmModelConfig(), delete_default=True)
    given = {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}
    config = argparse.Namespace(**given)
    complete_config(config)
    return {name: getattr(config, name) for name in ENCODER_OPTIONS}


@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same(case: str, copied: Path, tmp_path: Path) -> None:
    changes, settings = CASES[case]
    folder = sources.edit_config(copied, **changes)
    imported = import_model(folder, tmp_path / "imported")
    assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"]
    assert all(each.size > 0.5 for each in imported.agreements)
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    config = hub.config.model
    found = [config.rotary_base, config.local_rotary_base, config.local_attention, config.global_every]
    assert [config.max_positions, *found] == [40, *settings]
    assert built_by(imported.model_options) == {name: getattr(config, name) for name in ENCODER_OPTIONS}
