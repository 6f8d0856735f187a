"""``maelm pretrain`` and ``maelm finetune`` as functions, for notebooks and programs.

Each function runs its command in a subprocess, because fairseq-train changes the arguments, logging and random state of
its process, starts more processes for several GPUs, and may run out of memory. The notebook's state stays unchanged,
and GPU memory is freed at the end.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.launch.command_line import spelled, words_of

# A child process, which ends with its parent, whose id is the first argument.
_CHILD = """
import sys, threading
from fairseq_maelm.cli import command
from fairseq_maelm.corpus.steps import leave_with_parent
threading.Thread(target=leave_with_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
command()
"""


def pretrain(data: Any, output: Any, *, fairseq_options: Mapping[str, Any] | None = None, **options: Any) -> Path:
    """Pretrain an encoder as ``maelm pretrain`` does; the same call resumes an interrupted run.

    Args:
        data: folder written by ``maelm prepare corpus``.
        output: folder for the checkpoints.
        fairseq_options: further options of fairseq-train, such as ``{"log-interval": 10}``, as after ``--``.
        **options: options of the command, with underscores, such as ``recipe="modern_17m"`` and
            ``set={"max-update": 1000}``.

    Returns:
        The folder of the checkpoints, which ``MaelmModel.from_pretrained`` opens.

    Raises:
        ValueError: an option is wrong.
        RuntimeError: the training failed; the message is that of the command.
    """
    return _run("pretrain", [str(data)], Path(output), options, fairseq_options)


def finetune(
    task: Any, checkpoint: Any, output: Any, *, fairseq_options: Mapping[str, Any] | None = None, **options: Any
) -> Path:
    """Fine-tune a checkpoint on a prepared task as ``maelm finetune`` does; the same call resumes an interrupted run.

    Args:
        task: task folder written by a ``maelm prepare`` command.
        checkpoint: pretrained checkpoint, or the name of an encoder that comes with this package.
        output: folder for the checkpoints.
        fairseq_options: as for ``pretrain``.
        **options: options of the command, with underscores: ``lr=1e-5``, ``batch_size=32``, ``gpus=1``.

    Returns:
        The folder of the checkpoints, which ``MaelmModel.from_pretrained`` opens.

    Raises:
        ValueError: an option is wrong.
        RuntimeError: the training failed; the message is that of the command.
    """
    return _run("finetune", [str(task), "--checkpoint", str(checkpoint)], Path(output), options, fairseq_options)


def _run(name: str, words: list[str], output: Path, options: Mapping[str, Any], more: Mapping[str, Any] | None) -> Path:
    """Run a command and copy its messages to standard output, which notebooks show."""
    command = [sys.executable, "-c", _CHILD, str(os.getpid()), name, *words, "--output", str(output), *_words(options)]
    command += ["--", *_words(more)] if more else []
    said = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                said = line.strip() or said
        except BaseException:  # such as the notebook's interrupt
            process.terminate()
            raise
    if process.returncode:
        error = re.sub(rf"^maelm {name}: error: ", "", said)
        raise (ValueError if process.returncode == 2 else RuntimeError)(error or f"exit status {process.returncode}")
    return output


def _words(options: Mapping[str, Any]) -> list[str]:
    """Convert options to command-line words: a mapping to NAME=VALUE words, a list to one word per item."""
    words = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, Mapping):
            value = [f"{key}={spelled(each)}" for key, each in value.items()]
        if isinstance(value, (list, tuple)):
            words += [f"--{option}", *map(spelled, value)]
        else:
            words += words_of({option: value})
    return words
