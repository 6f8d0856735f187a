"""Hostile checkpoints at every command: none runs code, gives a secret away or hangs; one line answers each."""

import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fairseq import checkpoint_utils, models
from fairseq.tasks import TASK_REGISTRY

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.reader import CheckpointError, read_checkpoint
from fairseq_maelm.finetuning.prompting.task import PromptTaskConfig, complete_view
from fairseq_maelm.launch.finetuning import read_encoder
from robustness.child import limit_memory
from robustness.commands import GOOD
from robustness.hostile import MARKER, SECRET, Hostile, expression, hostile_checkpoints
from robustness.world import Answer, World

# Hundreds of files at each of a dozen commands take minutes.
pytestmark = pytest.mark.slow

# All commands read a checkpoint by the same function, which gets every file through the hub; importing has its own and
# gets every file too. Each is tried at one other command as well, whichever has its turn, and one in so many at the
# other functions.
ONE_IN = 5
COMMANDS = ("score", "answer", "predict", "finetune", "import", "analyze", "export")
LINES = {**GOOD, "import": "import {pretrained} --vocabulary {data} --output {new}"}
FUNCTIONS: dict[str, Callable[[Path, Path], Any]] = {
    "hub": lambda path, data: MaelmModel.from_pretrained(str(path.parent), path.name, str(data)),
    "sweep": lambda path, data: read_encoder(path),
    "prompting": lambda path, data: complete_view(_prompting(path)),
}


def _prompting(path: Path) -> Any:
    config = PromptTaskConfig()
    config.finetune_from_model = str(path)
    return config


class Files(NamedTuple):
    """The hostile files, in the world of good ones, and the file that shows that code has run."""

    world: World
    marker: Path
    cases: list[tuple[Hostile, Path]]


@pytest.fixture(scope="module")
def files(world: World) -> Files:
    os.environ[SECRET] = "the secret"
    folder = world.folder / "hostile"
    folder.mkdir()
    made = Files(world, folder / MARKER, [])
    for number, case in enumerate(hostile_checkpoints(torch.load(world.path("pretrained")), made.marker)):
        made.cases.append((case, folder / f"{number}.pt"))
        case.write(made.cases[-1][1])
    return made


@pytest.fixture(autouse=True)
def little_memory(files: Files) -> Iterator[None]:
    """Limit the memory of every test, whose files take a few MB."""
    before = limit_memory()
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def check(case: Hostile, answer: str, files: Files, command: str = "") -> list[str]:
    """What is wrong with the answer to a hostile file. An analysis makes its folder before it opens models."""
    wrong = {
        "was accepted": not answer,
        "was answered by several lines": "\n" in answer,
        "was answered at length": len(answer) > 600,
        "was answered in another form": not answer.startswith(f"maelm {command}: error: " if command else ""),
        "gave the secret away": "the secret" in answer,
        "took too much memory": "memory" in answer.lower() or "--debug shows" in answer,
        "ran code": files.marker.exists(),
        "left something behind": files.world.path("new").exists() and command != "analyze",
    }
    files.world.remove_new()
    return [f"{case.name} {what}: {answer[:300]}" for what, found in wrong.items() if found]


def test_there_are_enough_of_them(files: Files) -> None:
    names = [case.name for case, _ in files.cases]
    assert len(names) == len(set(names)) >= 250
    assert sum(name.startswith(("task ", "model ")) for name in names) > 70


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_a_hostile_checkpoint(command: str, files: Files) -> None:
    wrong = []
    in_turn = files.cases[COMMANDS.index(command) :: len(COMMANDS)]
    for case, path in files.cases if command == "import" else in_turn:
        answer = ""
        try:
            files.world.run(re.sub(r"\{(pretrained|classifier|reader)\}", str(path), LINES[command]))
        except Answer as error:
            answer = error.error.rstrip("\n")
        wrong += check(case, answer, files, command)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_function_takes_a_hostile_checkpoint(function: str, files: Files) -> None:
    wrong = []
    for case, path in files.cases if function == "hub" else files.cases[::ONE_IN]:
        answer = ""
        try:
            FUNCTIONS[function](path, files.world.path("data"))
        except ValueError as error:
            answer = str(error)
        wrong += check(case, answer, files)
    assert not wrong, "\n".join(wrong)


def test_checkpoints_of_domain_adaptation_load(files: Files) -> None:
    state = torch.load(files.world.path("pretrained"))
    general = {"general_data": "elsewhere", "general_ratio": 0.25, "general_loss_bound": 0.1}
    state["cfg"]["task"].update({"_name": "maelm", **general})
    path = files.marker.with_name("adapted.pt")
    torch.save(state, path)
    task = read_checkpoint(path).config.task
    assert [task.get(name) for name in general] == list(general.values())
    assert type(files.world.hub("hostile/adapted", dropout=0.1).task) is TASK_REGISTRY["maelm"]


def test_reading_for_training_runs_nothing(files: Files) -> None:
    """--restore-file and --finetune-from-model read weights and never build what the configuration names."""
    for _, path in files.cases[::ONE_IN]:
        try:
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
        except Exception:  # errors of every kind are fine here: only what runs is looked at
            continue
    assert not files.marker.exists()


def test_fairseq_builds_nothing_foreign(files: Files) -> None:
    """fairseq-validate builds what a file names; here it is refused before, for every task and model of fairseq."""
    # What RoBERTa's names bring along is fairseq's to refuse; it evaluates none of it.
    own = re.compile(r"(task (masked_lm|sentence_prediction)|model (roberta|maelm))( as |$)")
    foreign = [case for case in files.cases if case[0].name.startswith(("task ", "model ", "${"))]
    assert len(foreign) > 70
    for case, path in foreign:
        with pytest.raises(Exception) as error:
            checkpoint_utils.load_model_ensemble_and_task([str(path)])
        assert own.match(case.name) or isinstance(error.value, CheckpointError), case.name
    assert not files.marker.exists()


def test_the_strings_are_live(tmp_path: Path) -> None:
    """Shows that the tests above would notice: fairseq itself evaluates options of the models that a file names."""
    with pytest.raises(MemoryError):
        bytearray(resource.getrlimit(resource.RLIMIT_AS)[0])
    marker = tmp_path / MARKER
    config = models.MODEL_DATACLASS_REGISTRY["wav2vec2"]()
    config.conv_feature_layers = expression(marker)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        models.MODEL_REGISTRY["wav2vec2"].build_model(config)
    assert marker.exists()
