"""Packed files: every stream of them, parts, damage, bombs, and other encodings."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.corpus.readers.streams import (
    MAXIMUM_RATIO,
    CorruptStreamError,
    as_utf8,
    open_source,
)

PACK = {
    "bz2": bz2.compress,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}
PIECES = [
    bytes(f"Piece {n} " * (200 + n), "ascii") + bytes((n * k) % 251 for k in range(5000))
    for n in range(6)
]


def read(path, part=None, size=1000):
    """(bytes, what was damaged)"""
    source = open_source(str(path), part)
    found, damage = [], []
    try:
        while True:
            try:
                data = source.read(size)
            except CorruptStreamError as error:
                damage.append((error.reason, error.offset))
                continue
            if not data:
                return b"".join(found), damage
            found.append(data)
    finally:
        source.close()


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("ending", [*PACK, "txt"])
def test_all_streams_are_read(tmp_path, ending):
    pack = PACK.get(ending, bytes)
    path = write(tmp_path / f"a.{ending}", b"".join(pack(piece) for piece in PIECES))
    assert read(path) == (b"".join(PIECES), [])
    assert read(path, size=1 << 20) == (b"".join(PIECES), [])


@pytest.mark.parametrize("ending", PACK)
def test_a_damaged_stream_costs_itself_alone(tmp_path, ending):
    packed = [PACK[ending](piece) for piece in PIECES]
    begin = sum(map(len, packed[:2]))
    for broken in (
        packed[2][: len(packed[2]) // 2]
        + b"\xa5" * 40
        + packed[2][len(packed[2]) // 2 + 40 :],  # overwritten
        packed[2][: len(packed[2]) // 2],  # cut
        packed[2][:-3],
    ):
        path = write(tmp_path / f"a.{ending}", b"".join([*packed[:2], broken, *packed[3:]]))
        data, damage = read(path)
        assert damage
        assert damage[0] == ("damaged", begin)
        assert data.startswith(PIECES[0] + PIECES[1])
        assert data.endswith(b"".join(PIECES[3:]))


@pytest.mark.parametrize("ending", PACK)
def test_a_file_that_ends_too_soon(tmp_path, ending):
    packed = b"".join(PACK[ending](piece) for piece in PIECES)
    data, damage = read(write(tmp_path / f"a.{ending}", packed[:-20]))
    assert [reason for reason, _ in damage] == ["truncated"]
    assert data.startswith(b"".join(PIECES[:5]))


def test_parts_are_the_whole(tmp_path):
    packed = [bz2.compress(piece) for piece in PIECES]
    path = write(tmp_path / "a.bz2", b"".join(packed))
    borders = [0, sum(map(len, packed[:2])), sum(map(len, packed[:3])), sum(map(len, packed))]
    parts = [read(path, part) for part in zip(borders[:-1], borders[1:], strict=True)]
    assert b"".join(data for data, _ in parts) == b"".join(PIECES)
    assert not any(damage for _, damage in parts)


@pytest.mark.parametrize("ending", PACK)
def test_a_bomb_is_let_go_and_what_follows_is_read(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("cloze.pipeline.corpus.readers.streams.FREE_BYTES", 1 << 20)
    bomb = PACK[ending](bytes(80 << 20))
    assert len(bomb) * MAXIMUM_RATIO < 80 << 20
    path = write(tmp_path / f"a.{ending}", PACK[ending](b"before ") + bomb + PACK[ending](b"after"))
    data, damage = read(path, size=1 << 20)
    assert [reason for reason, _ in damage] == ["bomb"]
    assert data.startswith(b"before ")
    assert data.endswith(b"after")
    assert len(data) < 20 << 20


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize(
    "data", [b"", b"no packed file at all", bytes(100), b"BZh9", b"\x1f\x8b\x08"]
)
def test_a_file_of_something_else(tmp_path, ending, data):
    found, damage = read(write(tmp_path / f"a.{ending}", data))
    assert found == b""
    assert bool(damage) == bool(data.strip(b"\0"))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(PACK)),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
    st.integers(1, 5000),
)
def test_hostile_bytes_end(tmp_path_factory, ending, changes, size):
    streams = [PACK[ending](piece) for piece in PIECES[:3]]
    packed = bytearray(b"".join(streams))
    for position, value in changes:
        packed[position % len(packed)] = value
    path = write(tmp_path_factory.mktemp("x") / f"a.{ending}", bytes(packed))
    data, damage = read(path, size=size)
    assert all(0 <= offset <= len(packed) for _, offset in damage)
    if bytes(packed) == b"".join(streams):
        assert (data, damage) == (b"".join(PIECES[:3]), [])
    ends = list(itertools.accumulate(map(len, streams)))
    whole = [
        piece
        for piece, end in zip(PIECES, ends, strict=False)
        if packed[:end] == b"".join(streams)[:end]
    ]
    assert data.startswith(b"".join(whole))  # nothing before the damage is lost


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_marks_of_encodings(tmp_path, encoding):
    text = "Größe 東京 😀 here.\n" * 300
    mark = {"utf-16-le": "\ufeff", "utf-16-be": "\ufeff"}.get(encoding, "")
    source = as_utf8(open_source(str(write(tmp_path / "a.txt", (mark + text).encode(encoding)))))
    data = b""
    while piece := source.read(77):
        data += piece
    assert data.decode() == text
