"""SQuAD and tagging over imported byte pairs, through the real commands: from the import to the answers."""

import json
from pathlib import Path

import pytest
from end_to_end.test_squad import write_questions
from end_to_end.toy import losses, run
from interop.importing import sources

from fairseq_maelm.text.imported import TOKENIZER_FILE

SETTINGS = ["--epochs", 1, "--batch-size", 4, "--gpus", 0, "--", "--max-update", 3]
SQUAD = ["--max-length", 36, "--doc-stride", 8, "--max-question-length", 12]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    run(["maelm", "import", sources.roberta_folder(folder / "source"), "--output", folder / "data"])
    return folder / "data"


@pytest.mark.slow
def test_squad(imported: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "train.json", 10, 1)
    write_questions(tmp_path / "dev.json", 4, 2)
    task, saved, checkpoint = tmp_path / "task", tmp_path / "saved", imported / "checkpoint_best.pt"
    files = ["--train", tmp_path / "train.json", "--valid", tmp_path / "dev.json"]
    run(["maelm", "prepare", "squad", "--vocabulary", imported, *files, "--output", task])
    assert (task / TOKENIZER_FILE).read_bytes() == (imported / TOKENIZER_FILE).read_bytes()
    finetune = ["maelm", "finetune", task, "--checkpoint", checkpoint, "--output", saved, *SETTINGS, *SQUAD]
    assert len(losses(run(finetune), "valid", "best_f1")) == 1

    model = ["--checkpoint", saved / "checkpoint_last.pt", "--vocabulary", imported, "--device", "cpu"]
    predictions = tmp_path / "predictions.json"
    run(["maelm", "predict", tmp_path / "dev.json", *model, "--output", predictions, "--threshold", "inf"])
    paragraphs = json.loads((tmp_path / "dev.json").read_text())["data"][0]["paragraphs"]
    contexts = {each["id"]: paragraph["context"] for paragraph in paragraphs for each in paragraph["qas"]}
    texts = json.loads(predictions.read_text())
    assert set(texts) == set(contexts) and all(texts[each] and texts[each] in contexts[each] for each in contexts)

    text = "Der B\u00e4cker  backt\u2026\r\n" + "The old table is near the door. " * 20
    (tmp_path / "text.txt").write_bytes(text.encode())
    words = ["maelm", "answer", tmp_path / "text.txt", "Who is it?", "Wo?", *model, "--json", "--threshold", "inf"]
    output = run(words)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(lines) == 2
    assert all(line["text"] and text[line["begin"] : line["end"]] == line["text"] for line in lines)
