"""What is bad, as tables: files and the commands that read them, damaged folders, options, arguments of the hub.

A case is a name, a command line and words of the one line that answers it. Names in braces are paths of the world, and
``{bad}`` that of the bad file. What is crossed here is crossed in full.
"""

import argparse
import importlib
import io
import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fairseq_maelm import cli
from fairseq_maelm.options import CommandParser
from robustness.world import World

_TRAIN = "--recipe tiny --gpus 0 --set batch-sequences=4 sequence-length=32 sequences-per-gpu=4 -- --max-update 1"

# Every command with good input.
GOOD = {
    "fill": "fill 'the <mask>' --checkpoint {pretrained} --vocabulary {data}",
    "predict": "predict {sentences.tsv} --checkpoint {classifier} --vocabulary {sentences}",
    "predict tags": "predict {words.conll} --checkpoint {tagger} --vocabulary {tagging}",
    "predict answers": "predict {squad.json} --checkpoint {reader} --vocabulary {squad}",
    "predict prompts": "predict {pairs.tsv} --checkpoint {pretrained} --vocabulary {data} --prompt {pair_prompt.json} "
    "--several-pieces",
    "answer": "answer {text.txt} Who? --checkpoint {reader} --vocabulary {data}",
    "score": "score {text.txt} --checkpoint {pretrained} --vocabulary {data} --output {new}",
    "evaluate squad": "evaluate squad {squad.json} {predictions.json} --null-odds {odds.json}",
    "analyze": "analyze --checkpoint a={pretrained} --text {text.txt} --vocabulary {data} --output {new} --tokens 400",
    "probe": "probe --checkpoint a={pretrained} --text {text.txt} --vocabulary {data} --output {new}",
    "export": "export --checkpoint {pretrained} --vocabulary {data} --output {new} --format maelm",
    "import": "import {hf} --output {new}",
    "finetune": "finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 --epochs 1 --batch-size 8",
    "pretrain": f"pretrain {{data}} --output {{new}} {_TRAIN}",
    "prepare corpus": "prepare corpus {documents.txt} --output {new} --vocabulary {data} --workers 1",
    "prepare sentences": "prepare sentences --vocabulary {data} --train {sentences.tsv} --output {new}",
    "prepare glue": "prepare glue {glue} --vocabulary {data} --output {new} --accept-counts",
    "prepare tagging": "prepare tagging --vocabulary {data} --train {words.conll} --valid {words.conll} --output {new}",
    "prepare squad": "prepare squad --vocabulary {data} --valid {squad.json} --output {new}",
    "sweep": "sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --dry-run",
}


class Case(NamedTuple):
    """A bad input: what it is, the command line, and a pattern for the line that answers it."""

    name: str
    line: str
    expected: str


def cases() -> list[Case]:
    """Return all cases of commands."""
    made = [*_checkpoints(), *_contents(), *_folders(), *_options(), *_outputs(), *_single()]
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
    for source, damages in _FOLDERS.items():
        for name, (damage, _) in damages.items():
            damage(Path(shutil.copytree(world.folder / source, bad / f"{source}-{name}")))
    for folder, name in _MANIFESTS:
        for kind, content in _JSON.items():
            copy = Path(shutil.copytree(world.folder / folder, bad / f"{folder}-{kind}"))
            (copy / name).write_bytes(content)


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
    "iterator-list": {"extra_state": {"train_iterator": [1, 2]}},
    "time-text": {"extra_state": {"train_iterator": {"epoch": 2}, "previous_training_time": "long"}},
    "best-nan": {"extra_state": {"train_iterator": {"epoch": 2}, "best": float("nan")}},
    "history-text": {"optimizer_history": "long"},
    "updates-huge": {"optimizer_history": [{"num_updates": 10**15}]},
}
_CHECKPOINT_COMMANDS = (
    *("fill", "predict", "predict prompts", "answer", "score", "analyze", "export", "finetune", "sweep"),
)


