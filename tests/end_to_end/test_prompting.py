"""Prompting through the real commands: fine-tuning with decoder and head, reloaded, scored."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from end_to_end.small import OWN_SIZES
from end_to_end.test_finetuning import topic_of_a_sentence, write_tables
from end_to_end.toy import TINY_TRAINING, losses, metrics_in, run
from fairseq_maelm import MaelmHubInterface, MaelmModel, cli
from fairseq_maelm.finetuning.prompting.inference import classify_by_prompt
from fairseq_maelm.finetuning.prompting.task import PromptTask, PromptTaskConfig

PROMPT = """
template: '*cls**sent_0*_This_is_near_the*mask*.*sep+*'
label_words: {sea: harbour, kitchen: oven, court: bench, garden: orchard}
metrics: [accuracy, mcc]
max_length: 64
"""
WORDS = {"sea": "harbour", "kitchen": "oven", "court": "bench", "garden": "orchard"}
TEMPLATE = "*cls**sent_0*_This_is_near_the*mask*.*sep+*"
UPDATES = 60


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with topics.yaml, and the tables of which topic a sentence is about."""
    folder = tmp_path_factory.mktemp("topics")
    (folder / "topics.yaml").write_text(PROMPT)
    write_tables(folder, topic_of_a_sentence, (160, 42))
    return folder


def training(data: Path, task: Path, checkpoint: Path, save_dir: Path, *options: Any) -> list[Any]:
    """The command of prompt-based fine-tuning, a validation every ten updates, no dropout."""
    return [
        *["fairseq-train", data, "--task", "maelm_prompt", "--criterion", "maelm_prompt", "--arch", "maelm_tiny"],
        *["--prompt", task / "topics.yaml", "--examples", task, "--several-pieces", "--save-dir", save_dir],
        *["--finetune-from-model", checkpoint, "--batch-size", 16, "--required-batch-size-multiple", 1],
        *["--optimizer", "fused_adamw", "--lr", "1e-3", "--lr-scheduler", "polynomial_decay", "--clip-norm", "1.0"],
        *["--total-num-update", UPDATES, "--max-update", UPDATES, "--no-epoch-checkpoints", "--cpu"],
        *["--validate-interval-updates", 10, "--save-interval-updates", 10, "--keep-interval-updates", 1],
        *["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric", "--num-workers", 0],
        *["--log-format", "json", "--log-interval", 1, "--dropout", 0, "--attention-dropout", 0, *options],
    ]


