"""Special tokens that users add to a source's tokenizer are one token for all commands, as for transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.finetuning.tagging.prepare import encode_words
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.text.vocabulary import MODEL_FILE

from . import sources
from .sources import MARKERS, transformers

SOURCES: dict[str, Callable[[Path], Path]] = {
    "WordPiece": sources.bert,
    "byte pairs": sources.roberta_folder,
    "sentencepiece": sources.xlm_roberta,
}
TEXTS = ["[E1] The sailor [/E1] takes the[PATIENT]rope.", "[PATIENT]", "x[E1][E1]y [/E1].", "a [E1", "old [PATIENT]!"]
TEXTS += ["The covfefe and the ship."]
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
        assert names(encoder.encode([text])[0][:-1]) == expected
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
    texts = [*TEXTS, ROLES.format(*roles_of(theirs))]
    assert [ours(text)["input_ids"] for text in texts] == [hub.encode(text, masks=False).tolist() for text in texts]
    again = MaelmModel.from_pretrained(str(tmp_path / "ours"))
    assert [again.encode(text).tolist() for text in TEXTS] == [hub.encode(text).tolist() for text in TEXTS]
