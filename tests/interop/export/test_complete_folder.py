"""A folder of --complete is a checkpoint: it has the rounded weights, is opened by path and by name, and trains on."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.checkpoints import locate
from fairseq_maelm.checkpoints.folder import write_sums
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE, find_checkpoint, vocabulary_folder
from fairseq_maelm.checkpoints.plain_data import CheckpointError, read_state
from fairseq_maelm.checkpoints.reader import loadable_tasks, read_checkpoint
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.interop.export import complete_folder
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.launch.command_line import configuration_of
from interop.export.checkpoints import MODERN, train_vocabulary, write_checkpoint, write_complete

transformers = pytest.importorskip("transformers")

NAME = "stand-in"
TEXT = "The <mask> is old."


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_vocabulary(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def shipped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of encoders like that of the package, with one encoder."""
    folder = tmp_path_factory.mktemp("package") / "pretrained"
    folder.mkdir()
    write_complete(folder / NAME, data)
    return folder


@pytest.fixture
def package(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the encoder that seems to come with the package; the working folder is another, empty one."""
    monkeypatch.setattr(locate, "_PRETRAINED", shipped)
    monkeypatch.chdir(tmp_path)
    return shipped / NAME


@pytest.fixture
def copied(shipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped / NAME, tmp_path / "copy"))


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "modern": ("modernbert", "float16", MODERN),
    "modern without decoder": (
        "modernbert",
        "float16",
        {**MODERN, "decoder_layers": 0, "task": {"masked_input": "kept"}},
    ),
    "roberta": ("roberta", "float16", {"relative_buckets": "none"}),
    "maelm": ("maelm", "float32", {"share_decoder_positions": True}),
    "classes": (
        "modernbert",
        "float16",
        {**MODERN, "task": {"_name": "sentence_prediction"}, "heads": ("sentence_classification_head",)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_folder_is_the_rounded_checkpoint(data: Path, tmp_path: Path, case: str) -> None:
    form, dtype, options = CASES[case]
    before = torch.load(write_complete(tmp_path / "folder", data, form, dtype, **options), weights_only=True)
    after = read_state(tmp_path / "folder" / CHECKPOINT_FILE)
    assert after["model"].keys() == before["model"].keys()
    for name, weight in before["model"].items():
        kept = weight.half().float() if dtype == "float16" and weight.is_floating_point() else weight
        assert torch.equal(after["model"][name], kept) and after["model"][name].dtype == kept.dtype, name
    model, task = (after["cfg"][section] for section in ("model", "task"))
    assert {name: model[name] for name in before["cfg"]["model"]} == before["cfg"]["model"]
    # A task of fairseq's own does not have the options of ours, which stay behind.
    assert task.items() <= {**before["cfg"]["task"], "data": "."}.items()
    assert len(task) == len(before["cfg"]["task"]) or task["_name"] == "sentence_prediction"
    assert after["optimizer_history"][-1]["num_updates"] == 30 and after["extra_state"]["val_loss"] == 4.25
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        assert (tmp_path / "folder" / name).read_bytes() == (data / name).read_bytes()
    with pytest.raises(ValueError, match="is a checkpoint already: give it as --checkpoint"):
        import_model(tmp_path / "folder", tmp_path / "imported")


QUESTIONS = {
    "version": "2.0",
    "data": [{"paragraphs": [{"context": "The old house has three windows.", "qas": [
        {"id": "1", "question": "How many?", "is_impossible": False, "answers": [{"text": "three", "answer_start": 18}]}
    ]}]}],
}  # fmt: skip
WORDS = "The O\nold O\nhouse B-PLACE\nby O\nAurora B-SHIP\n\nA O\nriver B-PLACE\n"
ASKED = '{"template": "*cls**sent_0*_It_was*mask*.*sep+*", "label_words": {"a": "old", "b": "house"}}'
ROWS = "an old house\tright\na river\twrong\nnobody lives there\tunknown\n"
SHORT = ["--max-length", "48", "--doc-stride", "16", "--max-question-length", "12"]
SHORTER = ["--tokens-per-sample", "48"]
# The tasks of ours: the command that prepares their data, a file's name and content, their heads, and options.
TASKS: dict[str, tuple[str, str, str, tuple[str, ...], list[str]]] = {
    "maelm_sentences": ("sentences", "rows.tsv", ROWS, ("sentence_classification_head",), ["--head-start", "frozen"]),
    "maelm_squad": ("squad", "questions.json", json.dumps(QUESTIONS), ("span_head",), SHORT),
    "maelm_tagging": ("tagging", "words.txt", WORDS, ("tagging_head",), [*SHORTER, "--window-overlap", "8"]),
    "maelm_prompt": ("", "rows.tsv", "an old house\ta\na river\tb\n", (), SHORT[:2]),
    "maelm": ("", "rows.tsv", "an old house\ta\na river\tb\n", (), SHORTER),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_folder_of_every_task_predicts_as_its_checkpoint(task: str, data: Path, tmp_path: Path) -> None:
    """The checkpoint has the options with which fairseq-train would save it."""
    assert {*TASKS, "sentence_prediction"} == {*loadable_tasks()}
    prepare, name, content, heads, options = TASKS[task]
    given, folder, prompt = tmp_path / name, data, tmp_path / "prompt.json"
    given.write_text(content, encoding="utf-8")
    prompt.write_text(ASKED, encoding="utf-8")
    if prepare:
        folder = tmp_path / "private"
        files = ["--train", given, "--valid", given, "--vocabulary", data, "--output", folder]
        cli.main(["prepare", prepare, *map(str, files)])
    write_checkpoint(tmp_path / "base.pt", data)
    words = [str(folder), "--task", task, "--criterion", task, "--arch", "maelm_tiny", *options]
    words += ["--prompt", str(prompt), "--examples", str(tmp_path), "--several-pieces"] * (task == "maelm_prompt")
    words += ["--save-dir", str(tmp_path / "private"), "--finetune-from-model", str(tmp_path / "base.pt")]
    config = configuration_of([*words, "--optimizer", "adam"])
    tasks.setup_task(config.task)
    trained = OmegaConf.to_container(config.task, resolve=True, enum_to_str=True)
    checkpoint = tmp_path / "private" / "checkpoint_best.pt"
    write_checkpoint(checkpoint, folder / "input0" if prepare == "sentences" else folder, trained, heads)
    export(checkpoint, folder, tmp_path / "folder", ExportSettings(complete=True))
    assert not any(str(tmp_path).encode() in each.read_bytes() for each in (tmp_path / "folder").rglob("*.json"))
    asked = ["--prompt", str(prompt), "--several-pieces"] if task == "maelm" else []
    for each in (checkpoint, tmp_path / "folder"):
        own = ["--vocabulary", str(folder)] if each == checkpoint else []
        output = ["--output", str(tmp_path / f"{each.name}.predicted"), "--device", "cpu", *own, *asked]
        cli.main(["predict", str(given), "--checkpoint", str(each), *output])
    first, second = (tmp_path / f"{each}.predicted" for each in (checkpoint.name, "folder"))
    assert first.read_bytes() == second.read_bytes()


PROMPT = '{"template": "{0} true/false: {mask}.", "label_words": {"a": "old", "b": "was"}}'


def test_options_with_slashes_are_kept_and_paths_are_not(data: Path, tmp_path: Path) -> None:
    """A prompt has slashes and no path; the criterion knows which of two labels F1 counts."""
    checkpoint = tmp_path / "checkpoint.pt"
    write_checkpoint(checkpoint, data, **MODERN)
    state = torch.load(checkpoint)
    prompt = {
        "_name": "maelm_prompt",
        "data": str(data),
        "prompt": PROMPT,
        "examples": "private",
        "several_pieces": True,
    }
    criterion = {"_name": "maelm_sentences", "positive_label": "yes/no"}
    state["cfg"] |= {"task": prompt, "criterion": criterion}
    torch.save(state, checkpoint)
    export(checkpoint, data, tmp_path / "folder", ExportSettings(complete=True))
    config = read_checkpoint(tmp_path / "folder" / CHECKPOINT_FILE).config
    assert config.criterion == criterion
    assert config.task == {**prompt, "data": ".", "examples": None, "seed": 1}


def test_an_option_that_is_lost_is_an_error(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = complete_folder.write_folder

    def forgetful(folder: Path, state: dict[str, Any]) -> None:
        del state["cfg"]["task"]["mask_prob"]
        honest(folder, state)

    monkeypatch.setattr(complete_folder, "write_folder", forgetful)
    with pytest.raises(ValueError, match="does not restore the checkpoint"):
        write_complete(tmp_path / "folder", data)


def test_every_text_option_of_a_task_is_a_path_or_not() -> None:
    texts = {
        field.name
        for task in loadable_tasks()
        for field in dataclasses.fields(TASK_DATACLASS_REGISTRY[task])
        if field.type in (str, Optional[str]) and not field.name.startswith("_")  # noqa: UP045
    }
    others = {"prompt", "train_subset", "classification_head_name", "shorten_data_split_list", "label_separator"}
    assert texts == {*complete_folder.PATHS, *others}


def test_stock_transformers_opens_the_encoder(shipped: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, report = transformers.AutoModel.from_pretrained(shipped / NAME, output_loading_info=True)
    assert type(model).__name__ == "ModernBertModel" and model.dtype == torch.float32
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not any(word in capfd.readouterr().err.lower() for word in ("warning", "unexpected", "not used", "missing"))


def test_nothing_private_is_in_the_folder(data: Path, shipped: Path) -> None:
    for path in (shipped / NAME).rglob("*"):
        assert str(data).encode() not in path.read_bytes(), path.name


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "tokenizer.json"])
def test_one_changed_byte_is_one_clear_error(copied: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content = bytearray((copied / name).read_bytes())
    content[-2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fill", "--checkpoint", str(copied), TEXT, "--device", "cpu"])
    reason = f"{name} is damaged or was changed: its checksum differs from the one in SHA256SUMS"
    assert str(stopped.value).endswith(f"{copied / CHECKPOINT_FILE} cannot be read as a checkpoint: {reason}")


def test_weights_of_another_folder_are_refused(data: Path, copied: Path, tmp_path: Path) -> None:
    write_complete(tmp_path / "other", data, **MODERN, scale=0.2)
    shutil.copy(tmp_path / "other" / "model.safetensors", copied)
    write_sums(copied)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json belongs to other weights"):
        read_checkpoint(copied / CHECKPOINT_FILE)


def test_the_card_may_be_edited(copied: Path) -> None:
    (copied / "README.md").write_text("# Mine\n", encoding="utf-8")
    assert read_checkpoint(copied / CHECKPOINT_FILE).predicts_masked_tokens


def edit_options(folder: Path, section: str, **options: Any) -> None:
    content = read_json(folder / CHECKPOINT_FILE)
    content["cfg"][section].update(options)
    (folder / CHECKPOINT_FILE).write_text(json.dumps(content), encoding="utf-8")
    write_sums(folder)


def test_other_options_are_refused(copied: Path) -> None:
    edit_options(copied, "model", rotary_base=99)
    with pytest.raises(ValueError, match="trained with --rotary-bas"):
        MaelmModel.from_pretrained(str(copied))


def test_fairseq_resolves_no_references(copied: Path) -> None:
    edit_options(copied, "task", data="${oc.env:HOME}")
    with pytest.raises(CheckpointError, match="refers to another option"):
        checkpoint_utils.load_checkpoint_to_cpu(str(copied / CHECKPOINT_FILE))


def test_an_encoder_is_found_by_its_name(package: Path) -> None:
    assert find_checkpoint(Path(NAME)) == package / CHECKPOINT_FILE
    assert vocabulary_folder(NAME) == package
    by_name, by_path = (MaelmModel.from_pretrained(name).fill_mask(TEXT) for name in (NAME, str(package)))
    assert by_name == by_path


def test_what_is_here_wins(data: Path, package: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / NAME / "checkpoint_last.pt", data)
    shutil.copy(data / "dict.txt", tmp_path / NAME)
    local = Path(NAME) / "checkpoint_last.pt"
    assert find_checkpoint(Path(NAME)) == local and vocabulary_folder(NAME) == Path(NAME)
    shutil.move(tmp_path / local, tmp_path / "file")
    shutil.rmtree(tmp_path / NAME)
    shutil.move(tmp_path / "file", tmp_path / NAME)
    assert find_checkpoint(Path(NAME)) == Path(NAME)


def test_another_name_is_one_error_with_the_names(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"there is no checkpoint nobody: give a file, a folder, or one of {NAME}"
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fill", "--checkpoint", "nobody", TEXT])
    assert stopped.value.code == 2 and expected in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=expected):
        MaelmModel.from_pretrained("nobody")
    with pytest.raises(SystemExit, match=f"{NAME} is a checkpoint already"):
        cli.main(["import", NAME, "--output", "imported"])


def test_commands_open_it_by_its_name(package: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The dog is old.\nA cat was here.\n" * 9, encoding="utf-8")
    cli.main(["export", "--checkpoint", NAME, "--output", "exported", "--format", "fairseq"])
    probed = ["--checkpoint", f"a={NAME}", "--text", "text.txt", "--output", "analyzed", "--tokens", "100"]
    cli.main(["analyze", *probed, "--device", "cpu"])
    assert any((tmp_path / "exported").iterdir()) and any((tmp_path / "analyzed").iterdir())


def test_an_export_of_it_equals_it(package: Path, tmp_path: Path) -> None:
    settings = ExportSettings("modernbert", dtype="float16", complete=True)
    export(package / CHECKPOINT_FILE, None, tmp_path / "again", settings)
    for name in ("model.safetensors", "decoder_and_heads.safetensors", "checkpoint.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (package / name).read_bytes(), name


def test_numbers_beyond_half_precision_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"numbers beyond 65,504: omit --dtype float16"):
        write_complete(tmp_path / "folder", data, **MODERN, scale=1e5)
    assert not (tmp_path / "folder").exists()
