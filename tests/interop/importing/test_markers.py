"""Special tokens that users add to a source's tokenizer are one token for all commands, as for transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.toy import run

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.finetuning.tagging.prepared import encode_words
from fairseq_maelm.interop.export.run import ExportSettings, export
from fairseq_maelm.interop.importing.run import import_model
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import MODEL_FILE

from . import sources
from .sources import MARKERS, transformers

SOURCES: dict[str, Callable[[Path], Path]] = {
    "WordPiece": sources.bert,
    "byte pairs": sources.roberta_folder,
    "byte pairs without spaces": sources.modernbert_folder,
    "unigram": sources.unigram,
    "sentencepiece": sources.xlm_roberta,
}
TEXTS = ["[E1] The sailor [/E1] takes the[PATIENT]rope.", "[PATIENT]", "x[E1][E1]y [/E1].", "a [E1", "old [PATIENT]!"]
ROLES = "the {} ship {} sails {} to {} the {} reef"


def roles_of(tokenizer: Any) -> tuple[str, ...]:
    return tuple(getattr(tokenizer, f"{name}_token") for name in ("cls", "sep", "pad", "unk", "mask"))


@pytest.fixture(scope="module", params=SOURCES)
def imported(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a source with markers and the folder of its import."""
    source = sources.with_markers(SOURCES[request.param](tmp_path_factory.mktemp("markers") / "source"))
    return source, import_model(source, source.parent / "imported").folder


def test_markers_are_single_tokens(imported: tuple[Path, Path]) -> None:
    """In all ways to read text, as in the source; the names of our own special symbols stay text."""
    source, folder = imported
    theirs, hub = transformers.AutoTokenizer.from_pretrained(source), MaelmModel.from_pretrained(str(folder))
    encoder = hub.tokenizer.encoder
    assert not (folder / MODEL_FILE).is_file(), "the sentencepiece model does not know the markers"

    def names(tokens: Any) -> list[str]:
        return [encoder.tokenizer.id_to_token(int(token)) for token in tokens]

    def their_names(text: str) -> list[str]:
        return list(theirs.convert_ids_to_tokens(theirs(text, add_special_tokens=False)["input_ids"]))

    for text in TEXTS:
        expected = their_names(text)
        assert names(hub.encode(text)[1:-1]) == names(hub.encode(text, masks=False)[1:-1]) == expected
        (tokens, words), aligned = encoder.encode_words([text])[0], encoder.encode_with_offsets(text)
        assert names(tokens) == names(aligned.tokens) == expected
        for place, name in enumerate(expected):
            if name in MARKERS:
                assert text[aligned.begin[place] : aligned.end[place]] == name
                assert (words == words[place]).sum() == 1, "a marker is a word"
    split, _ = encode_words(encoder, [["x", "[E1]sailor[/E1]", "[PATIENT]"]])
    assert [name for name in names(split.pieces) if name in MARKERS] == MARKERS
    text = ROLES.format(*roles_of(theirs))
    special = {hub.dictionary.bos(), hub.dictionary.pad(), hub.dictionary.eos(), hub.model.mask_index}
    assert not special & set(hub.encode(text, masks=False)[1:-1].tolist())
    filled = hub.encode("[E1] the <mask> [/E1]")
    assert names(filled)[1:-1] == their_names(f"[E1] the {theirs.mask_token} [/E1]")


def test_exports_read_markers_alike(imported: tuple[Path, Path], tmp_path: Path) -> None:
    """With the source's files and with our own, and with special symbols of ours spelled out in the text."""
    source, folder = imported
    theirs, hub = transformers.AutoTokenizer.from_pretrained(source), MaelmModel.from_pretrained(str(folder))
    export(folder / CHECKPOINT_FILE, None, tmp_path / "kept", ExportSettings())
    kept = transformers.AutoTokenizer.from_pretrained(tmp_path / "kept")
    assert [kept(text) for text in TEXTS] == [theirs(text) for text in TEXTS]
    export(folder / CHECKPOINT_FILE, None, tmp_path / "ours", ExportSettings(complete=True))
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    # Unigram models have the names of special symbols as pieces.
    is_unigram = "Unigram" in type(theirs.backend_tokenizer.model).__name__
    texts = TEXTS if is_unigram else [*TEXTS, ROLES.format(*roles_of(theirs))]
    assert [ours(text)["input_ids"] for text in texts] == [hub.encode(text, masks=False).tolist() for text in texts]
    again = MaelmModel.from_pretrained(str(tmp_path / "ours"))
    assert [again.encode(text).tolist() for text in TEXTS] == [hub.encode(text).tolist() for text in TEXTS]


@pytest.mark.slow
def test_a_label_that_depends_on_a_marker_alone(tmp_path: Path) -> None:
    """Our commands and the exported folder in transformers learn and give the same; a corpus keeps the markers."""
    source = sources.with_markers(sources.bert(tmp_path / "source", scale=0.05))
    run(["maelm", "import", source, "--output", tmp_path / "base"])
    table = tmp_path / "table.tsv"
    words = ("sailor", "old rope", "harbour", "night", "[SEP] reef", "[MASK]")
    labels = {"[E1]": "e", "[PATIENT]": "p"}
    rows = [f"The {each} {word} [/E1] rows.\t{labels[each]}" for word in words for each in labels]
    table.write_text("".join(f"{row}\n" for row in rows))
    prepare = ["maelm", "prepare", "sentences", "--vocabulary", tmp_path / "base", "--train", table, "--valid", table]
    run([*prepare, "--output", tmp_path / "task"])
    finetune = ["maelm", "finetune", tmp_path / "task", "--checkpoint", tmp_path / "base", "--gpus", 0]
    run([*finetune, "--output", tmp_path / "tuned", "--epochs", 60, "--batch-size", 6, "--lr", 1e-3])
    run(["maelm", "predict", table, "--checkpoint", tmp_path / "tuned", "--output", tmp_path / "predicted.tsv"])
    assert "verified" in run(["maelm", "export", "--checkpoint", tmp_path / "tuned", "--output", tmp_path / "stock"])
    header, *lines = [line.split("\t") for line in (tmp_path / "predicted.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == [row.split("\t")[1] for row in rows], "the markers decide"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "stock").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "stock")
    with torch.no_grad():
        batch = tokenizer([row.split("\t")[0] for row in rows], padding=True, return_tensors="pt")
        found = model(**batch).logits.softmax(dim=-1)
    expected = torch.tensor([[float(cell) for cell in line[2:4]] for line in lines])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    (tmp_path / "text.txt").write_text("\n\n".join(row.split("\t")[0] for row in rows) + "\n")
    run(["maelm", "prepare", "corpus", tmp_path / "text.txt", "--vocabulary", tmp_path / "base", "--workers", 1]
        + ["--output", tmp_path / "data", "--valid-fraction", 0.3])  # fmt: skip
    splits = [np.fromfile(tmp_path / "data" / f"{split}.bin", dtype=np.uint16) for split in ("train", "valid")]
    tokens = np.concatenate(splits).tolist()
    dictionary = load_dictionary(str(tmp_path / "data"))
    assert [tokens.count(dictionary.index(each)) for each in MARKERS] == [6, 12, 6]
