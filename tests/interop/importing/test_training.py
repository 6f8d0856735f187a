"""Imported models are trained further by the real commands, from the preparation of text on."""

import shutil
from pathlib import Path

import pytest
import torch
from end_to_end.toy import run, write_corpus

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.plain_data import read_state
from fairseq_maelm.interop.importing.importer import import_model

from . import sources
from .sources import transformers
from .test_published import with_head


def parameters(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_state(path)["model"]
    return state


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], prefix: str = "") -> None:
    names = [name for name in first if name.startswith(prefix)]
    assert len(names) > 10
    assert all(torch.equal(first[name], second[name]) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "name"), [("fairseq_checkpoint", "RobertaModel"), ("bert", "BertModel")])
def test_fine_tuning_starts_from_it_and_is_exported(source: str, name: str, tmp_path: Path) -> None:
    import_model(getattr(sources, source)(tmp_path / "source"), tmp_path / "imported")
    lines = "the sailor rows\tsea\nthe cook fries\tkitchen\n" * 4
    (tmp_path / "table.tsv").write_text(lines)
    prepare = ["maelm", "prepare", "sentences", "--vocabulary", tmp_path / "imported"]
    run([*prepare, "--train", tmp_path / "table.tsv", "--valid", tmp_path / "table.tsv", "--output", tmp_path / "task"])
    checkpoint = tmp_path / "imported" / CHECKPOINT_FILE
    finetune = ["maelm", "finetune", tmp_path / "task", "--checkpoint", checkpoint, "--output", tmp_path / "saved"]
    finetune += ["--batch-size", 8, "--gpus", 0, "--lr", 0, "--epochs", 1, "--", "--weight-decay", 0]
    assert f"`maelm export` will write {name} with its head, for sentence-transformers" in run(finetune)
    saved = parameters(tmp_path / "saved" / "checkpoint_last.pt")
    assert any(each.startswith("classification_heads.") for each in saved)
    assert_equal(saved, parameters(checkpoint), "encoder.")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    run(["maelm", "export", "--checkpoint", tmp_path / "saved", "--output", tmp_path / "folder"])
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    texts, labels = ["the sailor rows", "the cook fries it in the kitchen"], model[0].auto_model.config.id2label
    probabilities = model.encode(texts, convert_to_tensor=True).softmax(dim=-1).tolist()
    expected = MaelmModel.from_pretrained(str(tmp_path / "saved"), "checkpoint_best.pt").class_probabilities(texts)
    for row, classes in zip(probabilities, expected, strict=True):
        assert {labels[number]: each for number, each in enumerate(row)} == pytest.approx(classes, abs=1e-5)


@pytest.mark.slow
def test_a_published_encoder_is_adapted_without_masks(tmp_path: Path) -> None:
    """Four commands: import, prepare, pretrain, export; the result is opened by the stock class.

    The data and the save folder carry the source's ids and files; the folder of the import is removed.
    """
    folder = with_head(sources.bert(tmp_path / "source"), "BertForQuestionAnswering")
    said = run(["maelm", "import", folder, "--output", tmp_path / "base"])
    assert "if you continue its pretraining: the source was fine-tuned: its span_head is dropped" in said
    write_corpus(tmp_path / "text.txt", documents=30)
    run(
        ["maelm", "prepare", "corpus", tmp_path / "text.txt", "--vocabulary", tmp_path / "base"]
        + ["--output", tmp_path / "data", "--valid-fraction", 0.2, "--workers", 1]
    )
    pretrain = ["maelm", "pretrain", tmp_path / "data", "--checkpoint", tmp_path / "base", "--gpus", 0]
    pretrain += ["--set", "batch-sequences=8", "sequences-per-gpu=8"]
    output = run([*pretrain, "max-update=4", "--output", tmp_path / "adapted"])
    assert f"next: maelm export --checkpoint {tmp_path / 'adapted'}" in output
    assert "--decoder-attention shared" in output
    assert "its span_head is dropped" in output and "no LM head" in output
    again = run([*pretrain, "max-update=4", "--output", tmp_path / "adapted"])
    assert "this run is complete after 4 updates" in again and "its schedule has ended;" in again
    still = ["lr=0", "max-update=1", "weight-decay=0", "mask-whole-words=true"]
    run([*pretrain, *still, "--output", tmp_path / "still"])
    before = parameters(tmp_path / "base" / CHECKPOINT_FILE)
    after, still = (parameters(tmp_path / name / "checkpoint_last.pt") for name in ("adapted", "still"))
    assert not any(name.startswith("decoder.") for name in after)
    moved = [
        name for name in before if name.startswith("encoder.layers") and not torch.equal(before[name], after[name])
    ]
    assert len(moved) > 10
    assert_equal({name: weight for name, weight in before.items() if name.startswith("encoder.")}, still)
    shutil.rmtree(tmp_path / "base")

    # Without --format, the import's; a run that has changed nothing gives back the source bit by bit.
    for name in ("adapted", "still"):
        export = ["maelm", "export", "--checkpoint", tmp_path / name, "--output", tmp_path / "stock" / name]
        assert "verified" in run(export)
    assert_same_but_adapted(folder, tmp_path / "stock" / "adapted", tmp_path / "stock" / "still")


def assert_same_but_adapted(source: Path, adapted_folder: Path, same_folder: Path) -> None:
    """Exports have the source's class, configuration and tokenizer; only one of them has its weights."""
    theirs, adapted, same = map(transformers.AutoModel.from_pretrained, (source, adapted_folder, same_folder))
    not_compared = ("architectures", "_name_or_path", "dtype", "torch_dtype", "transformers_version")
    settings = {name: value for name, value in theirs.config.to_dict().items() if name not in not_compared}
    assert type(theirs) is type(adapted) and adapted.config.to_dict().items() >= settings.items()
    weights = {name: weight for name, weight in theirs.state_dict().items() if not name.startswith("pooler.")}
    assert_equal(weights, same.state_dict())
    assert not torch.equal(adapted.get_input_embeddings().weight, theirs.get_input_embeddings().weight)
    one, other = map(transformers.AutoTokenizer.from_pretrained, (source, adapted_folder))
    assert one("The sailor rows.", "An old rope.") == other("The sailor rows.", "An old rope.")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (adapted_folder / file).read_bytes() == (source / file).read_bytes()


def test_continued_pretraining_refuses_what_does_not_fit(tmp_path: Path) -> None:
    sources.roberta_folder(tmp_path / "source")
    import_model(tmp_path / "source", tmp_path / "base")
    write_corpus(tmp_path / "text.txt", documents=10)
    run(["maelm", "prepare", "corpus", tmp_path / "text.txt", "--output", tmp_path / "other", "--workers", 1]
        + ["--vocabulary-size", 300, "--valid-fraction", 0.2])  # fmt: skip
    pretrain = ["maelm", "pretrain", tmp_path / "other", "--output", tmp_path / "new", "--dry-run"]
    refused = run([*pretrain, "--checkpoint", tmp_path / "base"], check=False)
    assert "was not prepared with the vocabulary of" in refused and "maelm prepare corpus TEXT --vocabulary" in refused
    for arch in (["--arch", "x"], ["--set", "arch=x"]):
        refused = run([*pretrain, "--checkpoint", tmp_path / "base", *arch], check=False)
        assert "the architecture is the checkpoint's: omit --arch" in refused
    assert "need --checkpoint" in run([*pretrain, "--recipe", "tiny", "--objective", "mlm"], check=False)
    assert not (tmp_path / "new").exists()
