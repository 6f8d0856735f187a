"""Retrieval through the real commands: BEIR layout in, an encoder trained, embeddings, a search, measures."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import usage_error

from end_to_end.small import assert_resumes
from end_to_end.test_distributed import run_ranks, weights
from end_to_end.toy import TOPICS, losses, run, train_log
from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.finetuning.retrieval import embed_command, search
from fairseq_maelm.finetuning.retrieval.hub import EmbeddingSettings, embed, embedding_settings, encode_text

pytest.importorskip("ir_measures")

PAIRS = 31  # Two ranks have 16 and 15 of them.

TRAINING = [
    *["--task", "maelm_retrieval", "--arch", "maelm_tiny", "--criterion", "maelm_retrieval", "--max-positions", "64"],
    *["--tokens-per-sample", "24", "--hard-negatives", "2", "--temperature", "0.1"],
    # Adam divides by the gradients' size: with a small epsilon, rounding decides where parameters go that have hardly
    # any gradient, and runs whose batches are cut in other ways could not be compared.
    *["--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-3", "--clip-norm", "0"],
    *["--lr-scheduler", "polynomial_decay", "--lr", "2e-3", "--warmup-updates", "2", "--total-num-update", "30"],
    *["--required-batch-size-multiple", "1", "--max-epoch", "8", "--validate-interval", "4", "--cpu"],
    *["--num-workers", "0", "--log-format", "json"],
    *["--log-interval", "1", "--seed", "1", "--batch-size-valid", "3"],
    *["--best-checkpoint-metric", "ndcg10", "--maximize-best-checkpoint-metric"],
    # Dropout draws other numbers for other shapes.
    *["--dropout", "0", "--attention-dropout", "0"],
]


def write_beir(folder: Path) -> Path:
    """Documents about who does something where; a query names two of a document's words."""
    generator = random.Random(4)
    documents, queries, judgments = [], [], []
    for topic in sorted(TOPICS):
        people, tools, deeds, places, manners = TOPICS[topic]
        for number, (who, tool, does, where) in enumerate(zip(people, tools, deeds, places)):
            text = f"The {who} {does} {generator.choice(manners)} with a {tool} near the {where}."
            documents.append({"_id": f"{topic}-{number}", "title": who, "text": text})
            for words in ((who, tool), (does, where), (tool, does)):
                queries.append({"_id": f"q{len(queries)}", "text": " ".join(words)})
                judgments.append((queries[-1]["_id"], documents[-1]["_id"]))
    generator.shuffle(judgments)
    splits = {"train": judgments[:PAIRS], "dev": judgments[PAIRS:]}
    (folder / "qrels").mkdir(parents=True)
    for name, records in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps(record) for record in records]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split, pairs in splits.items():
        rows = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in pairs)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    names = [document["_id"] for document in documents]
    negatives = [f"{query}\t{name}" for query, right in judgments for name in names if name[:4] == right[:4] != name]
    (folder / "negatives.tsv").write_text("\n".join(negatives) + "\n", encoding="utf-8")
    return folder


def maelm(*words: Any) -> None:
    """Run the package's command line in this process."""
    cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tmp_path_factory.mktemp("beir"))


