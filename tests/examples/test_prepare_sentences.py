"""Tables larger than what is encoded at a time arrive whole."""

import importlib.util
from pathlib import Path

from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm.corpus import train_sentencepiece, write_dictionary
from fairseq_maelm.text.vocabulary import load_sentencepiece

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "finetuning" / "prepare_sentences.py"


def test_tables_longer_than_a_chunk_lose_nothing(tmp_path, monkeypatch):
    specification = importlib.util.spec_from_file_location("prepare_sentences", SCRIPT)
    assert specification is not None and specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    monkeypatch.setattr(script, "CHUNK", 10)

    lines = [f"the cook sailed boat number {number}\t{'even' if number % 2 == 0 else 'odd'}" for number in range(67)]
    table = tmp_path / "train.tsv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = tmp_path / "data"
    data.mkdir()
    (data / "sentencepiece.bpe.model").write_bytes(train_sentencepiece(lines, 60, "nmt_nfkc_cf", 1.0))
    write_dictionary(load_sentencepiece(data / "sentencepiece.bpe.model"), data / "dict.txt")
    script.prepare(data, {"train": table, "valid": table}, tmp_path / "task", regression=False)

    inputs = MMapIndexedDataset(str(tmp_path / "task" / "input0" / "train"))
    labels = MMapIndexedDataset(str(tmp_path / "task" / "label" / "train"))
    assert len(inputs) == len(labels) == 67
    assert [labels[number].tolist() for number in range(67)] == [[4 + number % 2, 2] for number in range(67)]
    assert len({tuple(inputs[number].tolist()) for number in range(67)}) == 67, "every line is there once"
