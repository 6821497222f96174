"""HTTP heads that lie about the body: the body's bytes decide."""

from __future__ import annotations

import gzip
import itertools
import zlib

import brotli
import pytest
from backports import zstd
from hypothesis import example, given
from hypothesis import strategies as st

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.http_message import decode_body, parse_response
from cloze.pipeline.corpus.readers.warc import reader
from cloze.pipeline.corpus.readers.web_text import decode_page
from tests.pipeline.corpus.readers.made import PAGE, SENTENCE, record, response
from tests.pipeline.corpus.reading import options_of

BODY = PAGE.encode()
LIMIT = 1 << 20


def chunked(data: bytes, width: int = 100, extension: bytes = b"", end: bytes = b"\r\n") -> bytes:
    pieces = [data[begin : begin + width] for begin in range(0, len(data), width)]
    sized = b"".join(b"%X%b%b%b%b" % (len(p), extension, end, p, end) for p in pieces)
    return sized + b"0" + extension + end + end


def read(tmp_path, data):
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice)
    return list(reader.read(file_slice, options_of(reader), tally)), tally


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


HEADERS = [
    "",
    "Content-Encoding: gzip\r\n",
    "Content-Encoding: deflate\r\n",
    "Content-Encoding: br\r\n",
    "Content-Encoding: zstd\r\n",
    "Content-Encoding: gzip, br\r\n",
    "Content-Encoding: identity, x-unknown\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\nContent-Encoding: gzip\r\n",
    "Content-Length: 3\r\n",
    "Content-Length: 999999\r\n",
    "Content-Length: many\r\nContent-Length: 7\r\n",
]
BODIES = {
    "plain": BODY,
    "gzip": gzip.compress(BODY),
    "two gzip": gzip.compress(gzip.compress(BODY)),
    "gzip members": gzip.compress(BODY[:200]) + gzip.compress(BODY[200:]),
    "zstd": zstd.compress(BODY),
    "chunks": chunked(BODY),
    "chunks of gzip": chunked(gzip.compress(BODY), 50),
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("body", BODIES)
def test_any_header_over_any_body(tmp_path, header, body):
    (document,), tally = read(tmp_path, response(1, BODIES[body], more=header))
    assert document.paragraphs[0] == SENTENCE
    assert not tally.unreadable


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Content-Encoding: deflate", zlib.compress(BODY)),
        ("content-encoding: DEFLATE", raw_deflate(BODY)),
        ("Content-Encoding: br", brotli.compress(BODY)),
        ("Content-Encoding: gzip, br", brotli.compress(gzip.compress(BODY))),
        ("Transfer-Encoding: chunked", chunked(BODY, extension=b";name=value")),
        ("Transfer-Encoding: chunked", chunked(BODY, end=b"\n")),
        ("Transfer-Encoding: chunked", chunked(BODY)[:-2] + b"Trailer: x\r\n\r\n"),
        ("Transfer-Encoding: chunked", chunked(BODY, 1000)[:-12]),
        ("Transfer-Encoding: chunked\r\nContent-Encoding: br", chunked(brotli.compress(BODY), 9)),
        ("Content-Encoding: gzip", gzip.compress(BODY)[:-4]),
        ("Content-Encoding: gzip", gzip.compress(BODY) + b"\r\n"),
    ],
)
def test_true_headers(tmp_path, header, body):
    (document,), _ = read(tmp_path, response(1, body, more=f"{header}\r\n"))
    assert document.paragraphs[0] == SENTENCE