@pytest.fixture(scope="module")
def prepared(beir: Path, toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrieval") / "data"
    words = ["prepare", "retrieval", beir, "--vocabulary", toy_data, "--output", folder]
    maelm(*words, "--hard-negatives", beir / "negatives.tsv")
    return folder


def training(prepared: Path, save_dir: Path, *options: Any) -> list[Any]:
    return ["fairseq-train", prepared, *TRAINING, "--batch-size", PAIRS, "--save-dir", save_dir, *options]


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, run(training(prepared, folder))


@pytest.fixture(scope="module")
def embedded(prepared: Path, trained: tuple[Path, str], beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``documents`` and ``queries``, embedded, and ``run``, what was found."""
    folder = tmp_path_factory.mktemp("embedded")
    for name, file in (("documents", "corpus.jsonl"), ("queries", "queries.jsonl")):
        options = ["--checkpoint", trained[0] / "checkpoint_last.pt", "--vocabulary", prepared, "--device", "cpu"]
        maelm("embed", beir / file, *options, "--output", folder / name)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(search, "_DOCUMENTS", 5)
        maelm("search", folder / "queries", folder / "documents", "--output", folder / "run")
    return folder


@pytest.mark.slow
def test_it_learns_and_validation_is_what_the_commands_find(prepared, trained, embedded, capsys):
    output = trained[1]
    curve = losses(output)
    assert len(curve) == 8 and curve[-1] < 0.7 * curve[0]
    validations = [entry for entry in train_log(output) if entry["split"] == "valid"]
    assert len(validations) == 2 and validations[-1]["valid_ndcg10"] > 50
    evaluation = ["evaluate", "retrieval", embedded / "run", "--qrels", prepared / "qrels" / "valid.tsv"]
    capsys.readouterr()
    maelm(*evaluation, "--json")
    metrics = json.loads(capsys.readouterr().out)[0]
    assert (metrics["queries"], metrics["unanswered"]) == (17, 0)
    for name, measure in (("ndcg10", "nDCG@10"), ("recall100", "R@100"), ("mrr10", "RR@10")):
        assert metrics[measure] == pytest.approx(validations[-1][f"valid_{name}"], abs=1e-3)
    maelm(*evaluation)
    table = re.sub(" +", " ", capsys.readouterr().out)
    assert f"| {metrics['nDCG@10']:.2f} | {metrics['R@100']:.2f} |" in table
    state = torch.load(trained[0] / "checkpoint_best.pt")
    assert state["extra_state"]["best"] == max(entry["valid_ndcg10"] for entry in validations)
    validation = run(
        ["fairseq-validate", prepared, "--path", trained[0] / "checkpoint_last.pt", "--task", "maelm_retrieval"]
        + ["--criterion", "maelm_retrieval", "--batch-size", 100, "--cpu", "--log-format", "json", "--num-workers", 0]
    )
    entry = next(entry for entry in train_log(validation) if "ndcg10" in str(entry))
    for name in ("ndcg10", "mrr10", "loss", "accuracy"):
        assert entry[f"valid_{name}"] == pytest.approx(validations[-1][f"valid_{name}"], rel=1e-4)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(prepared, trained, tmp_path):
    assert_resumes(training(prepared, tmp_path), tmp_path, trained, 3)


@pytest.mark.slow
def test_two_ranks_equal_one_rank_with_the_double_batch(prepared, trained, tmp_path):
    options = ["--batch-size", 16, "--max-epoch", 4, "--ddp-backend", "legacy_ddp"]
    output = run_ranks(training(prepared, tmp_path, *options), 2, tmp_path)
    one, two = (next(entry for entry in train_log(text) if entry["split"] == "valid") for text in (trained[1], output))
    for name in ("loss", "accuracy", "ndcg10", "recall100", "mrr10"):
        assert two[f"valid_{name}"] == pytest.approx(one[f"valid_{name}"], rel=1e-4)
    for name in ("loss", "negatives", "accuracy"):
        assert losses(output, "train_inner", name) == losses(trained[1], "train_inner", name)[:4]
    own, other = torch.load(trained[0] / "checkpoint4.pt")["model"], weights(tmp_path)
    assert own.keys() == other.keys()
    for name, tensor in own.items():
        difference = (tensor - other[name]).double().norm() / tensor.double().norm().clamp_min(1e-3)
        assert difference < 2e-6, f"{name}: relative difference {difference:.1e}"


def test_hub_interface_embeds_as_the_checkpoint_was_trained(prepared, trained, embedded, beir):
    hub = MaelmModel.from_pretrained(str(trained[0]), "checkpoint_last.pt", str(prepared))
    assert embedding_settings(hub) == EmbeddingSettings("mean", "cosine", 24)
    texts = [json.loads(line)["text"] for line in (beir / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = np.load(embedded / "queries" / "embeddings.npy")
    np.testing.assert_allclose(embed(hub, texts).numpy(), rows, rtol=1e-5, atol=1e-6)
    assert embed(hub, texts[:2], similarity="dot").norm(dim=1).min() > 1.5
    assert not torch.allclose(embed(hub, texts[:2], pooling="first"), embed(hub, texts[:2]))
    # The prepared files hold what the tokenizer makes of the texts.
    hub.task.load_dataset("valid")
    dataset = hub.task.datasets["valid"]
    assert dataset.queries.tokens(5).tolist() == encode_text(hub, texts[5], 24).tolist()


def test_an_interrupted_embedding_resumes_to_the_same_file(prepared, trained, embedded, beir, tmp_path, monkeypatch):
    words = ["embed", beir / "corpus.jsonl", "--checkpoint", trained[0] / "checkpoint_last.pt"]
    words += ["--vocabulary", prepared, "--device", "cpu", "--output"]
    monkeypatch.setattr(embed_command, "_WINDOW", 5)
    maelm(*words, tmp_path / "whole")
    write_json, written = embed_command.write_json, []

    def killed_at_the_third(path: Path, content: Any) -> None:
        written.append(content)
        if len(written) == 3:
            raise KeyboardInterrupt
        write_json(path, content)

    monkeypatch.setattr(embed_command, "write_json", killed_at_the_third)
    with pytest.raises(SystemExit) as stopped:
        maelm(*words, tmp_path / "parts")
    assert stopped.value.code == 130
    assert not (tmp_path / "parts" / "embeddings.npy").exists()
    with pytest.raises(SystemExit, match="retrieval.* was not written by `maelm embed`: there is no"):
        maelm("search", embedded / "queries", prepared.parent, "--output", tmp_path / "run")
    monkeypatch.setattr(embed_command, "write_json", write_json)
    with pytest.raises(SystemExit, match="made from something else: --pooling was 'mean' and is now 'first'"):
        maelm(*words, tmp_path / "parts", "--pooling", "first")
    maelm(*words, tmp_path / "parts")
    names = ["embeddings.npy", "ids.txt", "manifest.json"]
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]
    assert all((tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    # In other windows and batches the embeddings are the same but for rounding.
    rows = np.load(tmp_path / "parts" / "embeddings.npy")
    np.testing.assert_allclose(rows, np.load(embedded / "documents" / "embeddings.npy"), rtol=1e-5, atol=1e-6)
    maelm(*words, tmp_path / "parts")


def test_half_precision_rows_and_a_query_that_is_a_document(prepared, trained, embedded, beir, tmp_path):
    words = ["--checkpoint", trained[0] / "checkpoint_last.pt", "--vocabulary", prepared, "--device", "cpu"]
    maelm("embed", beir / "corpus.jsonl", *words, "--output", tmp_path / "half", "--dtype", "float16")
    rows = np.load(tmp_path / "half" / "embeddings.npy")
    assert rows.dtype == np.float16
    np.testing.assert_allclose(rows, np.load(embedded / "documents" / "embeddings.npy"), atol=1e-3)
    search = ["search", tmp_path / "half", tmp_path / "half", "--top-k", 2, "--output"]
    maelm(*search, tmp_path / "itself")
    maelm(*search, tmp_path / "others", "--leave-out-same-id")
    for name, same in (("itself", True), ("others", False)):
        lines = [line.split() for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        assert len(lines) == 2 * 16
        assert all((query == document) == same for query, _, document, rank, *_ in lines if rank == "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pooling", "first"], "cannot be compared: pooling is 'mean' and 'first'"),
        (["--output", "DONE"], "else: texts had the file .*corpus.jsonl and now has .*queries.jsonl"),
    ],
)
def test_what_cannot_be_embedded_or_compared(words, message, prepared, trained, embedded, beir, tmp_path):
    words = [embedded / "documents" if word == "DONE" else word for word in words]
    options = ["--checkpoint", trained[0] / "checkpoint_last.pt", "--vocabulary", prepared, "--device", "cpu"]
    with pytest.raises(SystemExit, match=message):
        maelm("embed", beir / "queries.jsonl", *options, "--output", tmp_path / "queries", *words)
        maelm("search", embedded / "queries", tmp_path / "queries", "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-length", "2"], "argument --max-length: must be at least 3, not 2"),
        (["--device", "nowhere"], "argument --device: nowhere cannot be used"),
    ],
)
def test_wrong_options_of_embed(words, message, prepared, trained, beir, tmp_path, capsys):
    options = ["--checkpoint", trained[0], "--vocabulary", prepared, "--output", tmp_path / "new", *words]
    assert message in usage_error(capsys, ["embed", beir / "queries.jsonl", *options])


def test_texts_cannot_be_longer_than_the_model_has_positions(trained, beir, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        maelm("embed", beir / "queries.jsonl", "--checkpoint", trained[0], "--output", tmp_path, "--max-length", 65)
    assert stopped.value.code == 2 and "64 (the model's positions), not 65" in capsys.readouterr().err


def test_recipe_takes_over_the_encoder(prepared, trained, tmp_path):
    words = ["maelm", "finetune", prepared, "--checkpoint", trained[0] / "checkpoint_last.pt", "--output", tmp_path]
    output = run([*words, "--gpus", 0, "--epochs", 7, "--batch-size", 16, "--dry-run"])
    command = output.splitlines()[-1]
    for words in ("--arch maelm", "--tokens-per-sample 64", "--max-update 14", "--warmup-updates 1", "--pooling mean"):
        assert f" {words} " in command


def test_nothing_is_overwritten(prepared, embedded, beir, toy_data):
    with pytest.raises(SystemExit, match="made from something else: .* name another folder, or remove it first"):
        maelm("prepare", "retrieval", beir, "--vocabulary", toy_data, "--output", prepared, "--seed", 7)
    with pytest.raises(SystemExit, match="exists already: name another"):
        maelm("search", embedded / "queries", embedded / "documents", "--output", embedded / "run")
