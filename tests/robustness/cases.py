"""What is bad, as tables: files and the commands that read them, damaged folders, options, arguments of the hub.

A case is a name, a command line and words of the one line that answers it. Names in braces are paths of the world, and
``{bad}`` that of the bad file. Commands read files of one kind by one function, which gets every file; each command
gets those that it could take for good.
"""

import argparse
import importlib
import io
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm import cli
from fairseq_maelm.options import CommandParser
from robustness.commands import GOOD, TRAIN, Case
from robustness.damaged_folders import FOLDERS, folder_cases
from robustness.rows import row_cases
from robustness.world import World


def cases() -> list[Case]:
    """Return all cases of commands."""
    made = [*_checkpoints(), *_contents(), *folder_cases(), *_options(), *_outputs(), *row_cases()]
    assert len({case.name for case in made}) == len(made)
    return made


def write_bad_files(world: World) -> None:
    """Write the bad files and folders that the cases name, below the world's folder ``bad``."""
    bad = world.folder / "bad"
    bad.mkdir()
    honest = torch.load(world.path("pretrained"))
    for name, content in _CHECKPOINTS.items():
        (bad / f"{name}.pt").write_bytes(content(honest) if callable(content) else content)
    for name, changes in _PROGRESS.items():
        torch.save({**honest, **changes}, bad / f"{name}.pt")
    for texts in (_JSON, _TEXTS):
        for name, content in texts.items():
            (bad / name).write_bytes(content)
    for source, damages in FOLDERS.items():
        for name, (damage, _) in damages.items():
            damage(Path(shutil.copytree(world.folder / source, bad / f"{source}-{name}")))
    for folder, name in _MANIFESTS:
        for kind in _FOR_ALL.intersection(_JSON):
            copy = Path(shutil.copytree(world.folder / folder, bad / f"{folder}-{kind}"))
            (copy / name).write_bytes(_JSON[kind])


# Files that are not checkpoints


