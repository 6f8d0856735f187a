"""Hostile checkpoints at every command: none runs code, gives a secret away or hangs; one line answers each."""

import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, models
from fairseq.tasks import TASK_REGISTRY
from interop.export.checkpoints import train_vocabulary, write_checkpoint

from fairseq_maelm import MaelmModel
from fairseq_maelm.cli import main
from fairseq_maelm.finetuning.encoder_options import read_encoder
from fairseq_maelm.finetuning.prompting.task import PromptTaskConfig, complete_view
from fairseq_maelm.models.checkpoint_reader import CheckpointError, read_checkpoint
from robustness.child import limit_memory
from robustness.hostile import MARKER, SECRET, Hostile, expression, hostile_checkpoints

# Hundreds of files at each of a dozen commands take minutes.
pytestmark = pytest.mark.slow

HONEST = "honest.pt"
# All commands read a checkpoint by the same function, which gets every file through the hub; importing has its own and
# gets every file too. Each is tried at one other command as well, whichever has its turn, and one in so many at the
# other functions.
ONE_IN = 5


class Place:
    """A folder with an honest checkpoint, its data, what the commands need besides, and the hostile files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = train_vocabulary(folder / "data")
        write_checkpoint(folder / HONEST, self.data)
        self.marker = folder / MARKER
        (folder / "text.txt").write_text("The harbour is old.\n")
        (folder / "table.tsv").write_text("A sentence.\t1\n")
        (folder / "glue").mkdir()
        manifest = {"format": 1, "kind": "glue", "task": "RTE", "splits": {"valid": {"name": "RTE"}}}
        (folder / "glue" / "manifest.json").write_text(json.dumps(manifest))
        honest = torch.load(folder / HONEST)
        self.cases: list[tuple[Hostile, Path]] = []
        for number, case in enumerate(hostile_checkpoints(honest, self.marker)):
            path = folder / f"hostile{number}.pt"
            case.write(path)
            self.cases.append((case, path))

    def commands(self, checkpoint: Path) -> dict[str, list[Any]]:
        """The sub-commands that take a checkpoint."""
        new, data, text = self.folder / "new", self.data, self.folder / "text.txt"
        return {
            "score": [text, "--checkpoint", checkpoint, "--vocabulary", data, "--output", new],
            "answer": [text, "What is old?", "--checkpoint", checkpoint, "--vocabulary", data],
            "predict": [text, "--checkpoint", checkpoint, "--vocabulary", data],
            "finetune": [self.folder / "glue", "--checkpoint", checkpoint, "--output", new, "--recipe", "sentences"],
            "import": [checkpoint, "--vocabulary", data, "--output", new],
            "analyze": ["--checkpoint", f"a={checkpoint}", "--data", data, "--text", text, "--output", new],
            "export": ["--checkpoint", checkpoint, "--vocabulary", data, "--output", new, "--format", "maelm"],
        }


COMMANDS = (
    *("score", "answer", "predict", "finetune", "import", "analyze"),
    "export",
)
FUNCTIONS: dict[str, Callable[[Path, Path], Any]] = {
    "hub": lambda path, data: MaelmModel.from_pretrained(str(path.parent), path.name, str(data)),
    "sweep": lambda path, data: read_encoder(path),
    "prompting": lambda path, data: complete_view(_prompting(path)),
}


def _prompting(path: Path) -> Any:
    config = PromptTaskConfig()
    config.finetune_from_model = str(path)
    return config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ[SECRET] = "the secret"
    return Place(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(autouse=True)
def little_memory(place: Place) -> Iterator[None]:
    """Limit the memory of every test, whose files take a few MB."""
    before = limit_memory()
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def answer_of(call: Callable[[], Any]) -> str:
    """The message that a call ends with."""
    try:
        call()
    except SystemExit as error:
        return str(error.code)
    except ValueError as error:
        return str(error)
    return ""


def check(case: Hostile, answer: str, place: Place, command: str = "") -> list[str]:
    """What is wrong with the answer to a hostile file. An analysis makes its folder before it opens models."""
    wrong = {
        "was accepted": not answer,
        "was answered by several lines": "\n" in answer,
        "was answered at length": len(answer) > 600,
        "gave the secret away": "the secret" in answer,
        "took too much memory": "memory" in answer.lower() or "--debug shows" in answer,
        "ran code": place.marker.exists(),
        "left something behind": (place.folder / "new").exists() and command != "analyze",
    }
    shutil.rmtree(place.folder / "new", ignore_errors=True)
    return [f"{case.name} {what}: {answer[:300]}" for what, found in wrong.items() if found]


def test_there_are_enough_of_them(place: Place) -> None:
    names = [case.name for case, _ in place.cases]
    assert len(names) == len(set(names)) >= 400
    assert sum(name.startswith(("task ", "model ")) for name in names) > 200


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_a_hostile_checkpoint(command: str, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    in_turn = place.cases[COMMANDS.index(command) :: len(COMMANDS)]
    for case, path in place.cases if command == "import" else in_turn:
        words = [command, *map(str, place.commands(path)[command])]
        answer = answer_of(lambda words=words: main(words))  # type: ignore[misc]
        wrong += check(case, answer, place, command)
        if answer and not answer.startswith(f"maelm {command}: error: "):
            wrong.append(f"{case.name} was answered in another form: {answer[:100]}")
    assert not wrong, "\n".join(wrong)
    assert "the secret" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_function_takes_a_hostile_checkpoint(function: str, place: Place) -> None:
    wrong = []
    for case, path in place.cases if function == "hub" else place.cases[::ONE_IN]:
        answer = answer_of(lambda path=path: FUNCTIONS[function](path, place.data))  # type: ignore[misc]
        wrong += check(case, answer, place)
    assert not wrong, "\n".join(wrong)


def test_an_honest_checkpoint_passes(place: Place) -> None:
    checkpoint = read_checkpoint(place.folder / HONEST)
    assert checkpoint.task_name == "maelm" and checkpoint.predicts_masked_tokens
    hub = MaelmModel.from_pretrained(str(place.folder), HONEST, str(place.data))
    for name, tensor in hub.model.state_dict().items():
        assert torch.equal(tensor, torch.load(place.folder / HONEST)["model"][name])
    assert read_encoder(place.folder / HONEST).options["encoder-layers"] == 2


@pytest.mark.parametrize("task", ["maelm", "maelm_adaptation"])
def test_checkpoints_of_domain_adaptation_load(task: str, place: Place) -> None:
    """Before the task maelm_adaptation there was one task, maelm, with the options about general text."""
    state = torch.load(place.folder / HONEST)
    general = {"general_data": "elsewhere", "general_ratio": 0.25, "general_loss_bound": 0.1}
    state["cfg"]["task"].update({"_name": task, **general})
    torch.save(state, place.folder / f"{task}.pt")
    config = read_checkpoint(place.folder / f"{task}.pt").config
    assert [config.task.get(name) for name in general] == (list(general.values()) if "_" in task else [None] * 3)
    hub = MaelmModel.from_pretrained(str(place.folder), f"{task}.pt", str(place.data))
    assert type(hub.task) is TASK_REGISTRY[task]
    assert read_encoder(place.folder / f"{task}.pt").options["encoder-layers"] == 2
    loaded, _, built = checkpoint_utils.load_model_ensemble_and_task(
        [str(place.folder / f"{task}.pt")], {"data": str(place.data)}
    )
    assert type(built) is TASK_REGISTRY[task] and len(loaded) == 1, "as fairseq-validate opens it"


def test_reading_for_training_runs_nothing(place: Place) -> None:
    """--restore-file and --finetune-from-model read weights and never build what the configuration names."""
    for _, path in place.cases[::ONE_IN]:
        try:
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
        except Exception:  # errors of every kind are fine here: only what runs is looked at
            continue
    assert not place.marker.exists()


def test_fairseq_builds_nothing_foreign(place: Place) -> None:
    """fairseq-validate builds what a file names; here it is refused before, for every task and model of fairseq."""
    # What RoBERTa's names bring along is fairseq's to refuse; it evaluates none of it.
    own = re.compile(r"(task (masked_lm|sentence_prediction)|model (roberta|maelm))( as |$)")
    foreign = [case for case in place.cases if case[0].name.startswith(("task ", "model ", "${"))]
    assert len(foreign) > 200
    for case, path in foreign[::3]:
        with pytest.raises(Exception) as error:
            checkpoint_utils.load_model_ensemble_and_task([str(path)])
        assert own.match(case.name) or isinstance(error.value, CheckpointError), case.name
    assert not place.marker.exists()


def test_the_strings_are_live(tmp_path: Path) -> None:
    """Shows that the tests above would notice: fairseq itself evaluates options of the models that a file names."""
    with pytest.raises(MemoryError):
        bytearray(2 * 10**9)
    marker = tmp_path / MARKER
    config = models.MODEL_DATACLASS_REGISTRY["wav2vec2"]()
    config.conv_feature_layers = expression(marker)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        models.MODEL_REGISTRY["wav2vec2"].build_model(config)
    assert marker.exists()


def test_unknown_overrides_are_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="'dropuot' is an option of neither"):
        MaelmModel.from_pretrained(str(place.folder), HONEST, str(place.data), dropuot=0.2)
    hub = MaelmModel.from_pretrained(str(place.folder), HONEST, str(place.data), dropout=0.2, mask_prob=0.3)
    assert hub.config.model.dropout == 0.2 and hub.task.cfg.mask_prob == 0.3
