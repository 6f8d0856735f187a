"""The surface that users and their checkpoints build on is frozen: options, registered names, parameter names.

A change here is a change for every recipe and every saved checkpoint, so it has to be made on purpose: the tests print
the new content of the file that records the surface, ready to be put in its place.
"""

import json
import re
from argparse import Namespace
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from support import dictionary_of

import fairseq_maelm
from fairseq_maelm.architecture.encoder_options import SIZES
from fairseq_maelm.checkpoints.fit import SETTINGS
from fairseq_maelm.models.maelm import MaelmModel, MaelmModelConfig

from .sources import PACKAGE, ROOT, package_files, read_text

SURFACE = Path(__file__).with_name("surface.json")
GOLDEN = ROOT / "tests" / "golden"
VOCABULARY = 1000
HEAD = "sentence_classification_head"


def compare(actual: Any, path: Path, what: str) -> None:
    """Compare with the recorded content of a JSON file; on a difference print the actual one."""
    actual = json.loads(json.dumps(actual))  # tuples become lists
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if recorded != actual:
        content = json.dumps(actual, indent=1)
        pytest.fail(f"{what} changed. If that is meant, this is the new {path.relative_to(ROOT)}:\n{content}\n")


# Options


def own_dataclasses() -> dict[str, type]:
    """The dataclasses that this package registers with fairseq, by kind and name."""
    registries = {
        "task": TASK_DATACLASS_REGISTRY,
        "model": MODEL_DATACLASS_REGISTRY,
        "criterion": CRITERION_DATACLASS_REGISTRY,
        "optimizer": OPTIMIZER_DATACLASS_REGISTRY,
    }
    return {
        f"{kind} {name}": dataclass
        for kind, registry in registries.items()
        for name, dataclass in sorted(registry.items())
        if dataclass is not None and dataclass.__module__.startswith(fairseq_maelm.__name__ + ".")
    }


def option_names(dataclass: type) -> list[str]:
    """fairseq's own field ``_name`` is not an option."""
    return [field.name for field in fields(dataclass) if not field.name.startswith("_")]


def type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(member.value for member in annotation)
    if choices := [each for each in get_args(annotation) if isinstance(each, type) and issubclass(each, Enum)]:
        return f"Optional[{type_name(choices[0])}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def test_options_are_the_recorded_ones():
    surface = {
        name: {
            field.name: {"type": type_name(field.type), "default": field.default}
            for field in fields(dataclass)
            if not field.name.startswith("_")
        }
        for name, dataclass in own_dataclasses().items()
    }
    assert {"task maelm", "model maelm", "optimizer fused_adamw", "optimizer muon"} <= surface.keys()
    compare({"options": surface, "sizes": SIZES}, SURFACE, "The configuration surface")


def test_every_option_is_read():
    """An option that nothing reads promises what it does not do."""
    text = "\n".join(map(read_text, package_files()))
    read = {*re.findall(r"\b(?:cfg|config)\.(\w+)", text), *re.findall(r'getattr\([\w.]*(?:cfg|config), "(\w+)"', text)}
    # Those of the encoder reach its layers by properties of their own class.
    read |= {*re.findall(r"\bself\.(\w+)", read_text(PACKAGE / "architecture" / "encoder_options.py"))}
    dataclasses = own_dataclasses()
    declared = {(name, option) for name, dataclass in dataclasses.items() for option in option_names(dataclass)}
    assert len(declared) > 20
    unread = sorted(f"{name}: {option}" for name, option in declared if option not in read)
    assert not unread, f"options that nothing in the package reads: {', '.join(unread)}"


def test_every_option_is_explained():
    for name, dataclass in own_dataclasses().items():
        for field in fields(dataclass):
            # The seed comes from fairseq's common options, which explain it.
            if not field.name.startswith("_") and "${" not in str(field.default):
                assert field.metadata.get("help"), f"{name}: {field.name} has no help text"


# Registered names


def test_registered_names_are_ours():
    """fairseq keeps the older class without a word when a task or model name is taken."""
    for registry in (TASK_REGISTRY, MODEL_REGISTRY, CRITERION_REGISTRY):
        assert registry["maelm"].__module__.startswith(fairseq_maelm.__name__ + "."), registry["maelm"]
    assert {name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "maelm"} == {"maelm", *SIZES}


# Parameters


def model_of(architecture: str, pretraining: bool) -> MaelmModel:
    """A model as fairseq builds it, without memory for its weights."""
    defaults = {field.name: field.default for field in fields(MaelmModelConfig) if not field.name.startswith("_")}
    task = SimpleNamespace(max_positions=lambda: 512, source_dictionary=dictionary_of(VOCABULARY))
    task.predicts_masked_tokens = pretraining
    with torch.device("meta"):
        return MaelmModel.build_model(Namespace(arch=architecture, **defaults), task)


def tree_of(model: MaelmModel) -> dict[str, str]:
    """What a checkpoint of the model holds: names, element types and shapes of weights."""
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        for name, tensor in model.state_dict().items()
        if name != SETTINGS
    }


@pytest.mark.parametrize("architecture", SIZES)
def test_parameter_names_shapes_and_types_are_the_recorded_ones(architecture):
    tree = tree_of(model_of(architecture, pretraining=True))
    compare(tree, GOLDEN / f"parameters_{architecture}.json", f"The parameters of {architecture}")


@pytest.mark.parametrize("architecture", ["maelm_tiny", "maelm_modern_tiny"])
def test_parameters_of_fine_tuning_are_the_recorded_ones(architecture):
    model = model_of(architecture, pretraining=False)
    model.register_classification_head(HEAD, num_classes=3)
    model.register_token_head("tagging_head", 5)
    compare(tree_of(model), GOLDEN / f"parameters_{architecture}_finetuning.json", "The parameters of fine-tuning")


def test_there_is_one_recorded_tree_for_each_architecture():
    expected = {f"parameters_{name}.json" for name in [*SIZES, "maelm_tiny_finetuning", "maelm_modern_tiny_finetuning"]}
    assert {path.name for path in GOLDEN.glob("parameters_*.json")} == expected