def _checkpoints() -> Iterator[Case]:
    for name in _CHECKPOINTS:
        for command in _CHECKPOINT_COMMANDS:
            line = re.sub(r"\{(pretrained|classifier|reader)\}", f"{{bad/{name}.pt}}", GOOD[command])
            yield Case(f"{command}: {name}", line, rf"bad/{name}.pt (is|holds|cannot|says|does)")
        yield Case(
            f"import: {name}", f"import {{bad/{name}.pt}} --vocabulary {{data}} --output {{new}}", f"bad/{name}.pt"
        )
    for name in ("empty", "text", "zeros", "image", "half", "list", "number"):
        for option in ("finetune-from-model", "restore-file"):
            line = f"pretrain {{data}} --output {{new}} {_TRAIN} --{option} {{bad/{name}.pt}}"
            yield Case(f"{option}: {name}", line, rf"--{option} \S*bad/{name}.pt (is|cannot)")
    for name in _PROGRESS:
        line = f"pretrain {{data}} --output {{new}} {_TRAIN} --restore-file {{bad/{name}.pt}}"
        yield Case(f"restore-file: {name}", line, rf"--restore-file \S*bad/{name}.pt cannot be continued: it")


# Files of text and JSON

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
    for commands, contents in ((_JSON_COMMANDS, _JSON), (_TEXT_COMMANDS, _TEXTS)):
        for command, line in commands.items():
            # To an answer NUL is a character like any other.
            for name in [name for name in contents if (command, name) != ("answer", "nul.txt")]:
                yield Case(f"{command}: {name}", line.replace("{bad}", f"{{bad/{name}}}"), _expected_of(command, name))
    for (folder, file), line in _MANIFESTS.items():
        for name in _JSON:
            named = rf"bad/{folder}-{name}"
            yield Case(f"{folder}: {file}: {name}", line.replace("{bad}", f"{{bad/{folder}-{name}}}"), named)


def _expected_of(command: str, name: str) -> str:
    others = {
        "corpus": "hold no documents|split is empty",
        "prompt": f"prompt '{Path(name).stem}'",
    }
    return rf"bad/{name}|{others.get(command, 'empty|no character')}"


# Prepared folders with a damaged file

Damage = Callable[[Path], Any]


def _at(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :]


