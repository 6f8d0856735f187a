"""A small world for tests through the real commands: a corpus that can be learned, and what starts and reads commands.

The text is made of sentences about a few topics. Who acts, how, and where depends on the topic, so masked words can be
guessed from the words around them, and a sentence's topic from its words.
"""

import json
import os
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fairseq_maelm
from end_to_end import process_server

USER_DIR = Path(fairseq_maelm.__file__).resolve().parent
ROOT = USER_DIR.parent

# topic: (who, with what, does, where, how)
TOPICS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sea": (
        ("sailor", "captain", "fisherman", "diver"),
        ("net", "anchor", "rope", "compass"),
        ("sails", "steers", "rows", "dives"),
        ("harbour", "island", "reef", "lighthouse"),
        ("windward", "offshore"),
    ),
    "kitchen": (
        ("cook", "baker", "waiter", "butcher"),
        ("knife", "spoon", "kettle", "pan"),
        ("bakes", "fries", "slices", "serves"),
        ("oven", "stove", "pantry", "table"),
        ("slowly", "hungrily"),
    ),
    "court": (
        ("judge", "lawyer", "clerk", "witness"),
        ("statute", "ruling", "oath", "appeal"),
        ("argues", "testifies", "objects", "decides"),
        ("bench", "chamber", "dock", "registry"),
        ("solemnly", "unanimously"),
    ),
    "garden": (
        ("gardener", "beekeeper", "botanist", "farmer"),
        ("spade", "rake", "hose", "basket"),
        ("digs", "plants", "waters", "prunes"),
        ("orchard", "meadow", "hedge", "greenhouse"),
        ("patiently", "outdoors"),
    ),
}
_MORNINGS = ("morning", "afternoon", "evening", "night")


def sentence(topic: str, generator: random.Random) -> str:
    """Return one sentence about a topic."""
    who, tool, does, where, how = (generator.choice(words) for words in TOPICS[topic])
    time = generator.choice(_MORNINGS)
    return generator.choice(
        (
            f"In the {time} the {who} {does} {how} with a {tool} near the {where}.",
            f"The {who} takes the {tool} to the {where} and {does} until {time}.",
            f"Every {time} a {who} {does} at the {where}; the {tool} is old.",
        )
    )


def write_corpus(path: Path, documents: int = 300, seed: int = 1) -> None:
    """Write documents of 3 to 8 paragraphs on one topic each, a blank line between documents."""
    generator = random.Random(seed)
    texts = []
    for _ in range(documents):
        topic = generator.choice(sorted(TOPICS))
        paragraphs = [
            " ".join(sentence(topic, generator) for _ in range(generator.randint(1, 4)))
            for _ in range(generator.randint(3, 8))
        ]
        texts.append("\n".join(paragraphs))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def metrics_in(output: str) -> dict[str, float]:
    """Return the metrics that ``maelm predict`` has logged."""
    (line,) = re.findall(r"^[0-9:]+ \| metrics: (.*)$", output, re.MULTILINE)
    return dict(json.loads(line))


def run(
    command: Sequence[Any],
    *,
    cwd: Path | None = None,
    check: bool = True,
    timeout: float = 600,
    environment: dict[str, str] | None = None,
    verbose: bool = True,
) -> str:
    """Run a command as a user does, on one thread, and return its standard output and error together.

    Args:
        command: its words. "maelm" is the package's own command line, "python" the tests' interpreter. "fairseq-..."
            get "--user-dir" as first option where they take one.
        cwd: the folder to run in; by default the system's root, so that nothing is found by accident.
        check: fail the test when the command fails; otherwise fail it when the command succeeds.
        timeout: seconds.
        environment: variables to add.
        verbose: whether ``maelm pretrain`` and ``maelm finetune`` show fairseq's whole log, which tests read.
    """
    words = resolve([str(word) for word in command])
    if verbose and words[1:2] in (["pretrain"], ["finetune"]):
        words.insert(2, "--verbose")
    done = subprocess.run(
        words, cwd=cwd or os.sep, env=command_environment(environment), encoding="utf-8", timeout=timeout, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if (done.returncode == 0) != check:
        expected = "failed" if check else "should have failed"
        pytest.fail(f"{' '.join(words)}\n{expected} (exit status {done.returncode}):\n{done.stdout[-6000:]}")
    return done.stdout


def command_environment(added: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a user's shell in which the virtual environment is active."""
    variables = {name: value for name, value in os.environ.items() if name != "MAELM_VENV"}
    path = os.pathsep.join([str(process_server.programs()), variables.get("PATH", os.defpath)])
    return {**variables, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(added or {})}


def resolve(words: list[str]) -> list[str]:
    """Return the words of a command, with "--user-dir" where fairseq's commands take it."""
    name, *rest = words
    takes_user_dir = name in {"fairseq-train", "fairseq-validate"} and "--user-dir" not in rest
    return [name, "--user-dir", str(USER_DIR), *rest] if takes_user_dir else words


def train_log(output: str) -> list[dict[str, Any]]:
    """Read the metrics that fairseq wrote under ``--log-format json``, in order, numbers as floats.

    Each entry has "split": "train_inner" for every --log-interval, "train" for an epoch, "valid" for validation.
    """
    entries = []
    for line in output.splitlines():
        *head, text = line.split(" | ", 3)
        if len(head) != 3 or not text.startswith('{"'):
            continue
        metrics = {name: _number(value) for name, value in json.loads(text).items()}
        entries.append({**metrics, "split": head[2].strip()})
    return entries


def losses(output: str, split: str = "train_inner", name: str = "loss") -> list[float]:
    """Return one metric of a split in the order it was logged."""
    prefix = {"train_inner": "", "train": "train_", "valid": "valid_"}[split]
    return [entry[prefix + name] for entry in train_log(output) if entry["split"] == split]


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy corpus after ``maelm prepare corpus``: the data folder, with about 400 symbols."""
    folder = tmp_path_factory.mktemp("toy")
    write_corpus(folder / "text.txt")
    run(
        ["maelm", "prepare", "corpus", folder / "text.txt", "--output", folder / "data", "--vocabulary-size", 400]
        + ["--valid-fraction", 0.1, "--workers", 1]
    )
    return folder / "data"


# The options of a short pretraining run of maelm_tiny: seconds on one core, and the loss falls.
TINY_TRAINING = [
    *["--task", "maelm", "--arch", "maelm_tiny", "--criterion", "maelm", "--tokens-per-sample", "64"],
    *["--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--clip-norm", "2.0"],
    *["--lr-scheduler", "polynomial_decay", "--lr", "1e-3", "--warmup-updates", "10", "--total-num-update", "1000"],
    *["--batch-size", "16", "--cpu", "--num-workers", "0", "--log-format", "json", "--log-interval", "1"],
    *["--seed", "1", "--no-epoch-checkpoints"],
]