def test_damaged_bodies_keep_what_precedes_the_damage():
    text = b"".join(b"Line %d of a long page. " % n for n in range(40_000))
    packed = bytearray(gzip.compress(text))
    packed[len(packed) // 2] ^= 0xFF
    assert len(decode_body(bytes(packed), {}, LIMIT)) > len(text) // 4
    chunks = bytearray(chunked(text, 5000))
    chunks[chunks.index(b"1388", 9000) + 1] = ord("z")
    kept = decode_body(bytes(chunks), {"transfer-encoding": "chunked"}, LIMIT)
    assert kept.startswith(text[:5000])
    assert kept[-100:] == chunks[-100:]


def test_bombs_end_at_the_limit():
    bomb = bytes(8 << 20)
    for packed, coding in (
        (gzip.compress(bomb), ""),
        (gzip.compress(gzip.compress(bomb)), ""),
        (zstd.compress(bomb), ""),
        (brotli.compress(bomb), "br"),
        (zlib.compress(bomb), "deflate"),
    ):
        body = decode_body(packed, {"content-encoding": coding}, LIMIT)
        assert LIMIT < len(body) < 4 * LIMIT


HTTP_HEADS = [
    "HTTP/1.1 200 OK\nContent-Type: text/html; charset=utf-8\n\n",
    "HTTP/1.1 200\r\nContent-Type: text/html\r\n\r\n",
    "HTTP/2 200\r\ncontent-type: text/html\r\n\r\n",
    "HTTP/2.0 200 \r\ncontent-type: text/html\r\n\r\n",
    "http/1.1 200 OK\r\n\r\n".upper(),
    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
    "HTTP/1.0 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.1 301 Moved\r\nLocation: /a\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "\r\nHTTP/1.1 200 OK\r\n\r\n",
    "Content-Type: text/html\r\nServer: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nX-Folded: a\r\n  b\r\n\tc\r\nno field\r\n: none\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",
    "",
]


@pytest.mark.parametrize("head", HTTP_HEADS)
def test_heads(tmp_path, head):
    (document,), tally = read(tmp_path, record(1, head + PAGE))
    assert document.paragraphs[0] == SENTENCE
    assert not tally.unreadable


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("HTTP/2 404\r\n\r\n" + PAGE, "http_status"),
        ("HTTP/1.1 200 OK\r\n\r\n", "empty"),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n%PDF-1.5 and so on", "not_text"),
        ("HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG", "not_text"),
        ("No response at all", "not_http"),
    ],
)
def test_true_reasons(tmp_path, content, reason):
    documents, tally = read(tmp_path, record(1, content.encode("latin-1")))
    assert not documents
    assert tally.counters[f"dropped/{reason}"] == 1


@pytest.mark.parametrize("kind", ["resource", "conversion", "response"])
def test_kinds_of_records(tmp_path, kind):
    (document,), _ = read(tmp_path, record(1, PAGE, kind=kind, mime="text/html"))
    assert document.paragraphs[0] == SENTENCE
    (document,), _ = read(tmp_path, record(1, BODIES["gzip"], kind=kind, mime="text/html"))
    assert document.paragraphs[0] == SENTENCE


TEXT = "Die Türme über dem Fluß sind größer als früher. " * 9
LABELS = ["", "utf-8", "iso-8859-1", "windows-1251", "euc-jp", "shift_jis", "utf-16", "klingon"]


@pytest.mark.parametrize(("header", "meta"), list(itertools.product(LABELS, LABELS)))
def test_utf_8_is_recognized_under_any_label(header, meta):
    page = f"<html><meta charset={meta}>{TEXT}"
    assert TEXT in decode_page(page.encode(), header, is_html=True)
    assert decode_page(page.encode("utf-8-sig"), header, is_html=True) == page


@pytest.mark.parametrize(
    ("text", "codec"),
    [("Привет, мельница у реки. " * 9, "cp1251"), ("これは水車です。" * 9, "euc-jp")],
)
def test_meta_goes_before_a_servers_default(text, codec):
    page = f"<html><meta charset={codec.replace('cp', 'windows-')}>{text}".encode(codec)
    assert text in decode_page(page, "ISO-8859-1", is_html=True)
    assert text in decode_page(page, "", is_html=True)


def test_seven_bit_encodings_are_no_utf_8():
    text = "これは水車です。"
    assert decode_page(text.encode("iso-2022-jp"), "iso-2022-jp", is_html=False) == text


@given(
    st.lists(
        st.sampled_from(
            [b"HTTP/1.1 200 OK", b"\r\n", b"\n", b"a: b", b" ", b"5\r\n", b"0\r\n\r\n", b"<html>",
             b"content-encoding: br, deflate", b"transfer-encoding: chunked", b"x" * 9, b"\x1f\x8b",
             BODIES["gzip"][:60], b"\x28\xb5\x2f\xfd", b"\xff\0"]
        )
        | st.binary(max_size=9),
        max_size=25,
    ).map(b"".join)
)  # fmt: skip
@example(b"HTTP/1.1 200 OK")
def test_any_bytes_end(data):
    status, _, _ = parse_response(data, lambda body: body.startswith(b"<html"), 100)
    assert 0 <= status < 1000
    for fields in ({"transfer-encoding": "chunked"}, {"content-encoding": "br, deflate, gzip"}):
        assert isinstance(decode_body(data, fields, 100), bytes)
