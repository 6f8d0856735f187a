"""The task of sentences: fairseq's own folder and options."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from support import dictionary_of

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.files.prepared_folder import FORMAT
from fairseq_maelm.finetuning.sentences.prepare import label_dictionary, write_split
from fairseq_maelm.finetuning.sentences.task import HEAD, SentencesCriterion, SentencesCriterionConfig
from fairseq_maelm.models.labels import Classes, Numbers

VOCABULARY, EXAMPLES = 40, 600
NAMES = ("no", "perhaps", "yes")
LABELS = Classes(NAMES)
LIMIT = ["--tokens-per-sample", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of sentences of 1 to 40 tokens, and their labels."""
    path: Path = tmp_path_factory.mktemp("pairs")
    generator = np.random.default_rng(0)
    for split in ("train", "valid"):
        pairs = [
            [np.append(generator.integers(4, VOCABULARY - 1, n), 2).astype(np.uint16) for n in lengths]
            for lengths in generator.integers(1, 40, (EXAMPLES, 2))
        ]
        write_split(path, split, zip(pairs, itertools.cycle(NAMES)), VOCABULARY, LABELS)
    dictionary = dictionary_of(VOCABULARY)
    for name in ("input0", "input1"):
        dictionary.save(str(path / name / "dict.txt"))
    label_dictionary(NAMES).save(str(path / "label" / "dict.txt"))
    return path


def task_of(folder: Path, *words: str, task: str = "maelm_sentences", starts: bool = False) -> Any:
    """The task as fairseq-train sets it up, or, if it starts to train, the model."""
    command = [str(folder), "--task", task, "--criterion", task, "--arch", "maelm_tiny", *words]
    parsed = options.parse_args_and_arch(options.get_training_parser(), command)
    config = convert_namespace_to_omegaconf(parsed)
    made = tasks.setup_task(config.task)
    model = made.build_model(config.model)
    if starts:
        made.build_criterion(config.criterion)
    return model if starts else made


class Scores(torch.nn.Module):
    """A model that returns its input as scores."""

    def forward(self, src_tokens: torch.Tensor, **options: Any) -> Any:
        return src_tokens, {}


def test_balanced_classes_weigh_the_same(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In training only: 1 on average, whatever the classes' numbers of examples; also where the head starts."""
    rare = Path(shutil.copytree(folder, tmp_path / "rare"))
    pair = [np.array([5, 2], dtype=np.uint16)] * 2
    write_split(rare, "corpus", ((pair, label) for label in ["no"] * 6 + ["perhaps"] * 3 + ["yes"]), VOCABULARY, LABELS)
    criterion = SentencesCriterion(
        SentencesCriterionConfig(class_weights="balanced"), task_of(rare, "--train-subset", "corpus")
    )
    assert criterion.class_weights == pytest.approx([10 / 18, 10 / 9, 10 / 3])
    scores, target = torch.randn(10, 3), torch.tensor([0] * 6 + [1] * 3 + [2])
    sample = {
        "id": torch.arange(10),
        "net_input": {"src_tokens": scores},
        "target": target,
        "ntokens": 1,
        "nsentences": 10,
    }
    losses = torch.nn.functional.cross_entropy(scores, target, reduction="none")
    for training, expected in ((True, losses @ torch.tensor(criterion.class_weights)[target]), (False, losses.sum())):
        found, size, _ = criterion(Scores().train(training), sample)
        torch.testing.assert_close(found, expected)
        assert size == 10
    # All texts are equal, so that the start knows the classes' numbers only; without a checkpoint, it begins at random.
    start = "--train-subset", "corpus", "--head-start", "frozen", "--save-dir", str(tmp_path)
    with caplog.at_level("INFO"):
        models = [task_of(rare, *start, "--class-weights", each, starts=True) for each in ("none", "balanced")]
    shares = [model.classification_heads[HEAD].out_proj.bias.softmax(0).tolist() for model in models]
    assert shares == [pytest.approx([0.6, 0.3, 0.1], abs=0.01), pytest.approx([1 / 3] * 3, abs=0.01)]
    assert caplog.text.count("the frozen encoder has random weights") == 2


def test_examples_are_those_of_fairseqs_task(folder: Path) -> None:
    samples = []
    # With the options of RoBERTa's recipe.
    stock = ["--num-classes", "3", "--init-token", "0", "--separator-token", "2"]
    for task in (task_of(folder, *stock, task="sentence_prediction"), task_of(folder)):
        task.load_dataset("train")
        dataset = task.dataset("train")
        samples.append(dataset.collater([dataset[number] for number in (0, 7, EXAMPLES - 1)]))
    stock, own = samples
    assert torch.equal(stock["net_input"]["src_tokens"], own["net_input"]["src_tokens"])
    assert torch.equal(stock["net_input"]["src_lengths"], own["net_input"]["src_lengths"])
    assert torch.equal(stock["target"].view(-1), own["target"])
    assert stock["ntokens"] == own["ntokens"]


def test_long_examples_are_cut_where_they_are_longer(folder: Path) -> None:
    whole, short = task_of(folder), task_of(folder, *LIMIT)
    assert (whole.max_positions(), short.max_positions()) == (512, 20)
    for task in (whole, short):
        task.load_dataset("valid")
    lengths, limited = (task.dataset("valid").sizes for task in (whole, short))
    assert limited.tolist() == np.minimum(lengths, 20).tolist()
    assert short.dataset("valid").cut == int((lengths > 20).sum()) > 0
    tokens = short.dataset("valid").collater([int(np.argmax(lengths))])["net_input"]["src_tokens"][0].tolist()
    assert len(tokens) == 20 and tokens.count(2) == 3, "all end symbols stay"


@pytest.mark.parametrize(("prepared", "words", "longest"), [(30, [], 30), (30, LIMIT, 20)])
def test_predictions_are_cut_like_the_prepared_examples(
    prepared: int, words: list[str], longest: int, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "task")
    manifest = {"kind": "sentences", "format": FORMAT, "files": {}, "outputs": {}}
    write_json(tmp_path / "task" / "manifest.json", {**manifest, "settings": {"max_length": prepared}})
    task = task_of(tmp_path / "task", *words)
    assert (task.max_positions(), task.cfg.tokens_per_sample) == (longest, longest)


def test_numbers_where_the_folder_has_no_classes(folder: Path, tmp_path: Path) -> None:
    tokens = [np.array([5, 6, 2], dtype=np.uint16)]
    write_split(tmp_path, "train", [(tokens, "0.25"), (tokens, "-1.0")], VOCABULARY, Numbers())
    dictionary_of(VOCABULARY).save(str(tmp_path / "input0" / "dict.txt"))
    task = task_of(tmp_path)
    task.load_dataset("train")
    assert task.dataset("train").collater([0, 1])["target"].tolist() == [0.25, -1.0]
    write_split(tmp_path, "train", [(tokens, "0.25")], VOCABULARY, Numbers())
    with pytest.raises(ValueError, match="has 1 row to learn numbers from: prepare it with at least 2"):
        task_of(tmp_path, "--head-start", "frozen", "--save-dir", str(tmp_path / "run"), starts=True)


def test_a_split_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no .*input0/test.idx: prepare the task with the split test"):
        task_of(folder).load_dataset("test")