def _foreign(content: bytes, token: int) -> bytes:
    tokens = np.frombuffer(content, dtype=np.uint16).copy()
    tokens[len(tokens) // 2] = token
    return tokens.tobytes()


def _with_foreign(name: str) -> Damage:
    def change(folder: Path) -> None:
        arrays = dict(np.load(folder / "train.npz"))
        arrays[name] = np.full(len(arrays[name]), 4_000_000_000, dtype=np.uint32)
        np.savez(folder / "train.npz", **arrays)

    return change


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(change(content.splitlines(keepends=True)))


def _configured(**changes: Any) -> Damage:
    """Change config.json; None removes an entry."""

    def change(content: bytes) -> bytes:
        settings = {**json.loads(content), **changes}
        return json.dumps({name: value for name, value in settings.items() if value is not None}).encode()

    return _at("config.json", change)


_SPM = "sentencepiece.bpe.model"
_FOLDERS: dict[str, dict[str, tuple[Damage, str]]] = {
    "data": {
        "no-index": (_without("train.idx"), r"there is no train.bin with train.idx in"),
        "no-text": (_without("train.bin"), r"there is no train.bin with train.idx in"),
        "no-dictionary": (_without("dict.txt"), "there is no dict.txt in"),
        "index-cut": (_at("train.idx", lambda content: content[:-5]), r"train.idx is damaged: it has"),
        "index-short": (_at("train.idx", lambda content: content[:20]), r"train.idx is damaged: it"),
        "index-empty": (_at("train.idx", lambda content: b""), r"train.idx is damaged: it does not begin"),
        "index-magic": (_at("train.idx", lambda content: _flipped(content, 1)), r"train.idx is damaged: it does not"),
        "index-count": (_at("train.idx", lambda content: _flipped(content, 18)), r"train.idx is damaged: it has"),
        "index-length": (_at("train.idx", lambda content: _flipped(content, 27)), r"train.idx is damaged: its len"),
        "index-offset": (
            _at("train.idx", lambda content: _flipped(content, len(content) - 3)),
            r"its lengths and its",
        ),
        "text-cut": (_at("train.bin", lambda content: content[: len(content) // 2]), r"train.bin has [\d,]+ bytes"),
        "text-odd": (_at("train.bin", lambda content: content[:-1]), r"train.bin has [\d,]+ bytes"),
        "text-foreign": (_at("train.bin", lambda content: _foreign(content, 60_000)), r"train.bin holds token 60000"),
        "text-mask": (_at("train.bin", lambda content: _foreign(content, 601)), r"train.bin holds token 601"),
        "dictionary-order": (_at("dict.txt", _lines(lambda lines: lines[::-1])), "is not the dictionary that"),
        "dictionary-cut": (_at("dict.txt", _lines(lambda lines: lines[:50])), "is not the dictionary that"),
        "dictionary-piece": (
            lambda folder: (
                _at("dict.txt", _lines(lambda lines: [b"foreign 1\n", *lines[1:]]))(folder),
                _without("manifest.json")(folder),
            ),
            f"dict.txt and {_SPM} in .* do not belong",
        ),
        "manifest-empty": (_at("manifest.json", lambda content: b"{}"), "manifest.json is damaged"),
        "model-text": (_at(_SPM, lambda content: b"no model"), f"{_SPM} is not a sentencepiece model"),
        "model-cut": (_at(_SPM, lambda content: content[: len(content) // 2]), f"{_SPM} "),
    },
    "sentences": {
        "index-cut": (_at("input0/train.idx", lambda content: content[:-5]), r"train.idx is damaged: it has"),
        "text-cut": (_at("input0/train.bin", lambda content: content[:-2]), r"train.bin has [\d,]+ bytes"),
        "text-foreign": (_at("input0/train.bin", lambda content: _foreign(content, 60_000)), r"holds token 60000"),
        "labels-cut": (_at("label/train.idx", lambda content: content[:-5]), r"train.idx is damaged: it has"),
    },
    "tagging": {
        "cut": (_at("train.npz", lambda content: content[:-99]), r"train.npz"),
        "foreign": (_with_foreign("pieces"), r"train.npz holds token 4000000000, but dict.txt has only"),
    },
    "squad": {
        "cut": (_at("train.npz", lambda content: content[:-99]), r"train.npz"),
        "foreign": (_with_foreign("question_tokens"), r"train.npz holds token 4000000000, but dict.txt has only"),
    },
    "hf": {
        "no-weights": (_without("model.safetensors"), "there are no weights in"),
        "weights-cut": (_at("model.safetensors", lambda content: content[:-99]), "model.safetensors"),
        "weights-text": (_at("model.safetensors", lambda content: b"text"), "model.safetensors"),
        "no-tokenizer": (_without("tokenizer.json"), "token"),
        "tokenizer-text": (_at("tokenizer.json", lambda content: b"text"), "token"),
        "tokenizer-deep": (_at("tokenizer.json", lambda content: b"[" * 200_000), "token"),
        "deberta": (_configured(model_type="deberta-v2"), "multiplies queries and keys with embeddings of relative"),
        "albert": (_configured(model_type="albert"), "its layers share their weights"),
        "electra-small": (_configured(model_type="electra", embedding_size=8), "its embeddings have width 8"),
        "bert-without-its-weights": (
            _configured(model_type="bert", relative_attention_buckets="none"),
            "its weights lack encoder.layer.0",
        ),
        "distilbert-without-layers": (_configured(model_type="distilbert", num_hidden_layers=None), "num_hidden_lay"),
    },
}
_FOLDER_COMMANDS = {
    "data": f"pretrain {{bad}} --output {{new}} {_TRAIN}",
    "hf": "import {bad} --output {new}",
}


def _folders() -> Iterator[Case]:
    for source, damages in _FOLDERS.items():
        line = _FOLDER_COMMANDS.get(source, "finetune {bad} --checkpoint {pretrained} --output {new} --gpus 0")
        for name, (_, expected) in damages.items():
            bad = f"{{bad/{source}-{name}}}"
            yield Case(f"{source}: {name}", line.replace("{bad}", bad), expected)


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
                line = f"{own} {option}={value}{dashes}{rest}"
                expected = rf"error: argument {option}: .*{re.escape(value)}|must (lie|be)"
                yield Case(f"{name} {option}={value}", line, expected)


def _wrong_values(action: argparse.Action, option: str) -> tuple[str, ...]:
    kind = getattr(action.type, "__qualname__", "")
    if not option or action.nargs is not None:
        return ()
    if kind.startswith("number."):
        return ("nan", "abc") if option in _ANY_NUMBER else ("nan", "abc", "-1")
    if kind == "device_name":
        return ("cuda:99", "meta", "mps", "cpu:1", "gpu")
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


# What belongs to one command

_SINGLE = """
evaluate squad {squad.json} {predictions.json} --output {squad.json} | squad.json exists already
evaluate squad {squad.json} {predictions.json} --output {predictions.json} | predictions.json exists already
predict {squad.json} --checkpoint {reader} --vocabulary {squad} --output {same} --null-odds {same} | two results
predict {squad.json} --checkpoint {reader} --vocabulary {squad} --null-odds {odds.json} | odds.json exists already
predict {sentences.tsv} --checkpoint {pretrained} --vocabulary {data} | give --prompt, or fine-tune it first
predict {sentences.tsv} --checkpoint {classifier} --vocabulary {data} | fine-tuned on another task|no label|there is no
predict {words.conll} --checkpoint {tagger} --vocabulary {data} | was not written by `maelm prepare tagging`
predict {sentences.tsv} --checkpoint {classifier} --vocabulary {sentences} --threshold 1 | is for checkpoints of
predict {pairs.tsv} --checkpoint {classifier} --vocabulary {sentences} | on single texts, .* leave out --text-pair
predict {sentences.tsv} --checkpoint {pair_classifier} --vocabulary {sentences} | on pairs .* with --text and --text-
predict {sentences} --checkpoint {pair_classifier} | on pairs of texts, and .* has single texts: give a task
predict {twice.csv} --text s --checkpoint {classifier} --vocabulary {sentences} | twice.csv:1 has 2 columns named 's'
predict {semicolons.csv} --text s --checkpoint {classifier} --vocabulary {sentences} | give --delimiter ';'
predict {twice.csv} --text t --label u --checkpoint {classifier} --vocabulary {sentences} | has no column 'u', only
predict {squad.json} --report --checkpoint {reader} --vocabulary {squad} | --report needs an input with right labels
prepare sentences --train {twice.csv} --text t --label u --vocabulary {data} --output {new} | has no column 'u', only
predict {tagging} --checkpoint {tagger} | is a folder: give the labeled file
fill 'no mask' --checkpoint {pretrained} --vocabulary {data} | 'no mask' has no <mask> to fill
fill a b --checkpoint {pretrained} --vocabulary {data} | 'a' has no <mask> to fill .2 of 2 texts were refused
prepare sentnces --train {sentences.tsv} | invalid choice: 'sentnces' .*; did you mean sentences.
fill '<mask>' --checkpont {pretrained} --vocabulary {data} | no option --checkpont; did you mean --checkpoint.
prepare corpus {sentences.tsv} --output {new} | sentences.tsv is a table: write its texts to a .txt file
prepare corpus {squad.json} --output {new} | squad.json is one JSON value: write one record a line
fill '<mask>' --checkpoint {classifier} --vocabulary {sentences} | head|fine-tuned|there is no dict.txt
fill '<mask>' --checkpoint {folder} --vocabulary {data} | there is neither checkpoint_best.pt nor checkpoint_last.pt in
answer {text.txt} '' --checkpoint {reader} --vocabulary {data} | a question is empty
answer {text.txt} Who? --checkpoint {pretrained} --vocabulary {data} | was not fine-tuned to answer questions
finetune {data} --checkpoint {pretrained} --output {new} | data is not a prepared task
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --lr abc | the options: argument --lr
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --no-such | the options: .*no-such
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --best-checkpoint-metric f2 | logs no f2, but
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 --precision fp16 | --precision fp16 needs a GPU
pretrain {text.txt} --output {new} --recipe tiny | there is no dict.txt in
pretrain {data} --output {new} | give --recipe, one of
pretrain {data} --output {new} --recipe nowhere | there is no recipe nowhere
pretrain {data} --output {new} --recipe tiny --set lr | give NAME=VALUE
pretrain {data} --output {new} --recipe tiny --set max-update=0 | max-update must be a whole number of at least 1
pretrain {data} --output {new} --recipe tiny --gpus 3 --dry-run | is not a multiple of that
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 99 | --gpus 99, but torch finds
pretrain {data} --output {new} --recipe tiny --gpus 99 | --gpus 99, but torch finds
import {sentences} --output {new} | sentences
export --checkpoint {pretrained} --vocabulary {data} --output {new} --format maelm --head nowhere | --head|nowhere
analyze --checkpoint a={pretrained} --output {new} | --text
analyze --checkpoint {pretrained} --data {data} --output {new} | NAME=
export --checkpoint {pretrained} --vocabulary {data} --output {new} --format fairseq --averaged-weights | holds no
finetune {sentences} --checkpoint {pretrained} --output {new} --recipe SNLI | there is no recipe SNLI
prepare glue {glue} --vocabulary {data} --output {new} --train-file RTE | 'RTE' is not TASK=FILE
prepare glue {glue} --vocabulary {data} --output {new} --train-file SNLI={sentences.tsv} | with a task of CoLA
prepare glue {glue} --vocabulary {data} --output {new} --tasks CoLA | there is no .*CoLA/train.tsv
prepare sentences --train {sentences.tsv} --vocabulary {data} --output {new} --max-length 5 | must be at least 6, not 5
prepare corpus {documents.txt} --output {new} --shards 101 | must be between 1 and 100
evaluate squad {squad.json} {predictions.json} --threshold 0 | give --null-odds
evaluate squad {squad.json} {predictions.json} --null-odds {odds.json} --squad-version 1.1 | has no questions without
predict {text.txt} --keep-labels --checkpoint {tagger} --vocabulary {tagging} | plain text has no labels
predict {words.conll} --column UPOS --checkpoint {tagger} --vocabulary {tagging} | must be a number
analyze --checkpoint a={pretrained} --checkpoint a={pretrained} --data {data} --output {new} | have the same name
analyze --checkpoint a={pretrained} --data {data} --output {new} --layers 0 9 | has no layer 9
probe --checkpoint a={pretrained} --vocabulary {data} --output {new} | nothing to probe
probe --checkpoint a={pretrained} --text {text.txt} --vocabulary {data} --output {new} --layers 9 | has no layer 9
score {text.txt} {pairs.tsv} --checkpoint {pretrained} --vocabulary {data} --output {new} | give either files
score {text.txt} --compare {folder} --checkpoint {pretrained} --vocabulary {data} --output {new} | --compare needs pairs
pretrain {data} --output {new} --recipe tiny --set rate=3 | unrecognized arguments: --rate 3
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} '--options=--dropuot 0.1' | --dropuot
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --only lr=7 | none of these values
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --large | has no search_large
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --gpus 0 --jobs 2 | give neither --jobs nor
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --precision fp16 | fp16 needs a GPU
sweep sentences --data {folder} --checkpoint a={pretrained} --checkpoint a=random --output {new} | have the same name
sweep sentences --data {folder} --checkpoint x=random:y --output {new} | needs a checkpoint for its size
report {data} | has no study
sweep sentences --data {text.txt} --checkpoint a={pretrained} --output {new} | text.txt
"""
_TRAINED = {
    "--criterion masked_lm": "the task maelm cannot use masked_lm: give --criterion maelm",
    "--criterion cross_entropy": r"cannot use cross_entropy \(fairseq's default\): give --criterion maelm",
    "--arch roberta_base": "the task maelm needs a model of this package, which roberta_base is not: give --arch",
    "--arch maelm_huge": "invalid choice: 'maelm_huge'",
    "--task masked_lm --criterion masked_lm": "MaskedLMTask does not work with this model|the options: ",
    "--encoder-mask-fraction 1.5": r"must be in \[0, 1\]",
    "--leave-unmasked-prob -0.1": r"leave_unmasked_prob must be in \[0, 1\]",
    "--leave-unmasked-prob 0.6 --random-token-prob 0.6": "are fractions of the same tokens: their sum must not exceed",
    "--optimizer fused_adamw --adam-betas 0.9": "--adam-betas must be two numbers",
    "--optimizer fused_adamw --adam-betas (0.9,1.0)": r"two numbers in \[0, 1\)",
    "--optimizer fused_adamw --adam-betas (0.9": "--adam-betas must be two numbers",
    "--optimizer fused_adamw --weight-decay -0.1": "must be 0 or more",
    "--optimizer muon --muon-momentum 1.0": r"--muon-momentum must be in \[0, 1\)",
    "--optimizer muon --muon-lr-ratio 0": "--muon-lr-ratio must be positive",
    "--mask-prob 1.5": "mask probability must be between 0 and 1, both excluded, .* 1.5",
    "--tokens-per-sample 1024": "sequences of up to 1024 tokens, but the model has only 32 positions",
    "--tokens-per-sample 131072": "--tokens-per-sample must be between 2 and",
    "--tokens-per-sample 1": "--tokens-per-sample must be between 2 and",
    "--encoder-attention-heads 3": "is not a multiple of its number of attention heads",
    "--relative-num-buckets 6": "number of relative buckets must be a positive multiple",
    "--relative-num-buckets 0": "number of relative buckets .*--relative-buckets none",
    "--relative-num-buckets 32 --relative-max-distance 8": "largest relative distance .8. must exceed",
    "--relative-num-buckets 64 --relative-max-distance 16": "largest relative distance .16. must exceed",
    "--decoder-layers 0": "cannot predict the masked tokens.*--masked-input kept",
    "--encoder-layers 0": "--encoder-layers must be at least 1",
    "--dropout 1.0": "--dropout must be in",
    "--attention-dropout -0.1": "--attention-dropout must be in",
    "--init-std 0": "--init-std must be positive",
    "--embedding-init-std -0.1": "--embedding-init-std must be positive",
    "--layer-norm-eps 0.1": r"--layer-norm-eps must be in \[1e-14, 0.01\]",
    "--rotary-base 1": r"--rotary-base must be in \[2, 2147483647\], not 1",
    "--local-rotary-base 2147483648": "--local-rotary-base must be in",
    "--positions rotary --relative-buckets t5": "--relative-buckets t5 cannot be combined with --positions rotary",
    "--positions rotary --share-decoder-positions": "--share-decoder-positions shares a table",
    "--decoder-positions rotary --share-decoder-positions": "--share-decoder-positions shares a table",
    "--decoder-positions rotary --decoder-attention-heads 128": "heads of even width.*decoder have 1",
    "--bf16": "use --precision bf16",
    "--decoder-attention cross --decoder-layers 0 --masked-input kept": "needs a decoder: --decoder-layers is 0",
    "--share-decoder-positions --decoder-embed-dim 64": "needs a decoder as wide as the encoder",
    "--encoder-mask-fraction 0.5 --masked-input kept": "goes with --masked-input dropped, not with kept",
    # A checkpoint whose size or shape differs: the plugin's message, and not fairseq's.
    "--finetune-from-model {pretrained}": "the checkpoint was trained with --encoder-attention-heads 4 and not 2",
}


def _single() -> Iterator[Case]:
    line = GOOD["predict prompts"].replace("pairs.tsv", "sentences.tsv")
    yield Case("a prompt for pairs, and a table without", line, "has labels where the prompt pair_prompt needs")
    for row in _SINGLE.strip().splitlines():
        line, _, expected = row.partition(" | ")
        yield Case(line, line, expected)
    for options, expected in _TRAINED.items():
        yield Case(f"pretrain {options}", f"pretrain {{data}} --output {{new}} {_TRAIN} {options}", expected)


# The hub

NAN = float("nan")
TOKENS = torch.tensor([0, 5, 6, 2])
HUB: dict[str, list[tuple[str, str]]] = {
    "pretrained": [
        ("hub.encode(None)", "number 1 of the texts is None"),
        ("hub.encode(3)", "3 .int., not a string"),
        ("hub.encode(b'a')", "not a string"),
        ("hub.encode(['a'])", "is list, not a string"),
        ("hub.encode('a', None)", "number 2 of the texts is None"),
        ("hub.encode('\\ud83d')", "half of a surrogate pair"),
        ("hub.encode('a ' * 30, 'b', 'c', max_length=12)", "a single text or a pair can be truncated, not 3 texts"),
        ("hub.encode('a', max_length=2)", "max_length must be at least 3"),
        ("hub.encode('a', max_length='9')", "max_length must be a whole number of tokens, not '9'"),
        ("hub.encode_batch('abc')", "sentences must be a list of strings, not 'abc'"),
        ("hub.encode_batch(None)", "sentences must be a list of strings, not None"),
        ("hub.encode_batch([])", "the list of sentences is empty"),
        ("hub.encode_batch(['a', None])", "number 2 of the sentences is None"),
        ("hub.encode_batch([['a', 'b']])", "number 1 of the sentences is list"),
        ("hub.decode([0, 5])", "decode takes tokens as <int64>.n., not list"),
        ("hub.decode(TOKENS[None])", r"not <int64>\[1, 4\]"),
        ("hub.decode(TOKENS.float())", r"not <float32>\[4\]"),
        ("hub.decode(torch.tensor([0, 99999]))", "takes tokens from 0 to 601, not 99999"),
        ("hub.decode(torch.tensor([-1]))", "takes tokens from 0 to 601, not -1"),
        ("hub.extract_features('abc')", "not str"),
        ("hub.extract_features(None)", "not NoneType"),
        ("hub.extract_features(TOKENS[:0])", "needs at least one token"),
        ("hub.extract_features(TOKENS.float())", "not <float32>"),
        ("hub.extract_features(torch.tensor([0, 602, 2]))", "takes tokens from 0 to 601, not 602"),
        ("hub.extract_features(torch.tensor([[0, -7, 2]]))", "takes tokens from 0 to 601, not -7"),
        ("hub.extract_features(TOKENS[None, None])", r"not <int64>\[1, 1, 4\]"),
        (
            "hub.extract_features(torch.full((1, 65), 5))",
            "65 tokens and the model has 64 positions: .*encode.*max_length=64",
        ),
        ("hub.fill_mask(None)", "texts must be a list of strings, not None"),
        ("hub.fill_mask(3)", "texts must be a list of strings, not 3"),
        ("hub.fill_mask([])", "fill_mask needs at least one text"),
        ("hub.fill_mask('no mask')", "'no mask' has no <mask> to fill"),
        ("hub.fill_mask(['<mask>', 'none'])", "'none' has no <mask> to fill"),
        ("hub.fill_mask(['<mask>', None])", "number 2 of the texts is None"),
        ("hub.fill_mask('<mask>', topk=-1)", "a topk of at least 1, not 1 and -1"),
        ("hub.fill_mask('<mask>', topk=0)", "a topk of at least 1"),
        ("hub.fill_mask('<mask>', topk='5')", "a topk of at least 1, not 1 and '5'"),
        ("hub.fill_mask('<mask>\\udc00')", "half of a surrogate pair"),
        ("hub.fill_mask('<mask> ' * 80)", "tokens and the model has 64 positions"),
        ("broken.fill_mask('<mask>')", "the model's probabilities are not finite"),
        ("hub.predict('head', TOKENS)", "the model has no head 'head' .it has: none"),
        ("hub.predict(None, TOKENS)", "the model has no head None"),
        ("hub.classify(['a'])", "the model has no head 'sentence_classification_head'"),
        ("hub.register_classification_head('a.b', 2)", "must be a string without dots, not 'a.b'"),
        ("hub.register_classification_head('', 2)", "must be a string without dots, not ''"),
        ("hub.register_classification_head(None, 2)", "must be a string without dots, not None"),
        ("hub.register_classification_head('a', 0)", "must have at least 1 output"),
        ("hub.register_classification_head('a', -1)", "must have at least 1 output"),
        ("world.hub('pretrained', dropuot=0.1)", "'dropuot' is an option of neither the task maelm nor the model"),
        ("world.hub('pretrained', dropout=2.0)", "dropout"),
        ("world.hub('nowhere')", "there is no checkpoint"),
        ("classify_by_prompt(hub, ['a'])", "the checkpoint was not fine-tuned with a prompt: give one"),
        ("classify_by_prompt(hub, ['a'], 'nowhere')", "there is no prompt 'nowhere'"),
        ("classify_by_prompt(hub, 'abc', PROMPT, WORDS, True)", "not 'abc'"),
        ("classify_by_prompt(hub, [None], PROMPT, WORDS, True)", "number 1 of the texts is None"),
        ("classify_by_prompt(hub, [3], PROMPT, WORDS, True)", "number 1 of the texts is 3"),
        ("classify_by_prompt(hub, ['\\ud800'], PROMPT, WORDS, True)", "half of a surrogate pair"),
        ("classify_by_prompt(hub, ['a'], PAIR, WORDS, True)", "sentence"),
        ("classify_by_prompt(hub, ['a'], PROMPT, WORDS, True, -1)", "batch_size must be at least 1, not -1"),
        ("classify_by_prompt(hub, ['a'], PROMPT, WORDS, True, 0)", "batch_size must be at least 1, not 0"),
        ("classify_by_prompt(hub, ['a'], 'no mask', WORDS)", "mask"),
        ("classify_by_prompt(hub, ['a'], PROMPT, {'a': 'old'})", "at least two labels with a word each"),
        ("hub.embed('abc')", "sentences must be a list of strings, not 'abc'"),
        ("hub.embed([])", "the list of sentences is empty"),
        ("hub.embed(['a'], pooling='last')", "pooling must be 'mean' or 'first', not 'last'"),
        ("hub.embed(['a ' * 80])", "tokens and the model has 64 positions"),
        ("answer(hub, 'Who?', 'A text.')", "was not fine-tuned to answer questions"),
    ],
    "classifier": [
        ("hub.classify([('a', 'b')])", "the checkpoint was trained on single texts, not tuples of two"),
        ("hub.classify('abc')", "not 'abc'"),
        ("hub.classify(None)", "not None"),
        ("hub.classify([None])", "number 1 of the texts is None"),
        ("hub.classify([('a', None)])", "number 2 of the parts of number 1 of the texts is None"),
        ("hub.classify(['\\ud800'])", "half of a surrogate pair"),
        ("hub.classify(['a'], head='nowhere')", "the model has no head 'nowhere'"),
        ("hub.predict('sentence_classification_head', [0, 5])", "predict takes tokens as .*, not list"),
        ("hub.predict('sentence_classification_head', torch.tensor([9999]))", "not 9999"),
        ("hub.fill_mask('<mask>')", "head|fine-tuned"),
    ],
    "reader": [
        ("answer(hub, '', 'A text.')", "a question is empty"),
        ("answer(hub, 'Who?', '')", "no character that could be an answer"),
        ("answer(hub, None, 'A text.')", "number 1 of the questions is None"),
        ("answer(hub, 'Who?', None)", "the context is None"),
        ("answer(hub, 'Who?', 3)", "the context is 3"),
        ("answer(hub, 'Who?', '\\ud800')", "the context holds half of a surrogate pair"),
        ("answer(hub, 'Who?', 'A text.', NAN)", "the threshold must be a number of logits, or infinity, not NaN"),
        ("answer_questions(hub, 'A text.', 'Who?')", "questions must be a list of strings, not 'Who.'"),
        ("answer_questions(hub, 'A text.', [3])", "number 1 of the questions is 3"),
    ],
}