@pytest.fixture(scope="module")
def fine_tuned(
    toy_data: Path, task: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The folder and the log of a fine-tuning run."""
    folder = tmp_path_factory.mktemp("tuned")
    return folder, run(training(toy_data, task, pretrained, folder, *OWN_SIZES))


def rows_of(task: Path) -> list[list[str]]:
    return [line.split("\t") for line in (task / "valid.tsv").read_text().splitlines()]


def accuracy(hub: MaelmHubInterface, rows: list[list[str]], **options: Any) -> float:
    answers = classify_by_prompt(hub, [row[0] for row in rows], **options)
    assert all(sum(answer.values()) == pytest.approx(1, abs=1e-5) for answer in answers)
    right = sum(max(answer, key=answer.__getitem__) == row[1] for answer, row in zip(answers, rows))
    return 100 * right / len(rows)


def test_fine_tuning_trains_encoder_decoder_and_head(fine_tuned, pretrained):
    folder, output = fine_tuned
    assert "dropping" not in output, "decoder and prediction head are kept"
    before, after = (torch.load(path)["model"] for path in (pretrained, folder / "checkpoint_last.pt"))
    assert before.keys() == after.keys()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"encoder", "decoder", "lm_head"}
    assert losses(output, "valid")[-1] < losses(output, "valid")[0]
    assert max(losses(output, "valid", "accuracy")) > 50, "four topics, all equally likely"


def test_the_hub_and_the_command_give_the_metrics_of_validation(fine_tuned, task, toy_data, tmp_path, capsys):
    folder, output = fine_tuned
    last = losses(output, "valid", "accuracy")[-1], losses(output, "valid", "mcc")[-1]
    # The prompt is in the checkpoint: neither its file nor the tables are asked for.
    hub = MaelmModel.from_pretrained(str(folder), "checkpoint_last.pt", str(toy_data))
    assert str(task) not in json.dumps(
        {name: str(value) for name, value in hub.config.task.items() if name == "prompt"}
    )
    for options in ({}, {"batch_size": 5}, {"prompt": TEMPLATE, "label_words": WORDS, "several_pieces": True}):
        assert accuracy(hub, rows_of(task), **options) == pytest.approx(last[0], abs=5e-3)
    words = ["predict", task / "valid.tsv", "--checkpoint", folder / "checkpoint_last.pt", "--device", "cpu"]
    words = [str(word) for word in [*words, "--output", tmp_path / "predictions.tsv"]]
    with pytest.raises(SystemExit, match="are for a prompt that is given, but the checkpoint has its own"):
        cli.main([*words, "--several-pieces"])
    cli.main(words)
    metrics = metrics_in(capsys.readouterr().err)
    assert (metrics["accuracy"], metrics["mcc"]) == pytest.approx(last, abs=6e-3)
    header, *lines = [line.split("\t") for line in (tmp_path / "predictions.tsv").read_text().splitlines()]
    assert header[:2] == ["label", "probability"] and all(0.25 <= float(line[1]) <= 1 for line in lines)
    right = sum(line[0] == row[1] for line, row in zip(lines, rows_of(task)))
    assert len(lines) == 42 and 100 * right / 42 == pytest.approx(last[0], abs=6e-3)


def test_a_masked_language_model_is_asked_as_it_was_pretrained(task, toy_data, tmp_path):
    """Masks in the encoder, no decoder; its words have the probabilities of filling the mask."""
    baseline = ["--masked-input", "kept", "--decoder-layers", 0, "--max-update", 3, "--disable-validation"]
    run(["fairseq-train", toy_data, *TINY_TRAINING, *baseline, "--save-dir", tmp_path / "mlm"])
    checkpoint = tmp_path / "mlm" / "checkpoint_last.pt"
    hub = MaelmModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(toy_data))
    texts = [row[0] for row in rows_of(task)[:6]]
    whole = [symbol[1:] for symbol in hub.dictionary.symbols if symbol.startswith("\u2581") and symbol[1:].isalpha()]
    words = sorted(whole, key=len)[-2:]
    template = "*cls**sent_0*_It_was*mask*_near_the_old_one.*sep+*"
    answers = classify_by_prompt(hub, texts, template, {"a": words[0], "b": words[1]})
    filled = hub.fill_mask([f"{text} It was <mask> near the old one." for text in texts], topk=len(hub.dictionary))
    for answer, (candidates,) in zip(answers, filled):
        first, second = (
            next(each.probability for each in candidates if each.text.lower().endswith(f" {word} near the old one."))
            for word in words
        )
        assert answer["a"] == pytest.approx(first / (first + second), rel=1e-4)

    run(training(toy_data, task, checkpoint, tmp_path, "--decoder-layers", 0, "--max-update", 3))
    hub = MaelmModel.from_pretrained(str(tmp_path), "checkpoint_last.pt", str(toy_data))
    assert hub.task.encoder_view.masked_input == hub.config.task.masked_input == "kept"


def task_of(data: Path, task: Path, **options: Any) -> PromptTask:
    """The task as fairseq sets it up."""
    settings = {"data": str(data), "prompt": str(task / "topics.yaml"), "several_pieces": True, "seed": 1}
    return PromptTask.setup_task(PromptTaskConfig(**{**settings, "finetune_from_model": None, **options}))


def test_missing_tables_and_short_models_are_refused(task, toy_data):
    for examples, message in (
        (None, "--examples FOLDER is required: the folder with train.tsv"),
        ("no", "no/train.tsv"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            task_of(toy_data, task, examples=examples).load_dataset("train")
    with pytest.raises(ValueError, match="up to 64 tokens, but the model has only 32 positions: lower --max-length"):
        MaelmModel.build_model(SimpleNamespace(_name="maelm", max_positions=32), task_of(toy_data, task))
