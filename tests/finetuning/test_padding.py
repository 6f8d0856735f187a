"""The batches of every fine-tuning task hold little padding."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_maelm import cli
from fairseq_maelm.data.batches import padding_share
from fairseq_maelm.launch.command_line import parse_training
from finetuning.vocabulary import VOCABULARY

SIZES = {"train": 480, "valid": 64}
WORDS = ["the", "sailor", "takes", "a", "compass", "to", "harbour", "and", "until"]


def texts(number: int, words: int, seed: int) -> list[str]:
    """Draw texts whose lengths spread as those of real ones do: their logarithm's deviation is 0.5."""
    generator = np.random.default_rng(seed)
    counts = generator.lognormal(np.log(words), 0.5, number).astype(int).clip(4, 300)
    return [" ".join(generator.choice(WORDS, count)) for count in counts]


def write_pairs(folder: Path, split: str, number: int) -> Path:
    rows = zip(texts(number, 15, 1), texts(number, 12, 2), ["yes", "no"] * number)
    return write(folder / f"{split}.tsv", "".join("\t".join(row) + "\n" for row in rows))


def write_questions(folder: Path, split: str, number: int) -> Path:
    def paragraph(identity: int, text: str) -> dict:
        answer = {"text": text.split()[0], "answer_start": 0}
        return {"context": text, "qas": [{"id": str(identity), "question": "Who is it?", "answers": [answer]}]}

    paragraphs = [paragraph(identity, text) for identity, text in enumerate(texts(number, 60, 3))]
    return write(folder / f"{split}.json", json.dumps({"data": [{"paragraphs": paragraphs}]}))


def write_labels(folder: Path, split: str, number: int) -> Path:
    blocks = ["".join(f"{word} {word[0].upper()}\n" for word in text.split()) for text in texts(number, 15, 4)]
    return write(folder / split, "\n".join(blocks))


def write_prompts(folder: Path, split: str, number: int) -> Path:
    rows = zip(texts(number, 15, 5), ["harbor", "bread"] * number)
    return write(folder / f"{split}.tsv", "".join("\t".join(row) + "\n" for row in rows))


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


# How a kind's files are written, and the largest share of padding.
KINDS: dict[str, tuple[Callable[[Path, str, int], Path], float]] = {
    "sentences": (write_pairs, 0.08),
    "squad": (write_questions, 0.08),
    "tagging": (write_labels, 0.08),
    "prompt": (write_prompts, 0.16),
}
PROMPT = {
    "template": "*cls**sent_0*_This_is_near_the*mask*.*sep+*",
    "label_words": {"harbor": "harbour", "bread": "oven of bread"},
    "max_length": 128,
}


def training_words(kind: str, folder: Path) -> list[str]:
    """Write and prepare a task as a user does, and return the words after fairseq-train."""
    write_split, _ = KINDS[kind]
    files = {f"--{split}": str(write_split(folder, split, number)) for split, number in SIZES.items()}
    task = ["--task", f"maelm_{kind}", "--criterion", f"maelm_{kind}"]
    if kind == "prompt":
        prompt = write(folder / "prompt.json", json.dumps(PROMPT))
        return [str(VOCABULARY), *task, "--prompt", str(prompt), "--examples", str(folder), "--several-pieces"]
    words = [word for option in files.items() for word in option]
    cli.main(["prepare", kind, *words, "--vocabulary", str(VOCABULARY), "--output", str(folder / "task")])
    return [str(folder / "task"), *task]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_hold_little_padding_and_change_in_training_alone(kind: str, tmp_path: Path) -> None:
    words = [*training_words(kind, tmp_path), "--arch", "maelm_tiny", "--cpu"]
    task = tasks.setup_task(convert_namespace_to_omegaconf(parse_training(words)).task)
    task.longest = 512
    # The split that is trained on may also be measured.
    for split, combine in (("valid", True), ("train", False), ("train", True)):
        task.load_dataset(split, combine=combine)
        dataset = task.dataset(split)
        orders = []
        for epoch in (2, 1):
            dataset.set_epoch(epoch)
            orders.append(dataset.ordered_indices().tolist())
        assert (orders[0] != orders[1]) == (split == "train" and combine)
        assert sorted(orders[0]) == sorted(orders[1])
    shuffled = np.array_split(np.random.default_rng(1).permutation(len(dataset)), len(dataset) // 16)
    assert padding_share(shuffled, dataset.sizes) > 0.4
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=16)
    assert padding_share(batches, dataset.sizes) < KINDS[kind][1]