def _saved(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], bytes]:
    def save(honest: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        torch.save(change(honest), stream)
        return stream.getvalue()

    return save


def _with_weight(name: str, value: float) -> Callable[[dict[str, Any]], bytes]:
    def change(honest: dict[str, Any]) -> dict[str, Any]:
        weight = honest["model"][name].clone()
        weight.view(-1)[0] = value
        return {**honest, "model": {**honest["model"], name: weight}}

    return _saved(change)


_CHECKPOINTS: dict[str, Any] = {
    "empty": b"",
    "text": b"Some text.\n" * 9,
    "zeros": bytes(4096),
    "image": b"\x89PNG\r\n\x1a\n" + bytes(99),
    "zip": b"PK\x03\x04" + bytes(99),
    "number": pickle.dumps(3),
    "json": b'{"model": {}}',
    "half": lambda honest: _saved(dict)(honest)[:9000],
    "list": _saved(lambda honest: list(honest["model"].values())),
    "weights-alone": _saved(lambda honest: honest["model"]),
    "no-configuration": _saved(lambda honest: {"model": honest["model"]}),
    "another-model": _saved(lambda honest: {**honest, "model": {"layer.weight": torch.zeros(3, 3)}}),
    "not-a-number": _with_weight("encoder.layers.0.fc1.weight", float("nan")),
    "infinite": _with_weight("encoder.embed_tokens.weight", float("inf")),
}
# Progress that no run has, in a checkpoint whose weights are in order.
_PROGRESS: dict[str, dict[str, Any]] = {
    "epoch-huge": {"extra_state": {"train_iterator": {"epoch": 10**9}}},
    "epoch-text": {"extra_state": {"train_iterator": {"epoch": "two"}}},
    "batches-none": {"extra_state": {"train_iterator": {"epoch": 2, "iterations_in_epoch": None}}},
    "ranks-text": {"extra_state": {"train_iterator": {"epoch": 2, "ranks": "two"}}},
    "iterator-list": {"extra_state": {"train_iterator": [1, 2]}},
    "time-text": {"extra_state": {"train_iterator": {"epoch": 2}, "previous_training_time": "long"}},
    "best-nan": {"extra_state": {"train_iterator": {"epoch": 2}, "best": float("nan")}},
    "history-text": {"optimizer_history": "long"},
    "updates-huge": {"optimizer_history": [{"num_updates": 10**15, "lr_scheduler_state": {}}]},
    "no-schedule": {"optimizer_history": [{"num_updates": 1}]},
}
_CHECKPOINT_COMMANDS = (
    *("fill", "predict", "predict prompts", "answer", "score", "analyze", "export", "finetune", "sweep"),
)


def _checkpoints() -> Iterator[Case]:
    for name in _CHECKPOINTS:
        for command in _CHECKPOINT_COMMANDS if name in ("text", "not-a-number") else ("fill", "predict prompts"):
            line = re.sub(r"\{(pretrained|classifier|reader)\}", f"{{bad/{name}.pt}}", GOOD[command])
            yield Case(f"{command}: {name}", line, rf"bad/{name}.pt (is|holds|cannot|says|does)")
        yield Case(
            f"import: {name}", f"import {{bad/{name}.pt}} --vocabulary {{data}} --output {{new}}", f"bad/{name}.pt"
        )
    for name in ("empty", "half", "list"):
        for option in ("finetune-from-model", "restore-file"):
            line = f"pretrain {{data}} --output {{new}} {TRAIN} {option}={{bad/{name}.pt}}"
            yield Case(f"{option}: {name}", line, rf"--{option} \S*bad/{name}.pt (is|cannot)")
    for name in _PROGRESS:
        line = f"pretrain {{data}} --output {{new}} {TRAIN} -- --restore-file {{bad/{name}.pt}}"
        yield Case(f"restore-file: {name}", line, rf"--restore-file \S*bad/{name}.pt cannot be continued: it")


# Files of text and JSON

# What every command that reads such a file gets.
_FOR_ALL = {"cut.json", "list.json", "foreign.json", "latin.txt", "nothing.txt"}
_JSON = {
    "deep.json": b"[" * 200_000,
    "deep-objects.json": b'{"data":' * 200_000,
    "empty.json": b"",
    "cut.json": b'{"a": "b",',
    "list.json": b"[1, 2]",
    "number.json": b"3",
    "latin.json": '{"a": "é"}'.encode("latin-1"),
    "foreign.json": b'{"something": {"else": null}}',
}
_JSON_COMMANDS = {
    "squad": "evaluate squad {bad} {predictions.json}",
    "predictions": "evaluate squad {squad.json} {bad}",
    "odds": "evaluate squad {squad.json} {predictions.json} --null-odds {bad}",
    "prepare squad": "prepare squad --vocabulary {data} --train {bad} --output {new}",
    "questions": "predict {bad} --checkpoint {reader} --vocabulary {squad}",
    "prompt": "predict {pairs.tsv} --checkpoint {pretrained} --vocabulary {data} --prompt {bad}",
}
# A file of a prepared folder, and the command that reads the folder.
_MANIFESTS = {
    ("squad", "manifest.json"): "predict {bad} --checkpoint {reader}",
    ("tagging", "manifest.json"): "predict {words.conll} --checkpoint {tagger} --vocabulary {bad}",
    ("data", "manifest.json"): "fill 'the <mask>' --checkpoint {pretrained} --vocabulary {bad}",
    ("hf", "config.json"): "import {bad} --output {new}",
}
_TEXTS = {
    "latin.txt": "caf\u00e9 au lait\tx\n".encode("latin-1"),
    "utf16.txt": "The old house\tx\n".encode("utf-16"),
    "nul.txt": b"The old\0 house\tx\n",
    "nothing.txt": b"",
    "blank.txt": b"\n \n\n",
    "binary.txt": bytes(range(256)) * 4,
}
_TEXT_COMMANDS = {
    "corpus": "prepare corpus {bad} --output {new} --vocabulary {data} --workers 1",
    "answer": "answer {bad} Who? --checkpoint {reader} --vocabulary {data}",
    "predict": "predict {bad} --checkpoint {classifier} --vocabulary {sentences}",
    "tags": "predict {bad} --checkpoint {tagger} --vocabulary {tagging}",
    "train table": "prepare sentences --vocabulary {data} --train {bad} --output {new}",
    "train words": "prepare tagging --vocabulary {data} --train {bad} --valid {words.conll} --output {new}",
    "analyze": "analyze --checkpoint a={pretrained} --text {bad} --vocabulary {data} --output {new} --tokens 400",
    "labels": "export --checkpoint {classifier} --vocabulary {sentences} --output {new} --format maelm --labels {bad} "
    "--architecture sequence-classification",
    "score": "score {bad} --checkpoint {pretrained} --vocabulary {data} --output {new}",
    "recipe": "sweep {bad} --data {folder} --checkpoint a={pretrained} --output {new}",
}


def _contents() -> Iterator[Case]:
    for commands, contents, first in ((_JSON_COMMANDS, _JSON, "squad"), (_TEXT_COMMANDS, _TEXTS, "predict")):
        for command, line in commands.items():
            for name in contents if command == first else sorted(_FOR_ALL.intersection(contents)):
                yield Case(f"{command}: {name}", line.replace("{bad}", f"{{bad/{name}}}"), _expected_of(command, name))
    for (folder, file), line in _MANIFESTS.items():
        for name in sorted(_FOR_ALL.intersection(_JSON)):
            named = rf"bad/{folder}-{name}"
            yield Case(f"{folder}: {file}: {name}", line.replace("{bad}", f"{{bad/{folder}-{name}}}"), named)


def _expected_of(command: str, name: str) -> str:
    others = {
        "corpus": "hold no documents|split is empty",
        "prompt": f"prompt '{Path(name).stem}'",
    }
    return rf"bad/{name}|{others.get(command, 'empty|no text')}"


# Options

# Numbers that may be negative.
_ANY_NUMBER = {"--threshold"}


def _options() -> Iterator[Case]:
    """Every option that takes a number, a device or a path, with values that are none."""
    for name in sorted({command for command in GOOD if command in cli.SUB_COMMANDS}):
        parser = CommandParser()
        importlib.import_module(cli.module_of(name)).add_arguments(parser)
        # Options end before those for fairseq.
        own, dashes, rest = GOOD[name].partition(" -- ")
        for action in parser._actions:
            option = action.option_strings[-1] if action.option_strings else ""
            for value in _wrong_values(action, option):
                # An option may be given only once.
                line = f"{re.sub(rf' {option} [^ ]+', '', own)} {option}={value}{dashes}{rest}"
                expected = rf"error: argument {option}: .*{re.escape(value)}|must (lie|be)"
                yield Case(f"{name} {option}={value}", line, expected)


def _wrong_values(action: argparse.Action, option: str) -> tuple[str, ...]:
    kind = getattr(action.type, "__qualname__", "")
    if not option or action.nargs is not None:
        return ()
    if kind.startswith("number."):
        return ("nan", "-1") if option not in _ANY_NUMBER else ("nan", "abc")
    if kind == "device_name":
        return ("cuda:99", "gpu")
    return ("/no/such/place",) if kind in ("existing_path", "vocabulary_folder", "checkpoint_path") else ()


def _outputs() -> Iterator[Case]:
    """Every command that writes: with an output that is there, one that fairseq cannot read, and one below a file."""
    for command, line in GOOD.items():
        if "{new}" not in line or command in ("finetune", "pretrain", "sweep"):
            continue
        if command != "prepare glue":  # whose tasks each have a folder in the output
            yield Case(
                f"{command} over something", line.replace("{new}", "{glue}"), "exists|holds no results|not written"
            )
        yield Case(
            f"{command} to a:b", line.replace("{new}", "{new}:b"), "contains a colon, which fairseq uses to separate"
        )
        yield Case(f"{command} below a file", line.replace("{new}", "{text.txt}/below"), "text.txt is not a folder")
