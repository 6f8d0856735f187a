"""The same texts get the same answers wherever a fine-tuned checkpoint is used."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.finetuning.sentences.task import HEAD, SentencesTask, SentencesTaskConfig
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.launch.run_record import read_setup_files
from fairseq_maelm.models.classification import score_texts
from interop.export.checkpoints import str_or_number, train_vocabulary, write_checkpoint

transformers = pytest.importorskip("transformers")

# An odd room for two texts, and fewer tokens than the model has positions.
LIMIT, POSITIONS = 13, 64
LONG, OTHER = "the old house by the river has three windows and a door. ", "nobody was there in winter, he said. "
TEXTS = [
    "a river",
    LONG,
    LONG + OTHER,
    OTHER + LONG,
    " con\x01trol\x80 characters,  spaces\x1b ",
    "cafe\u0301 A\u030angstro\u0308m",
]
NAMES = ["bad", "fine", "good"]


class Case(NamedTuple):
    """A kind of labels."""

    texts: int
    labels: list[str]  # of the training rows
    options: list[str] = []
    scale: float | None = None
    format: str | None = None


CASES = {
    "classes": Case(1, NAMES),
    "classes of pairs": Case(2, NAMES),
    "sets": Case(1, ["bad|fine", "good", ""], ["--label-separator", "|"]),
    "numbers": Case(1, ["1.5", "2", "0"], ["--regression"]),
    "numbers of pairs with a scale": Case(2, ["0.1", "0.4", "1"], ["--regression"], 5.0),
    "a format of our own": Case(2, NAMES, format="maelm"),
}


class Found(NamedTuple):
    """What an exit says about each text: the labels, and the scores of all labels or the number."""

    labels: list[str]
    scores: torch.Tensor


class World:
    """A prepared task, a checkpoint of it with random weights, and its exports."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        data = train_vocabulary(folder / "data")
        # Each text meets each other one.
        pairs = [(first, second) for first in TEXTS for second in TEXTS]
        self.texts: list[Any] = pairs if case.texts == 2 else TEXTS
        rows = [(row if case.texts == 2 else (row,)) for row in self.texts]
        lines = ["\t".join((*row, case.labels[number % 3])) for number, row in enumerate(rows)]
        (folder / "rows.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "texts.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
        self.columns = ["--text", "0", *(["--text-pair", "1"] if case.texts == 2 else [])]
        words = [
            "prepare",
            "sentences",
            "--vocabulary",
            data,
            "--output",
            folder / "task",
            *case.options,
            *self.columns,
        ]
        words += ["--train", folder / "rows.tsv", "--valid", folder / "rows.tsv", "--label", case.texts]
        cli.main([*map(str, words), "--max-length", str(LIMIT)])
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Save a checkpoint as training on the prepared folder does, in a folder with what the task reads."""
        task, manifest = self.folder / "task", self.folder / "task" / MANIFEST_FILE
        if self.case.scale:
            # As in the folder of STS-B.
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "scale": self.case.scale}))
        fields = dataclasses.fields(SentencesTaskConfig)
        options = SimpleNamespace(
            **{each.name: each.default for each in fields if not str(each.default).startswith("$")}
        )
        options.data, options.seed, options.train_subset, options.save_dir = str(task), 1, "train", "run"
        own = SentencesTask.setup_task(options)
        outputs = own.labels.outputs
        for path, content in read_setup_files(own, self.folder / "run").items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        chosen = {**{name: str_or_number(value) for name, value in vars(options).items()}, "_name": "maelm_sentences"}
        model = {"relative_buckets": "none"} if self.case.format is None else {}
        write_checkpoint(
            self.checkpoint,
            task / "input0",
            chosen,
            {HEAD: ("first", outputs)},
            scale=1.0,
            max_positions=POSITIONS,
            **model,
        )

        # Without the mean of all scores, texts get different labels.
        scores = score_texts(MaelmModel.from_pretrained(str(self.folder / "run")), self.texts, HEAD)
        state = torch.load(self.checkpoint)
        state["model"][f"classification_heads.{HEAD}.out_proj.bias"] -= scores.mean(dim=0)
        torch.save(state, self.checkpoint)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "run" / "checkpoint_best.pt"

    def best(self, scores: list[float]) -> str:
        if "--regression" in self.case.options:
            return ""
        if "--label-separator" in self.case.options:
            return "|".join(name for name, score in zip(NAMES, scores, strict=True) if score >= 0.5)
        return NAMES[scores.index(max(scores))]

    def predicted(self, source: Path, *options: str, checkpoint: Path | None = None) -> Found:
        """Run ``maelm predict``."""
        words = ["predict", source, "--checkpoint", checkpoint or self.checkpoint, "--device", "cpu", *options]
        cli.main([*map(str, words), "--output", str(self.folder / "predicted.tsv")])
        lines = (self.folder / "predicted.tsv").read_text(encoding="utf-8").splitlines()
        (self.folder / "predicted.tsv").unlink()
        header, *rows = [line.split("\t") for line in lines]
        numbers = [place for place, name in enumerate(header) if name.startswith("P(") or name == "value"]
        scores = torch.tensor([[float(row[place]) for place in numbers] for row in rows])
        return Found(["" if header[0] == "value" else row[0] for row in rows], scores)


def by_table(world: World) -> Found:
    return world.predicted(world.folder / "texts.tsv", *world.columns)


def by_split(world: World) -> Found:
    return world.predicted(world.folder / "task", "--split", "valid")


def by_hub(world: World) -> Found:
    hub = MaelmModel.from_pretrained(str(world.folder / "run"))
    answers = hub.classify(world.texts)
    if "--regression" in world.case.options:
        return Found([""] * len(answers), torch.tensor(answers)[:, None])
    labels = [
        "|".join(each.label for each in answer) if isinstance(answer, list) else answer.label for answer in answers
    ]
    return Found(labels, torch.tensor([[*each.values()] for each in hub.class_probabilities(world.texts)]))


def by_pipeline(world: World) -> Found:
    import fairseq_maelm.hf  # noqa: F401

    export(world.checkpoint, None, world.folder / "folder", ExportSettings(world.case.format))
    pipeline = transformers.pipeline("text-classification", str(world.folder / "folder"), device="cpu")
    texts = [{"text": each[0], "text_pair": each[1]} for each in world.texts] if world.case.texts == 2 else world.texts
    rows = [pipeline(text, top_k=None, truncation=True) for text in texts]
    scores = [
        sorted((each["label"], each["score"]) for each in (row if isinstance(row[0], dict) else row[0])) for row in rows
    ]
    found = [[score for _, score in row] for row in scores]
    return Found([world.best(row) for row in found], torch.tensor(found))


def by_complete_folder(world: World) -> Found:
    export(world.checkpoint, None, world.folder / "whole", ExportSettings(world.case.format, complete=True))
    checkpoint = world.folder / "whole" / "checkpoint.json"
    return world.predicted(world.folder / "texts.tsv", *world.columns, checkpoint=checkpoint)


EXITS: list[Callable[[World], Found]] = [by_split, by_hub, by_pipeline, by_complete_folder]


@pytest.mark.parametrize("name", CASES)
def test_equal_answers_at_all_exits(name: str, tmp_path: Path) -> None:
    world = World(CASES[name], tmp_path)
    expected = by_table(world)
    assert len(expected.scores) == len(world.texts) and expected.scores.std(dim=0).min() > 1e-2
    assert len({*expected.labels}) > 1 or "--regression" in world.case.options
    assert expected.labels == [world.best(row) for row in expected.scores.tolist()]
    for exit in EXITS:
        found = exit(world)
        assert found.labels == expected.labels, exit.__name__
        torch.testing.assert_close(found.scores.float(), expected.scores, rtol=0, atol=1e-4, msg=exit.__name__)
    if world.case.scale:
        hub = MaelmModel.from_pretrained(str(world.folder / "run"))
        raw = hub.predict(HEAD, hub.encode(*world.texts[0], max_length=LIMIT, masks=False), return_logits=True)
        assert float(expected.scores[0, 0]) == pytest.approx(world.case.scale * float(raw), abs=1e-4)


def test_the_table_is_the_whole_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics and the report are for people and programs that do not read the table."""
    world = World(CASES["classes"], tmp_path)
    words = ["predict", tmp_path / "rows.tsv", "--checkpoint", world.checkpoint, "--device", "cpu", "--report"]
    words += [*world.columns, "--label", 1, "--metrics", tmp_path / "metrics.json"]
    capsys.readouterr()
    cli.main([*map(str, words)])
    output, log = capsys.readouterr()
    assert {line.count("\t") for line in output.splitlines()} == {5} and len(output.splitlines()) == 1 + len(TEXTS)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert f"metrics: {json.dumps(metrics)}\n" in log and "right, predicted as:" in log and "accuracy" in metrics
    with pytest.raises(SystemExit, match="metrics.json exists already"):
        cli.main([*map(str, words)])
    (tmp_path / "rows.tsv").write_text("a\tgood\nb\tugly\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"rows\.tsv:2 has the label 'ugly', but the known labels are 'bad', 'fine'"):
        cli.main([*map(str, words[:-2])])


# Options of a task with a token head, what config.json and the model card tell of them, and what the card does not.
TOLD: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "SQuAD 2.0": (
        "spans",
        {"_name": "maelm_squad", "max_length": 48, "squad_version": "2.0", "null_threshold": -1.5},
        {"squad_version": "2.0", "null_threshold": -1.5},
        [
            "by more than -1.5 logits",
            "`max_seq_len=48, max_question_len=64, max_answer_len=30, align_to_words=False`",
            "at most 48 tokens",
        ],
    ),
    "SQuAD 1.1": (
        "spans",
        {"_name": "maelm_squad", "max_length": 512, "squad_version": "1.1"},
        {"squad_version": "1.1", "null_threshold": None},
        ["windows of 64 tokens", "`max_seq_len=64,", "at most 64 tokens"],
    ),
    "tagging": (
        "tags",
        {"_name": "maelm_tagging", "tokens_per_sample": 40, "window_overlap": 9},
        {},
        ["at most 40 tokens", 'aggregation_strategy="first", stride=9'],
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_folders_tell_what_their_task_needs(name: str, tmp_path: Path) -> None:
    head, task, config, told = TOLD[name]
    rest = {"doc_stride": 16, "max_question_length": 64, "max_answer_length": 30} if head == "spans" else {}
    data = train_vocabulary(tmp_path / "data")
    write_checkpoint(
        tmp_path / "checkpoint.pt", data, {**rest, **task}, (head,), max_positions=POSITIONS, relative_buckets="none"
    )
    export(tmp_path / "checkpoint.pt", data, tmp_path / "folder", ExportSettings())
    written = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert {key: written.get(key) for key in config} == config
    limit = min(task.get("max_length") or task["tokens_per_sample"], POSITIONS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer.model_max_length == limit == len(tokenizer(LONG * 9, truncation=True).input_ids)
    card = (tmp_path / "folder" / "README.md").read_text(encoding="utf-8")
    assert all(each in card for each in told)
    assert ("There is no answer if" in card) == ("null_threshold" in task)
