"""The batches of every fine-tuning task hold little padding."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from end_to_end.toy import TOPICS, sentence
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_maelm import cli
from fairseq_maelm.data.length_buckets import padding_share
from fairseq_maelm.training.options import parse_training

VOCABULARY = Path(__file__).resolve().parents[1] / "end_to_end" / "kept" / "data"
EXAMPLES = 480


def texts(number: int, words: int, seed: int) -> list[str]:
    """Draw texts about topics whose lengths spread as those of real ones do: their logarithm's deviation is 0.5."""
    generator = random.Random(seed)
    counts = np.random.default_rng(seed).lognormal(np.log(words), 0.5, number).astype(int).clip(4, 300)
    long = [[word for _ in range(60) for word in sentence(random_topic(generator), generator).split()] for _ in counts]
    return [" ".join(own[:count]) for own, count in zip(long, counts)]


def random_topic(generator: random.Random) -> str:
    return generator.choice(sorted(TOPICS))


def write_pairs(folder: Path) -> list[str]:
    for split, number in (("train", EXAMPLES), ("valid", 64)):
        rows = zip(texts(number, 15, 1), texts(number, 12, 2), ["yes", "no"] * number)
        (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return ["sentences", "--train", f"{folder}/train.tsv", "--valid", f"{folder}/valid.tsv"]


def write_questions(folder: Path) -> list[str]:
    def paragraph(number: int, text: str) -> dict:
        answer = {"text": text.split()[3], "answer_start": len(" ".join(text.split()[:3])) + 1}
        question = {"id": str(number), "question": "Who is it?", "answers": [answer], "is_impossible": False}
        return {"context": text, "qas": [question]}

    for split, number in (("train", EXAMPLES), ("valid", 64)):
        paragraphs = [paragraph(place, text) for place, text in enumerate(texts(number, 60, 3))]
        content = {"version": "v2.0", "data": [{"title": "all", "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
    return ["squad", "--train", f"{folder}/train.json", "--valid", f"{folder}/valid.json"]


def write_labels(folder: Path) -> list[str]:
    for split, number in (("train", EXAMPLES), ("valid", 64)):
        blocks = ["".join(f"{word} {word[0].upper()}\n" for word in text.split()) for text in texts(number, 15, 4)]
        (folder / split).write_text("\n".join(blocks))
    return ["tagging", "--train", f"{folder}/train", "--valid", f"{folder}/valid"]


PREPARED: dict[str, Callable[[Path], list[str]]] = {
    "sentences": write_pairs,
    "squad": write_questions,
    "tagging": write_labels,
}
PROMPT = """
template: '*cls**sent_0*_This_is_near_the*mask*.*sep+*'
label_words: {harbor: harbour, bread: oven of bread}
metrics: [accuracy]
max_length: 128
"""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """For each kind of task the words after fairseq-train, of folders prepared as a user prepares them."""
    found = {}
    for kind, write in PREPARED.items():
        folder, task = (tmp_path_factory.mktemp(name) for name in (kind, f"{kind}_task"))
        cli.main(["prepare", *write(folder), "--vocabulary", str(VOCABULARY), "--output", str(task / "task")])
        found[kind] = [str(task / "task"), "--task", f"maelm_{kind}", "--criterion", f"maelm_{kind}"]
    folder = tmp_path_factory.mktemp("prompt")
    (folder / "prompt.yaml").write_text(PROMPT)
    for split, number in (("train", EXAMPLES), ("valid", 64)):
        rows = zip(texts(number, 15, 5), ["harbor", "bread"] * number)
        (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    own = ["--prompt", f"{folder}/prompt.yaml", "--examples", str(folder), "--several-pieces"]
    found["prompt"] = [str(VOCABULARY), "--task", "maelm_prompt", "--criterion", "maelm_prompt", *own]
    return found


MOST_PADDING = {"sentences": 0.08, "squad": 0.08, "tagging": 0.08, "prompt": 0.16}


@pytest.mark.parametrize("kind", MOST_PADDING)
def test_batches_hold_little_padding_and_change_in_training_alone(kind: str, training: dict[str, list[str]]) -> None:
    words = [*training[kind], "--arch", "maelm_tiny", "--cpu"]
    orders = {}
    # What is trained on is an option, and the same split may also be measured.
    for trained, split, combine in (("valid", "valid", True), ("train", "train", False), ("train", "train", True)):
        config = convert_namespace_to_omegaconf(parse_training([*words, "--train-subset", trained]))
        task = tasks.setup_task(config.task)
        task.longest = 512
        task.load_dataset(split, combine=combine)
        dataset = task.dataset(split)
        for epoch in (2, 1):
            dataset.set_epoch(epoch)
            orders[split, combine, epoch] = dataset.ordered_indices().tolist()
        assert (orders[split, combine, 1] != orders[split, combine, 2]) == combine
        assert sorted(orders[split, combine, 1]) == sorted(orders[split, combine, 2])
    shuffled = np.array_split(np.random.default_rng(1).permutation(len(dataset)), len(dataset) // 16)
    assert padding_share(shuffled, dataset.sizes) > 0.4
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=16)
    assert padding_share(batches, dataset.sizes) < MOST_PADDING[kind]
