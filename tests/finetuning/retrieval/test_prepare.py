"""Preparing a task: splits, what is held out, and folders that are whole or absent."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.corpus.prepare import prepare
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.finetuning.retrieval.datasets import RetrievalPairDataset, RetrievalTextDataset, Target, Texts
from fairseq_maelm.finetuning.retrieval.prepare_command import RetrievalSettings, held_out, prepare_retrieval
from fairseq_maelm.finetuning.retrieval.prepared import group_pairs, group_relevant

WORDS = ["red", "green", "blue", "white", "black", "grey", "pink", "brown"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text("\n\n".join(f"{a} is not {b}" for a in WORDS for b in WORDS), encoding="utf-8")
    settings = PrepareSettings(inputs=(folder / "text.txt",), output=folder / "data", vocabulary_size=60, workers=1)
    prepare(settings)
    return folder / "data"


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Eight documents of a word each; query n asks for document n, and query 0 for document 7 too."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    for name, prefix in (("corpus", "d"), ("queries", "q")):
        lines = [json.dumps({"_id": f"{prefix}{row}", "text": word}) for row, word in enumerate(WORDS)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    pairs = [(row, row, 1) for row in range(6)] + [(0, 7, 2), (0, 1, 0)]
    write_qrels(folder, "train", pairs)
    write_qrels(folder, "test", [(6, 6, 1), (7, 7, 1)])
    return folder


def write_qrels(folder: Path, split: str, lines: list[tuple[int, int, int]]) -> None:
    text = "".join(f"q{query}\td{document}\t{score}\n" for query, document, score in lines)
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + text, encoding="utf-8")


def texts_of(folder: Path, name: str, max_length: int = 64) -> Texts:
    return Texts(str(folder / name), 0, 2, 1, max_length)


def test_folder(beir, data, tmp_path):
    (beir / "negatives.tsv").write_text("q0\td7\nq0\td3\nq0\td4\nq1\td2\nq6\td1\n", encoding="utf-8")
    facts = prepare_retrieval(
        RetrievalSettings(beir, data, tmp_path / "out", hard_negatives=beir / "negatives.tsv", negatives_per_query=1)
    )
    assert facts["splits"]["train"] == {
        "queries": 6,
        "judgments": 8,
        "relevant_pairs": 7,
        "queries_without_relevant_document": 0,
    }
    assert facts["negatives"] == {"taken": 2, "relevant": 1, "of_other_queries": 1, "queries": 2}
    assert np.load(tmp_path / "out" / "train.negatives.npy").tolist() == [[0, 3], [1, 2]]
    assert (tmp_path / "out" / "documents.ids").read_text(encoding="utf-8").split() == [f"d{row}" for row in range(8)]
    qrels = (tmp_path / "out" / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert qrels[:4] == ["query-id\tcorpus-id\tscore", "q0\td0\t1", "q0\td1\t0", "q0\td7\t2"]
    assert not (tmp_path / "out" / "valid.judgments.npy").exists()
    assert json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")) == facts


def test_held_out_queries_take_their_judgments_along(beir, data, tmp_path):
    tables = []
    for name in ("one", "two"):
        prepare_retrieval(RetrievalSettings(beir, data, tmp_path / name, valid_fraction=0.34))
        tables.append([np.load(tmp_path / name / f"{split}.judgments.npy") for split in ("train", "valid")])
    train, valid = tables[0]
    assert all(np.array_equal(one, two) for one, two in zip(*tables))
    assert len(np.unique(valid[:, 0])) == 2 and len(train) + len(valid) == 8
    assert not set(train[:, 0]) & set(valid[:, 0])


@given(st.sets(st.text("abc123", min_size=1), min_size=2, max_size=30), st.floats(0.01, 0.99), st.integers(0, 5))
def test_what_is_held_out_depends_on_ids_and_seed_alone(identifiers, fraction, seed):
    chosen = held_out(sorted(identifiers), fraction, seed)
    assert chosen == held_out(sorted(identifiers, reverse=True), fraction, seed)
    assert 1 <= len(chosen) < len(identifiers) and chosen < identifiers


def test_training_batches(beir, data, tmp_path):
    (beir / "negatives.tsv").write_text("".join(f"q0\td{row}\n" for row in (2, 3, 4, 5, 6)), encoding="utf-8")
    prepare_retrieval(RetrievalSettings(beir, data, tmp_path / "out", hard_negatives=beir / "negatives.tsv"))
    folder = tmp_path / "out"
    pairs = group_relevant(np.load(folder / "train.judgments.npy"))
    negatives = group_pairs(np.load(folder / "train.negatives.npy"))
    queries, documents = texts_of(folder, "queries"), texts_of(folder, "documents")
    dataset = RetrievalPairDataset(queries, documents, pairs, negatives, drawn=2, seed=1)
    assert list(zip(dataset.query_rows, dataset.document_rows)) == [
        (0, 0),
        (0, 7),
        *((row, row) for row in range(1, 6)),
    ]
    batch = dataset.collater([1, 2])
    drawn = dataset.draw_negatives(1)
    assert len(set(drawn.tolist())) == 2 and set(drawn.tolist()) <= {2, 3, 4, 5, 6}
    assert batch["target"].tolist() == [7, 1] and batch["positives"].tolist() == [[0, 7], [1, -1]]
    assert batch["document_ids"].tolist() == sorted({7, 1, *drawn.tolist()})
    assert batch["documents"]["src_tokens"][-1].tolist() == documents.tokens(7).tolist()
    assert len(dataset.draw_negatives(2)) == 0, "query 1 has none"
    draws = []
    for epoch in range(1, 20):
        dataset.set_epoch(epoch)
        draws.append((tuple(dataset.draw_negatives(1)), tuple(dataset.ordered_indices())))
        assert draws[-1][1] == tuple(np.random.default_rng([1, epoch]).permutation(7))
    assert len(set(draws)) > 15
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=3, required_batch_size_multiple=8)
    assert sorted(np.concatenate(batches).tolist()) == list(range(7))
    with pytest.raises(ValueError, match="give at least --max-tokens"):
        dataset.batch_by_size(dataset.ordered_indices(), max_tokens=5)
    assert dataset.collater([]) == {}


def test_validation_items_are_the_queries_and_all_documents(beir, data, tmp_path):
    prepare_retrieval(RetrievalSettings(beir, data, tmp_path / "out"))
    queries, documents = texts_of(tmp_path / "out", "queries"), texts_of(tmp_path / "out", "documents", max_length=3)
    assert documents.lengths.max() == 3 and documents.cut == int((queries.lengths > 3).sum())
    pairs = group_relevant(np.load(tmp_path / "out" / "test.judgments.npy"))
    target = Target(pairs.relevant, {}, ["q6", "q7"], [f"d{row}" for row in range(8)])
    dataset = RetrievalTextDataset("test", queries, documents, pairs.queries, target)
    assert len(dataset) == 2 + 8
    assert dataset.ordered_indices().tolist() == np.argsort(-dataset.sizes, kind="stable").tolist()
    batch = dataset.collater([1, 2])
    assert batch["split"] == "test" and batch["ntokens"] == int(queries.lengths[7]) + 3
    assert batch["net_input"]["src_tokens"][0, : queries.lengths[7]].tolist() == queries.tokens(7).tolist()
    assert batch["net_input"]["src_tokens"][1, :3].tolist() == documents.tokens(0).tolist()


def test_files_of_another_layout_are_refused(beir, data, tmp_path):
    def message(**changes) -> str:
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            prepare_retrieval(RetrievalSettings(beir, data, tmp_path / "out", **changes))
        assert not (tmp_path / "out").exists()
        return str(error.value)

    assert "--valid-fraction must be between 0.001 and 0.999, not 1.5" in message(valid_fraction=1.5)
    assert "--negatives-per-query must be at least 1, not 0" in message(negatives_per_query=0)
    write_qrels(beir, "dev", [(6, 6, 0)])
    assert "leave --valid-fraction away" in message(valid_fraction=0.5)
    assert "dev.tsv holds no relevant document" in message()
    write_qrels(beir, "dev", [(6, 9, 1)])
    assert re.search(r"dev\.tsv:2: the id 'd9' is none of the documents", message())
    (beir / "queries.jsonl").write_text("\n", encoding="utf-8")
    assert "queries.jsonl holds no texts" in message()
    shutil.rmtree(beir / "qrels")
    assert "there is none of" in message()
