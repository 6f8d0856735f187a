"""Preparation of a task: splits, held-out queries, and folders that are complete or absent."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.corpus.prepare import prepare
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.finetuning.retrieval.datasets import RetrievalPairDataset, RetrievalTextDataset, Target, Texts
from fairseq_maelm.finetuning.retrieval.prepare import RetrievalSettings, held_out, prepare_retrieval
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
    """Eight documents of one word each; document n is relevant to query n, and document 7 also to query 0."""
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


def write_negatives(folder: Path, pairs: list[tuple[int, int]]) -> Path:
    text = "".join(f"q{query}\td{document}\n" for query, document in pairs)
    (folder / "negatives.tsv").write_text(text, encoding="utf-8")
    return folder / "negatives.tsv"


def texts_of(folder: Path, name: str, max_length: int = 64) -> Texts:
    return Texts(str(folder / name), Dictionary(), max_length)


@pytest.fixture
def prepare_task(beir, data, tmp_path):
    """A function that prepares the folder ``out`` with settings and returns its path and its manifest."""

    def prepare_it(name: str = "out", **settings):
        facts = prepare_retrieval(RetrievalSettings(beir, **settings), data, tmp_path / name)
        return tmp_path / name, facts

    return prepare_it


def test_folder(beir, prepare_task):
    negatives = write_negatives(beir, [(0, 7), (0, 3), (0, 4), (1, 2), (6, 1)])
    folder, facts = prepare_task(hard_negatives=negatives, negatives_per_query=1)
    counts = {"queries": 6, "judgments": 8, "relevant_pairs": 7, "queries_without_relevant_document": 0}
    assert facts["splits"]["train"] == counts
    assert facts["negatives"] == {"taken": 2, "relevant": 1, "of_other_queries": 1, "queries": 2}
    assert np.load(folder / "train.negatives.npy").tolist() == [[0, 3], [1, 2]]
    assert (folder / "documents.ids").read_text(encoding="utf-8").split() == [f"d{row}" for row in range(8)]
    qrels = (folder / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert qrels[:4] == ["query-id\tcorpus-id\tscore", "q0\td0\t1", "q0\td1\t0", "q0\td7\t2"]
    assert not (folder / "valid.judgments.npy").exists()
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8")) == facts


def test_held_out_queries_take_their_judgments_along(prepare_task):
    folders = [prepare_task(name, valid_fraction=0.34)[0] for name in ("one", "two")]
    tables = [[np.load(folder / f"{split}.judgments.npy") for split in ("train", "valid")] for folder in folders]
    train, valid = tables[0]
    assert all(np.array_equal(one, two) for one, two in zip(*tables))
    assert len(np.unique(valid[:, 0])) == 2 and len(train) + len(valid) == 8
    assert not set(train[:, 0]) & set(valid[:, 0])


@given(st.sets(st.text("abc123", min_size=1), min_size=2, max_size=30), st.floats(0.01, 0.99), st.integers(0, 5))
def test_what_is_held_out_depends_on_ids_and_seed_alone(identifiers, fraction, seed):
    chosen = held_out(sorted(identifiers), fraction, seed)
    assert chosen == held_out(sorted(identifiers, reverse=True), fraction, seed)
    assert 1 <= len(chosen) < len(identifiers) and chosen < identifiers


def test_training_batches(beir, prepare_task):
    folder, _ = prepare_task(hard_negatives=write_negatives(beir, [(0, row) for row in (2, 3, 4, 5, 6)]))
    relevant = group_relevant(np.load(folder / "train.judgments.npy"))
    negatives = group_pairs(np.load(folder / "train.negatives.npy"))
    queries, documents = texts_of(folder, "queries"), texts_of(folder, "documents")
    dataset = RetrievalPairDataset(queries, documents, relevant, negatives, drawn=2, seed=1)
    pairs = [(0, 0), (0, 7), *((row, row) for row in range(1, 6))]
    assert list(zip(dataset.query_rows, dataset.document_rows)) == pairs
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
    with pytest.raises(ValueError, match="give at least --max-tokens"):
        dataset.batch_by_size(dataset.ordered_indices(), max_tokens=5)


def test_validation_items_are_the_queries_and_all_documents(prepare_task):
    folder, _ = prepare_task()
    queries, documents = texts_of(folder, "queries"), texts_of(folder, "documents", max_length=3)
    assert documents.lengths.max() == 3 and documents.cut == int((queries.lengths > 3).sum())
    relevant = group_relevant(np.load(folder / "test.judgments.npy"))
    target = Target(list(relevant.values()), {}, ["q6", "q7"], [f"d{row}" for row in range(8)])
    dataset = RetrievalTextDataset("test", queries, documents, np.array(list(relevant)), target)
    assert len(dataset) == 2 + 8
    assert dataset.ordered_indices().tolist() == np.argsort(-dataset.sizes, kind="stable").tolist()
    batch = dataset.collater([1, 2])
    assert batch["split"] == "test" and batch["ntokens"] == int(queries.lengths[7]) + 3
    assert batch["net_input"]["src_tokens"][0, : queries.lengths[7]].tolist() == queries.tokens(7).tolist()
    assert batch["net_input"]["src_tokens"][1, :3].tolist() == documents.tokens(0).tolist()


@pytest.mark.parametrize(
    ("settings", "dev", "message"),
    [
        ({"valid_fraction": 1.5}, None, "--valid-fraction must be between 0.001 and 0.999, not 1.5"),
        ({"negatives_per_query": 0}, None, "--negatives-per-query must be at least 1, not 0"),
        ({"valid_fraction": 0.5}, (6, 6, 1), "leave out --valid-fraction"),
        ({}, (6, 6, 0), "dev.tsv has no relevant document"),
        ({}, (6, 9, 1), "dev.tsv:2: the id 'd9' is not in the documents"),
    ],
)
def test_what_does_not_fit_is_refused(settings, dev, message, beir, prepare_task):
    if dev is not None:
        write_qrels(beir, "dev", [dev])
    with pytest.raises(ValueError, match=message):
        prepare_task(**settings)
    assert not (beir.parent / "out").exists()


def test_files_of_another_layout_are_refused(beir, prepare_task):
    (beir / "queries.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="queries.jsonl has no texts"):
        prepare_task()
    (beir / "qrels" / "train.tsv").unlink()
    for settings in ({"valid_fraction": 0.5}, {"hard_negatives": beir / "queries.jsonl"}):
        with pytest.raises(ValueError, match="there is no .*train.tsv"):
            prepare_task(**settings)
    shutil.rmtree(beir / "qrels")
    with pytest.raises(FileNotFoundError, match="there are no judgments: give at least one of"):
        prepare_task()
