"""The benchmarks of the data path and of start-up run, on a small simulated corpus, and measure what they say."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset
from support import load_script

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A simulated corpus of about 200,000 tokens and what the benchmark says of it."""
    folder = tmp_path_factory.mktemp("corpus")
    return folder, load_script(BENCHMARKS / "start_up.py").write_corpus(folder, 200_000, 40)


def test_simulated_corpus_is_one_that_fairseq_reads(corpus):
    folder, counts = corpus
    dataset = MMapIndexedDataset(str(folder / "train"))
    assert len(dataset) == counts["lines"] and int(dataset.sizes.sum()) == counts["tokens"]
    assert abs(counts["tokens"] / 200_000 - 1) < 0.05
    assert abs(np.mean(dataset.sizes == 1) - 1 / 25) < 0.01
    assert not dataset[len(dataset) - 1].any()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("mode", ["complete_doc", "none"])
def test_start_up_ends_with_a_batch(corpus, mode):
    result = load_script(BENCHMARKS / "start_up.py").measure(corpus[0], mode, max_tokens=4096)
    assert result["first"] >= 8 and result["batches"] > 40
    assert result["whole_seconds"] >= result["load_seconds"]
    assert result["peak_megabytes"] >= result["imports_megabytes"] > 50


def test_data_path_compares_all_contenders(corpus, tmp_path, monkeypatch, capsys):
    words = f"--data {corpus[0]} --output {tmp_path / 'result.json'} --max-tokens 4096 --batches 1 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["data_path.py", *words.split(), "--padding-batches", "2"])
    load_script(BENCHMARKS / "data_path.py").main()
    result = json.loads((tmp_path / "result.json").read_text())
    assert len({row["contender"] for row in result["speed"]}) == 4 and len(result["speed"]) == 8
    assert all(row["million_tokens_per_second_and_core"] > 0 for row in result["speed"])
    full = next(row for row in result["padding_percent"] if row["break_mode"] == "none")
    assert full["encoder"] < 15 and full["length"] == 512
    assert len(result["padding_percent"]) == 16
    assert capsys.readouterr().out.count("| MAE-LM |") == 2
