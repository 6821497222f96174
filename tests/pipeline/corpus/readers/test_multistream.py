"""A multistream dump read in parts: the same documents as reading it whole, whatever is damaged in
it.
"""

from __future__ import annotations

import bz2

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia import dump
from cloze.pipeline.corpus.readers.encyclopedia.dump import reader
from tests.pipeline.corpus.readers.made import HEAD, page
from tests.pipeline.corpus.reading import options_of

NAME = "dewiki-20260101-pages-articles-multistream.xml.bz2"
INDEX = "dewiki-20260101-pages-articles-multistream-index.txt.bz2"
HEADER = HEAD.replace("Our Wiki", "Our Wiki</namespace><namespace key='6'>Datei")


def text(number):
    return (
        f"[[Datei:X.jpg|thumb|caption]]It is article {number} of the "
        f"dump.{' And more of it is here.' * (number % 40)}"
    )


def write(directory, streams=30, pages=4, index=INDEX, change=None):
    """A dump of `streams` streams, `pages` pages each; `change(packed streams)` may damage it."""
    packed = [bz2.compress(HEADER.encode())]
    lines, offset = [], len(packed[0])
    for stream in range(streams):
        numbers = range(stream * pages + 1, (stream + 1) * pages + 1)
        packed.append(
            bz2.compress("".join(page(f"P{n}", text(n), number=n) for n in numbers).encode())
        )
        lines += [f"{offset}:{n}:P{n}\n" for n in numbers]
        offset += len(packed[-1])
    packed.append(bz2.compress(b"</mediawiki>"))
    directory.mkdir(exist_ok=True)
    (directory / NAME).write_bytes(b"".join(change(packed) if change else packed))
    if index:
        data = "".join(lines).encode()
        (directory / index).write_bytes(bz2.compress(data) if index.endswith(".bz2") else data)
    return directory / NAME


def read(path, stop=True):
    documents, tallies = [], []
    for file_slice in reader.slices(str(path)):
        tallies.append(ReadCounters(slice=file_slice, stop=stop))
        documents += reader.read(file_slice, options_of(reader, stop=stop), tallies[-1])
    return documents, tallies


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(dump, "SLICE_BYTES", 1500)


@pytest.mark.parametrize("index", [INDEX, INDEX.removesuffix(".bz2")])
@pytest.mark.usefixtures("small_parts")
def test_parts_give_the_documents_of_the_whole(tmp_path, index):
    whole, _ = read(write(tmp_path / "whole", index=None))
    path = write(tmp_path / "parts", index=index)
    slices = reader.slices(str(path))
    assert len(slices) > 3
    assert [file_slice.span[0] for file_slice in slices[1:]] == [
        file_slice.span[1] for file_slice in slices[:-1]
    ]
    assert (slices[0].span[0], slices[-1].span[1]) == (0, path.stat().st_size)
    assert sum(file_slice.size for file_slice in slices) == path.stat().st_size
    assert {reader.files(file_slice)[0] for file_slice in slices} == {(NAME, str(path))}
    documents, tallies = read(path)
    assert documents == whole
    assert len(whole) == 120
    assert whole[0].id == f"wikipedia/{NAME}/1"
    assert all(
        d.text.startswith("It is article") for d in documents
    )  # the names of namespaces are known in every part
    assert sum(tally.counters["read/documents"] for tally in tallies) == 120
    assert not any(tally.unreadable for tally in tallies)


def test_a_small_dump_is_one_split(tmp_path):
    assert len(reader.slices(str(write(tmp_path / "a")))) == 1


@pytest.mark.usefixtures("small_parts")
def test_names_of_numbered_dumps(tmp_path):
    path = write(tmp_path / "a", index=None)
    numbered = path.rename(
        path.parent / "enwiki-20260101-pages-articles-multistream7.xml-p5p900.bz2"
    )
    assert dump.index_name(str(numbered)) is None
    index = path.parent / "enwiki-20260101-pages-articles-multistream-index7.txt-p5p900.bz2"
    index.write_bytes(b"")
    assert dump.index_name(str(numbered)) == str(index)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "lines",
    [b"", b"no index\n", b"7:1:A\n2000:2:B\n4000:3:C\n", b"999999999:1:A\n", b"\0\xff" * 100],
)
def test_an_index_that_does_not_fit_is_left_alone(tmp_path, lines):
    path = write(tmp_path / "a")
    (tmp_path / "a" / INDEX).write_bytes(bz2.compress(lines))
    assert len(reader.slices(str(path))) == 1
    assert len(read(path)[0]) == 120


def broken(packed):
    packed[9] = packed[9][:60] + b"\xa5" * 20 + packed[9][80:]
    return packed


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("index", [None, INDEX])
def test_a_damaged_stream_costs_its_pages(tmp_path, index):
    path = write(tmp_path / "a", index=index, change=broken)
    with pytest.raises(DataError, match="damaged"):
        read(path)
    documents, tallies = read(path, stop=False)
    lost = {f"wikipedia/{NAME}/{n}" for n in range(33, 37)}
    assert {f"wikipedia/{NAME}/{n}" for n in range(1, 121)} - {d.id for d in documents} == lost
    rejected = [entry for tally in tallies for entry in tally.unreadable]
    assert len(rejected) == 1
    begin = rejected[0].offset
    assert path.read_bytes()[begin : begin + 3] == b"BZh"
    assert rejected[0].file == f"wikipedia/{NAME}"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("index", [None, INDEX])
def test_a_dump_that_was_cut_off(tmp_path, index):
    path = write(tmp_path / "a", index=index)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    documents, tallies = read(path, stop=False)
    assert 70 < len(documents) < 90
    assert sum(tally.counters["quarantined/truncated"] for tally in tallies) == 1


@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_dump_whose_first_stream_is_lost(tmp_path):
    def change(packed):
        packed[0] = packed[0][:30] + bytes(20) + packed[0][50:]
        return packed

    documents, tallies = read(write(tmp_path / "a", change=change), stop=False)
    assert len(documents) == 120
    assert sum(len(tally.unreadable) for tally in tallies) == 1
