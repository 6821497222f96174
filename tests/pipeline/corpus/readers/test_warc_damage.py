"""Damage in WARC files: it costs the records it touches, whatever the file consists of."""

from __future__ import annotations

import gzip
import re

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.warc import reader
from tests.pipeline.corpus.readers.made import SENTENCE, record, response
from tests.pipeline.corpus.reading import options_of

COUNT = 6
RECORDS = [response(n, f"<p>{SENTENCE} Page {n} is read, too.") for n in range(COUNT)]


def read(path, data, stop=False, **options):
    path.write_bytes(data)
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice, stop=stop)
    documents = list(reader.read(file_slice, options_of(reader, stop=stop, **options), tally))
    numbers = [re.search(r"Page (\d+) is read", document.text) for document in documents]
    return [int(match[1]) for match in numbers if match], tally


def packed(data: bytes, width: int) -> bytes:
    """gzip members of `width` bytes of content each."""
    return b"".join(
        gzip.compress(data[begin : begin + width]) for begin in range(0, len(data), width)
    )


@pytest.mark.parametrize("width", [100, 977, 1 << 20])
def test_members_need_not_be_records(tmp_path, width):
    numbers, tally = read(tmp_path / "a.warc.gz", packed(b"".join(RECORDS), width), stop=True)
    assert numbers == list(range(COUNT))
    assert not tally.unreadable


def test_one_bad_record_in_a_member_of_many(tmp_path):
    records = [*RECORDS[:2], response(99, length=7), *RECORDS[2:]]
    numbers, tally = read(tmp_path / "a.warc.gz", gzip.compress(b"".join(records)))
    assert numbers == list(range(COUNT))
    assert [entry.reason for entry in tally.unreadable] == ["bad_length"]


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
@pytest.mark.parametrize(
    "junk", [b"junk", b"junk\r\n\r\n", bytes(9000), b"<p>text</p>\n" * 9000, b"WARC/1.0\r\n", b"W"]
)
def test_junk_between_records(tmp_path, name, junk):
    """Also at the file's end; what precedes and follows the junk is read."""
    data = b"".join((*RECORDS[:3], junk, *RECORDS[3:], junk))
    data = gzip.compress(data) if name.endswith("gz") else data
    numbers, tally = read(tmp_path / name, data)
    assert numbers == list(range(COUNT))
    assert len(tally.unreadable) == (1 if junk.startswith(b"WARC") else 2)
    passed = [re.search(r"([\d,]+) bytes are", entry.sentence) for entry in tally.unreadable]
    assert [int(match[1].replace(",", "")) for match in passed if match] == [len(junk)] * len(
        tally.unreadable
    )


@pytest.mark.parametrize("end", [b"\n\n", b"\n", b"", b"\r\n\r\n\r\n\r\n", b"\r\r"])
def test_odd_ends_of_records(tmp_path, end):
    data = b"".join(each.removesuffix(b"\r\n\r\n") + end for each in RECORDS)
    numbers, tally = read(tmp_path / "a.warc", data, stop=True)
    assert numbers == list(range(COUNT))
    assert not tally.unreadable


def test_lines_that_end_in_a_line_feed_alone(tmp_path):
    heads = [each.partition(b"\r\n\r\n") for each in RECORDS]
    data = b"".join(head.replace(b"\r", b"") + b"\n\n" + body for head, _, body in heads)
    assert read(tmp_path / "a.warc", data, stop=True)[0] == list(range(COUNT))


def test_a_record_that_is_cut_off_is_followed_by_the_next(tmp_path):
    data = RECORDS[0] + RECORDS[1][:-60] + b"".join(RECORDS[2:])
    numbers, tally = read(tmp_path / "a.warc", data)
    assert numbers == [0, 2, 3, 4, 5]
    assert tally.counters["quarantined/bad_length"] == 1


def test_a_version_line_in_a_page_is_text(tmp_path):
    page = f"<p>{SENTENCE}</p><pre>\r\n\r\n{RECORDS[0].decode()}</pre>"
    numbers, tally = read(
        tmp_path / "a.warc", response(7, f"<p>Page 7 is read.</p>{page}") + RECORDS[1], stop=True
    )
    assert numbers == [7, 1]
    assert not tally.unreadable


