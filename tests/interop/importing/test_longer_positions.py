"""``maelm import --positions``: an interpolated table, and the stock class that reads longer texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.toy import run, write_corpus

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model

from . import sources
from .sources import transformers

load_file = pytest.importorskip("safetensors.torch").load_file

# All of these read 128 tokens; RoBERTa's and MPNet's tables have two rows in front.
HAD, POSITIONS = 128, 300
KINDS: dict[str, tuple[Callable[..., Path], int]] = {
    "bert": (sources.bert, 0),
    "roberta": (sources.roberta_folder, 2),
    "distilbert": (sources.distilbert, 0),
    "mpnet": (sources.mpnet, 2),
}


def states(folder: Path, tokens: torch.Tensor) -> Any:
    """Return the states of the stock encoder in a folder, in double precision."""
    model = transformers.AutoModel.from_pretrained(folder).eval().double()
    with torch.no_grad():
        return model(tokens).last_hidden_state


def table_of(folder: Path) -> torch.Tensor:
    weights = load_file(folder / "model.safetensors")
    table: torch.Tensor = next(weight for name, weight in weights.items() if "position_embeddings" in name)
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_interpolated(kind: str, tmp_path: Path) -> None:
    make, first = KINDS[kind]
    source, back = make(tmp_path / "source"), tmp_path / "back"
    imported = import_model(source, tmp_path / "imported", positions=POSITIONS)
    assert all(each.size > 0.5 for each in imported.agreements)
    export(imported.folder / CHECKPOINT_FILE, None, back, ExportSettings())
    before, after = table_of(source), table_of(back)
    assert torch.equal(after[: first + 1], before[: first + 1]) and len(after) == first + POSITIONS
    place = torch.arange(POSITIONS, dtype=torch.float64) * (HAD - 1) / (POSITIONS - 1)
    low, rows = place.long().clamp(max=HAD - 2), before[first:].double()
    expected = torch.lerp(rows[low], rows[low + 1], (place - low)[:, None]).float()
    torch.testing.assert_close(after[first:], expected, rtol=0, atol=1e-5)
    changed = {"config.json": "max_position_embeddings", "tokenizer_config.json": "model_max_length"}
    for file, name in changed.items():
        old, new = (json.loads((folder / file).read_text()) for folder in (source, back))
        assert new == {**old, name: POSITIONS + (first if file == "config.json" else 0)}
    assert transformers.AutoTokenizer.from_pretrained(back).model_max_length == POSITIONS
    assert f"{POSITIONS}, interpolated from {HAD}" in (back / "README.md").read_text()

    hub = MaelmModel.from_pretrained(str(imported.folder))
    order = torch.tensor(sources_order(imported.folder))
    ours = torch.randint(5, len(order) - 1, (2, POSITIONS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = hub.model.double().extract_features(ours)[0]
    torch.testing.assert_close(found, states(back, order[ours]), rtol=0, atol=1e-6)


def sources_order(folder: Path) -> Any:
    """Return the source's id for each of ours."""
    return load_file(folder / "source_files.safetensors")["order"].tolist()


def test_rotary_positions_need_no_table(tmp_path: Path) -> None:
    """A window that held all old positions is a window again, and transformers computes the same at the new length."""
    source = sources.modernbert_folder(tmp_path / "source", local_attention=80)
    imported = import_model(source, tmp_path / "imported", positions=100)
    hub = MaelmModel.from_pretrained(str(imported.folder))
    assert hub.config.model.max_positions == 100
    tokens = torch.randint(5, 300, (1, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = hub.model.double().extract_features(tokens)[0]
    expected = states(source, torch.tensor(sources_order(imported.folder))[tokens])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("limit", [None, 64])
def test_the_limit_of_sentence_transformers_stays(limit: int | None, tmp_path: Path) -> None:
    """Version 6 saves it with the tokenizer, whose limit becomes longer; an import without more positions keeps it."""
    library = pytest.importorskip("sentence_transformers")
    source = library.SentenceTransformer(str(sources.bert(tmp_path / "bert")))
    source.max_seq_length = limit or source.max_seq_length
    source.save_pretrained(str(tmp_path / "source"))
    for name, positions in (("same", None), ("longer", POSITIONS)):
        imported = import_model(tmp_path / "source", tmp_path / name, positions=positions).folder
        back = export(imported / CHECKPOINT_FILE, None, tmp_path / f"{name} back", ExportSettings()).folder
        for folder in (imported, back):
            assert library.SentenceTransformer(str(folder)).max_seq_length == (limit or HAD)


def test_a_checkpoint_of_fairseq_goes_back_longer(tmp_path: Path) -> None:
    imported = import_model(sources.fairseq_checkpoint(tmp_path / "source"), tmp_path / "imported", positions=90)
    done = export(imported.folder / CHECKPOINT_FILE, None, tmp_path / "back", ExportSettings("fairseq-roberta"))
    name = "encoder.sentence_encoder.embed_positions.weight"
    table = torch.load(done.folder / "model.pt", weights_only=False)["model"][name]
    before = torch.load(tmp_path / "source" / "model.pt", weights_only=False)["model"][name]
    assert len(table) == 2 + 90 and torch.equal(table[2], before[2])
    torch.testing.assert_close(table[-1], before[-1])


@pytest.mark.parametrize("positions", [-1, HAD, 2**16 + 1])
def test_wrong_numbers_are_refused(positions: int, tmp_path: Path) -> None:
    source = sources.bert(tmp_path / "source")
    with pytest.raises(ValueError, match=f"--positions {positions}: .* has 128, so give a number from 129 to 65536"):
        import_model(source, tmp_path / "imported", positions=positions)
    assert not (tmp_path / "imported").exists()


@pytest.mark.slow
def test_longer_texts_are_learned(tmp_path: Path) -> None:
    """Four commands: import, prepare, pretrain, export; the result is the stock class with the new length."""
    source = sources.bert(tmp_path / "source")
    run(["maelm", "import", source, "--output", tmp_path / "base", "--positions", POSITIONS])
    write_corpus(tmp_path / "text.txt", documents=60)
    run(["maelm", "prepare", "corpus", tmp_path / "text.txt", "--vocabulary", tmp_path / "base"]
        + ["--output", tmp_path / "data", "--valid-fraction", 0.2, "--workers", 1])  # fmt: skip
    pretrain = ["maelm", "pretrain", tmp_path / "data", "--checkpoint", tmp_path / "base", "--gpus", 0]
    pretrain += ["--set", "max-update=3", "batch-sequences=2", "sequences-per-gpu=2", f"sequence-length={POSITIONS}"]
    run([*pretrain, "--objective", "mlm", "--output", tmp_path / "run"])
    run(["maelm", "export", "--checkpoint", tmp_path / "run", "--output", tmp_path / "back"])
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back")
    assert type(model).__name__ == "BertForMaskedLM" and model.config.max_position_embeddings == POSITIONS
    assert model(torch.full((1, POSITIONS), 7)).logits.isfinite().all()
    learned = (table_of(tmp_path / "back") - table_of(tmp_path / "base")).abs().sum(1)
    assert len(learned) == POSITIONS and learned[HAD:].min() > 0
