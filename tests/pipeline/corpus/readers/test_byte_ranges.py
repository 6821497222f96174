"""Large files of lines and records are cut, and the documents are those of the whole file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers import byte_ranges, records, warc
from cloze.pipeline.corpus.readers.base import FileReader, ReadCounters, Slice
from tests.object_store import Store
from tests.pipeline.corpus.readers.made import record, response
from tests.pipeline.corpus.reading import options_of

WHOLE = byte_ranges.SLICE_BYTES
TEXTS = st.lists(st.text('aé\n\r\u2028 WARC/1.0{}"', max_size=60), min_size=1, max_size=20)
few = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(reader: FileReader, path: Path | str, size: int) -> tuple[list[Document], int]:
    """The documents of a file that is cut at about every `size` bytes, and the slices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_ranges, "SLICE_BYTES", size)
        slices = reader.slices(str(path))
    found: list[Document] = []
    for one in slices:
        tally = ReadCounters(slice=one)
        found += reader.read(one, options_of(reader), tally)
        assert not tally.unreadable
    return found, len(slices)


@few
@given(TEXTS, st.integers(1, 200), st.booleans())
def test_lines_of_json(tmp_path: Path, texts: list[str], size: int, has_end: bool) -> None:
    lines = "\n".join(json.dumps({"id": f"n{n}", "text": t + "."}) for n, t in enumerate(texts))
    (path := tmp_path / "a.jsonl").write_text(lines + "\n" * has_end)
    assert read(records.reader, path, size)[0] == read(records.reader, path, WHOLE)[0]


@few
@given(TEXTS, st.integers(1, 600), st.booleans())
def test_records_of_a_crawl(tmp_path: Path, texts: list[str], size: int, packed: bool) -> None:
    pages = [response(n, f"{t}.", mime="text/plain") for n, t in enumerate(texts)]
    path = tmp_path / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(b"".join(map(gzip.compress, pages) if packed else pages))
    documents, slices = read(warc.reader, path, size)
    assert documents == read(warc.reader, path, WHOLE)[0]
    assert slices <= max(1, path.stat().st_size // size)


@pytest.mark.parametrize("size", [1, WHOLE + 1, 2 * WHOLE - 1])
def test_a_file_of_one_slice_is_not_opened_to_be_cut(size: int) -> None:
    whole = Slice(kind="jsonl", path="/no/such/file.jsonl", name="file.jsonl", size=size)
    assert records.reader.cut(whole) == [whole]


@pytest.mark.parametrize("packed", [False, True])
def test_each_slice_of_a_long_file_has_its_share(tmp_path: Path, packed: bool) -> None:
    pages = [response(n, f"A page {n}.", mime="text/plain") for n in range(300)]
    path = tmp_path / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(b"".join(map(gzip.compress, pages) if packed else pages))
    assert read(warc.reader, path, path.stat().st_size // 10)[1] == 10


def test_records_without_an_id_are_named_by_their_byte(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"The {n} of them."}) for n in range(9)]
    (path := tmp_path / "a.jsonl").write_text("\n".join(lines))
    first, others = ([d.id for d in read(records.reader, path, size)[0]] for size in (40, 90))
    assert first == others == [f"jsonl/a.jsonl/#@{n * (len(lines[0]) + 1)}" for n in range(9)]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n \r\n"])
def test_the_byte_of_a_line_is_that_of_the_file(tmp_path: Path, mark: bytes, end: bytes) -> None:
    lines = [json.dumps({"text": f"The {n} of them."}).encode() for n in range(9)]
    (path := tmp_path / "a.jsonl").write_bytes(content := mark + end.join(lines))
    places = [int(d.id.partition("@")[2]) for d in read(records.reader, path, 120)[0]]
    assert places == [0, *(content.index(line) for line in lines[1:])]


@few
@given(st.integers(1, 900), st.sampled_from(["\n", "\r\n"]), st.integers(0, 7))
def test_a_page_that_quotes_a_record_is_whole(
    tmp_path: Path, size: int, end: str, length: int
) -> None:
    head = ["", "", "WARC/1.0", "WARC-Type: response", f"Content-Length: {length}", "", "It ends."]
    pages = [response(n, f"A {n}.{end.join(head)}", mime="text/plain") for n in range(12)]
    (path := tmp_path / "a.warc").write_bytes(b"".join(pages))
    assert read(warc.reader, path, size)[0] == read(warc.reader, path, WHOLE)[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'[{"text": "One."},\n{"text": "Two."}]'),
        ("a.jsonl", '{"text": "One."}\n{"text": "Two."}\n'.encode("utf-16")),
        ("a.jsonl.gz", gzip.compress(b'{"text": "One."}\n{"text": "Two."}\n')),
    ],
    ids=["array", "UTF-16", "packed"],
)
def test_what_cannot_be_cut_stays_whole(tmp_path: Path, name: str, content: bytes) -> None:
    (path := tmp_path / name).write_bytes(content)
    found, slices = read(records.reader, path, 5)
    assert ([d.paragraphs for d in found], slices) == ([("One.",), ("Two.",)], 1)


def test_a_crawl_inside_a_crawl_is_never_read_in_silence(tmp_path: Path) -> None:
    inner = b"".join(gzip.compress(response(n, "An inner page.")) for n in range(50))
    outer = record(1, "x", kind="resource", mime="application/gzip")
    outer = outer.replace(b"Content-Length: 1", f"Content-Length: {len(inner)}".encode())
    outer = outer.replace(b"\r\n\r\nx", b"\r\n\r\n" + inner)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gzip.compress(outer, compresslevel=0) + gzip.compress(response(2)))
    with pytest.raises(DataError, match="compressed stream"):
        read(warc.reader, path, 2000)


@pytest.mark.parametrize("ending", ["jsonl", "warc", "warc.gz"])
def test_slices_in_a_store_give_the_documents_of_a_disk(
    store: Store, tmp_path: Path, ending: str
) -> None:
    """Of a slice in a store nothing is fetched beyond its end."""
    pages = [response(n, f"A page {n}.", mime="text/plain") for n in range(40)]
    if ending == "jsonl":
        pages = [json.dumps({"text": f"A page {n}."}).encode() + b"\n" for n in range(40)]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"".join(map(gzip.compress, pages) if ending == "warc.gz" else pages))
    reader = records.reader if ending == "jsonl" else warc.reader
    size = path.stat().st_size // 5
    found = read(reader, store.upload(tmp_path, "crawl") + f"/{path.name}", size)
    assert found == read(reader, path, size)
    assert (len(found[0]), found[1]) == (40, 5)