@pytest.mark.parametrize("stop", [False, True])
def test_a_record_beyond_the_limit_that_lies(tmp_path, stop):
    big = response(50, "<p>" + "It is long. " * 30_000)
    lying = response(51, length=10**17)
    data = b"".join((RECORDS[0], big, RECORDS[1], lying, *RECORDS[2:]))
    numbers, tally = read(tmp_path / "a.warc", data, stop, maximum_document_bytes=50_000)
    assert numbers == list(range(COUNT))
    assert tally.counters["dropped/too_long"] == 1
    assert tally.counters["quarantined/bad_length"] == 1


@pytest.mark.parametrize(
    "begin", [b"an own format\r\n", b"<xml>WARC/1.0", b"WARC/x\r\nA: 1\r\n\r\n"]
)
def test_a_file_without_any_record_is_damaged(tmp_path, begin):
    with pytest.raises(DataError, match="no WARC record begins at byte 0"):
        read(tmp_path / "a.warc", begin * 100, stop=True)


@pytest.mark.parametrize("name", ["a.arc", "a.arc.gz", "a.warc"])
def test_an_arc_file_is_named(tmp_path, name):
    data = b"filedesc://a.arc 0.0.0.0 20010101000000 text/plain 76\n1 0 Alexa\n\n" + RECORDS[0]
    data = gzip.compress(data) if name.endswith("gz") else data
    with pytest.raises(DataError, match="an ARC file.*warcio recompress"):
        read(tmp_path / name, data, stop=True)


def test_revisits_are_counted(tmp_path):
    data = b"".join((*RECORDS, record(9, "", kind="revisit"), record(9, "x", kind="continuation")))
    numbers, tally = read(tmp_path / "a.warc", data)
    assert numbers == list(range(COUNT))
    assert tally.counters["dropped/not_stored"] == 2
    assert tally.counters["read/documents"] == COUNT + 2


@pytest.mark.parametrize("is_packed", [False, True])
def test_zstd_with_a_dictionary(tmp_path, is_packed):
    dictionary = zstd.train_dict([response(n) + b"%d" % n**9 for n in range(200)], 4096)
    content = dictionary.dict_content
    content = zstd.compress(content) if is_packed else content
    frames = [zstd.compress(each, zstd_dict=dictionary) for each in RECORDS]
    head = b"\x5d\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content
    numbers, tally = read(tmp_path / "a.warc.zst", head + b"".join(frames), stop=True)
    assert numbers == list(range(COUNT))
    assert not tally.unreadable
    frames[2] = frames[2][:20]
    numbers, tally = read(tmp_path / "b.warc.zst", head + b"".join(frames))
    assert set(numbers) >= {0, 1, 4, 5}
    assert tally.counters["quarantined/damaged"] == 1


CHANGES = st.one_of(
    st.tuples(st.just("cut"), st.integers(1, 150)),
    st.tuples(st.just("insert"), st.binary(min_size=1, max_size=80)),
    st.tuples(st.just("flip"), st.integers(1, 255)),
)


@settings(max_examples=100, deadline=None)
@given(
    change=CHANGES,
    where=st.floats(0, 1, exclude_max=True),
    name=st.sampled_from(["a.warc", "a.warc.gz", "b.warc.gz"]),
)
def test_one_damage_costs_two_records_at_most(tmp_path_factory, change, where, name):
    """A damaged place may be the end of one record and the beginning of the next."""
    kind, amount = change
    members = [gzip.compress(each) for each in RECORDS] if name == "a.warc.gz" else RECORDS
    data = b"".join(members)
    position = int(where * len(data))
    if kind == "cut":
        data = data[:position] + data[position + amount :]
    elif kind == "insert":
        data = data[:position] + amount + data[position:]
    else:
        data = data[:position] + bytes([data[position] ^ amount]) + data[position + 1 :]
    data = packed(data, 200) if name == "b.warc.gz" else data
    numbers, tally = read(tmp_path_factory.mktemp("x") / name, data)
    assert len(set(numbers) & set(range(COUNT))) >= COUNT - 2
    dropped = sum(n for key, n in tally.counters.items() if key.startswith("dropped/"))
    assert len(numbers) + dropped + len(tally.unreadable) >= COUNT - 1
