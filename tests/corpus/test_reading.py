"""Reading: every format gives the same documents, in bounded pieces, and bad input is named by file and line."""

import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_maelm.corpus import CorpusError, read_documents, reading
from fairseq_maelm.corpus.reading import Source, SourceReader, cleaned_lines, find_sources, segment_lines

from .texts import as_text, flat, make_documents

DOCUMENTS = make_documents(20)


def json_lines(documents: list[list[str]], field: str = "text") -> str:
    return "".join(json.dumps({"id": 1, field: "\n".join(document)}) + "\n" for document in documents)


FORMATS: dict[str, Callable[[], bytes]] = {
    "a.txt": lambda: as_text(DOCUMENTS).encode(),
    "no_suffix": lambda: as_text(DOCUMENTS).encode(),
    "windows.txt": lambda: as_text(DOCUMENTS).replace("\n", "\r\n").encode(),
    "marked.txt": lambda: as_text(DOCUMENTS).encode("utf-8-sig"),
    "blank.txt": lambda: ("\n \n" + as_text(DOCUMENTS).replace("\n\n", "\n\t\n\n") + "\n\n").encode(),
    "no_last_newline.txt": lambda: as_text(DOCUMENTS).rstrip("\n").encode(),
    "a.txt.gz": lambda: gzip.compress(as_text(DOCUMENTS).encode()),
    "two_members.gz": lambda: (
        gzip.compress(as_text(DOCUMENTS[:9]).encode() + b"\n") + gzip.compress(as_text(DOCUMENTS[9:]).encode())
    ),
    "a.jsonl": lambda: json_lines(DOCUMENTS).encode(),
    "blank.jsonl": lambda: ("\ufeff" + json_lines(DOCUMENTS).replace("\n", "\n\n")).encode(),
    "a.ndjson.xz": lambda: lzma.compress(json_lines(DOCUMENTS).encode()),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("segment_bytes", [1, 100, 10**6])
def test_every_format_gives_the_same_documents_in_segments_of_any_size(
    tmp_path: Path, name: str, segment_bytes: int
) -> None:
    path = tmp_path / name
    path.write_bytes(FORMATS[name]())
    assert list(read_documents(path)) == DOCUMENTS
    reader = SourceReader(find_sources([path])[0], segment_bytes)
    segments = list(reader)
    line = 1
    for segment in segments:
        assert segment.first_line == line
        assert segment.starts_file == (line == 1)
        line += segment.data.count(b"\n")
    assert len(segments) == 1 if segment_bytes == 10**6 else len(segments) > 5
    assert [text for segment in segments for text in cleaned_lines(segment) if text] == flat(DOCUMENTS)
    assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert reader.bytes_read == path.stat().st_size


def test_a_folder_is_read_recursively_in_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden", ".git/config"):
        (tmp_path / name).write_text(f"text of {name}")
    assert [path.relative_to(tmp_path).as_posix() for path in (s.path for s in find_sources([tmp_path]))] == [
        "a.txt",
        "b/1.txt",
        "b/2.txt",
    ]
    assert list(read_documents(tmp_path)) == [["text of a.txt"], ["text of b/1.txt"], ["text of b/2.txt"]]


def test_a_link_to_a_folder_is_named_and_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
        (each / "a.txt").write_text("text")
    (folder / "file").symlink_to(other / "a.txt")
    (folder / "link").symlink_to(other)
    (folder / ".hidden").symlink_to(other)
    assert [source.path for source in find_sources([folder])] == [folder / "a.txt", folder / "file"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder / 'link'} is a link to a folder, which is not read: to read it, name it as an input"
    ]
    caplog.clear()
    assert [source.path for source in find_sources([folder / "link"])] == [folder / "link" / "a.txt"]
    assert not caplog.records


def test_a_record_is_one_document_whatever_blank_lines_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    texts = ["one\n\n two \n\u200b\n\nthree\n", "", "\n\n", "four"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert list(read_documents(path)) == [["one", "two", "three"], ["four"]]


def test_another_json_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json_lines(DOCUMENTS, "body"))
    assert list(read_documents(path, json_field="body")) == DOCUMENTS


BAD_CONTENT = {
    "cut.txt": ("fine\nna\u00ef".encode()[:-1], r"cut\.txt:2: not valid UTF-8: byte 3 .* 0xc3"),
    "field.jsonl": (b'{"text": "a"}\n\n{"body": "b"}\n', r"field\.jsonl:3: the record has no field 'text'"),
    "list.jsonl": (b"[1]\n", r"list\.jsonl:1: a record must be a JSON object, not list"),
    "deep.jsonl": (b"[" * 100_000, r"deep\.jsonl:1: the record is nested too deep"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', r"broken\.jsonl:2: the record is not JSON"),
    "half.jsonl": (b'{"text": "\\ud83d"}\n', r"half\.jsonl:1: .* surrogate"),
    "cut.gz": (gzip.compress(b"abc" * 1000, mtime=0)[:-9], r"cut\.gz is damaged or truncated"),
    "a.txt.zst": (b"compressed", r"a\.txt\.zst is compressed in a way that is not read: unpack it"),
}


@pytest.mark.parametrize("name", BAD_CONTENT)
def test_bad_content_is_named(tmp_path: Path, name: str) -> None:
    content, message = BAD_CONTENT[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        list(read_documents(tmp_path / name))


def test_line_numbers_count_on_over_segments(tmp_path: Path) -> None:
    path = tmp_path / "late.txt"
    path.write_bytes(b"0123456789\n" * 50 + b"\xff\n")
    with pytest.raises(CorpusError, match=r"late\.txt:51: .* byte 1 "):
        [list(segment_lines(segment)) for segment in SourceReader(Source(path), 100)]


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE_BYTES", 2**20)
    path = tmp_path / "endless.txt"
    path.write_bytes(b"first\n" + b"word " * 2**20)
    with pytest.raises(CorpusError, match=r"endless\.txt:2: this line is longer than 1 MiB"):
        list(SourceReader(Source(path), 1000))


def test_missing_and_empty_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.txt does not exist"):
        find_sources([tmp_path / "nowhere.txt"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="empty holds no files"):
        find_sources([tmp_path / "empty"])


def test_an_unreadable_file_is_named() -> None:
    # The one file that exists and that not even a privileged process can read from its start.
    unreadable = Path("/proc/self/mem")
    if not unreadable.is_file():
        pytest.skip("needs Linux's /proc")
    with pytest.raises(CorpusError, match="cannot read /proc/self/mem: Input/output error"):
        list(SourceReader(Source(unreadable), 100))
