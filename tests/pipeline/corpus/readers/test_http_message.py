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


CROWN = (
    '<html><head><title>Home page</title><script>var menu = "open the menu";</script></head>'
    '<body><div class="menu"><a href="/about">About us</a> <a href="/terms">Terms</a></div><p>'
)
UNLABELLED = {
    "cp1250": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni "
    "obdarzeni rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "iso8859-2": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "cp852": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Az emberek, "
    "ésszel és lelkiismerettel bírván, egymással szemben testvéri szellemben kell hogy viseltessenek.",
    "cp1251": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "koi8-u": "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "mac-cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "cp1253": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "cp862": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "shift_jis": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "euc-kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "gb2312": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "iso2022_jp": "すべての人間は、生れながらにして自由であり、尊厳と権利とについて平等である。",
    "cp1252": "The mill “by the brook” isn’t open – © 1999 the miller’s family.",
}


@pytest.mark.parametrize("label", ["", "ISO-8859-1", "klingon"])
@pytest.mark.parametrize("codec", UNLABELLED)
def test_pages_without_a_true_label(codec, label):
    page = f"{CROWN}{f'{UNLABELLED[codec]} ' * 5}</p></body></html>"
    data = page.encode(codec)
    if not (data.isascii() and label == "ISO-8859-1"):
        assert decode_page(data, label, is_html=True) == page


def test_a_page_in_no_known_encoding_is_counted(tmp_path):
    page = f"{CROWN}{'Totus homines dźiwny kožuch łužyskeje młodźiny. ' * 9}".encode("cp852")
    documents, tally = read(tmp_path, response(1, page, "text/html"))
    assert not documents
    assert tally.counters["dropped/encoding"] == 1


def test_a_long_line_takes_no_quadratic_work():
    page = b"<html><script>" + b"var x;" * 100_000 + b"</script><p>Gr\xf6\xdfer"
    assert decode_page(page, is_html=True).endswith("Größer")
