"""WARC and WET files: which records are read, their characters, their main text, and records that
lie.
"""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.warc import reader
from cloze.pipeline.corpus.readers.web_text import decode_page
from tests.growth import is_linear
from tests.pipeline.corpus.readers.made import PAGE, SENTENCE, record, response
from tests.pipeline.corpus.reading import options_of
from tests.pipeline.corpus.script_texts import TEXTS

INFO = record(0, "software: none", kind="warcinfo", mime="application/warc-fields")


def read(tmp_path, records, name="a.warc", stop=True, **settings):
    path = tmp_path / name
    path.write_bytes(
        b"".join(gzip.compress(r) for r in records) if name.endswith(".gz") else b"".join(records)
    )
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice, stop=stop)
    return list(reader.read(file_slice, options_of(reader, stop=stop, **settings), tally)), tally


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_pages(tmp_path, name):
    records = [
        INFO,
        record(1, "GET / HTTP/1.1\r\n\r\n", kind="request"),
        response(2),
        response(3, status="404 Not Found"),
        response(4, b"\x89PNG", mime="image/png"),
        response(5, "A plain text.\nIn two lines of it.", mime="text/plain"),
        record(6, PAGE, kind="resource", mime="text/html"),
        record(7, "A text of a WET file.\nAnd a line.", kind="conversion", mime="text/plain"),
        response(8, mime=""),
        response(9, ""),
        record(10, "no http at all"),
    ]
    documents, tally = read(tmp_path, records, name)
    page = ("The Towers", (SENTENCE, "There are seven of them & all are old."))
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [
        (f"warc/{name}/id-2", *page),
        (f"warc/{name}/id-5", "http://x.org/5", ("A plain text.", "In two lines of it.")),
        (f"warc/{name}/id-6", *page),
        (f"warc/{name}/id-7", "http://x.org/7", ("A text of a WET file.", "And a line.")),
        (f"warc/{name}/id-8", *page),
    ]
    dropped = {
        key.removeprefix("dropped/"): n
        for key, n in tally.counters.items()
        if key.startswith("dropped/")
    }
    assert dropped == {"http_status": 1, "not_text": 1, "empty": 1, "not_http": 1}
    assert tally.counters["read/documents"] == 9 == len(documents) + sum(dropped.values())
    assert not tally.unreadable


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("metadata://gnu.org/software/wget/warc/wget.log", False),
        ("<metadata://gnu.org/software/wget/warc/wget_arguments.txt>", False),
        ("urn:X-wpull:log", False),
        ("urn:text:https://x.org/", False),
        ("urn:pageinfo:https://x.org/", False),
        ("http://x.org/wget.log", True),
        ("file:///notes.txt", True),
        ("urn:isbn:9780000000000", True),
    ],
)
def test_a_crawlers_own_resources_are_no_pages(tmp_path, uri, kept):
    own = record(1, "Resolving x.org... connected.", kind="resource", mime="text/plain")
    documents, tally = read(tmp_path, [own.replace(b"http://x.org/1", uri.encode())])
    assert (len(documents), tally.counters["dropped/of_crawler"]) == (kept, not kept)
    assert tally.counters["read/documents"] == 1


@pytest.mark.parametrize(
    ("body", "mime"),
    [
        (PAGE.replace("towers", "Türme").encode("latin-1"), "text/html; charset=ISO-8859-1"),
        (PAGE.replace("towers", "Türme").encode("utf-8"), "text/html"),
        (
            PAGE.replace("towers", "Türme")
            .replace("<title>", "<meta charset=windows-1252><title>")
            .encode("cp1252"),
            "text/html",
        ),
        (PAGE.replace("towers", "Türme").encode("cp1252"), "text/html"),
        (PAGE.replace("towers", "Türme").encode("utf-16"), "text/html"),
        (PAGE.replace("towers", "Türme").encode("utf-8"), "text/html; charset=klingon"),
        (PAGE.replace("towers", "Türme").encode("utf-8-sig"), "text/html; charset=latin-1"),
    ],
)
def test_characters(tmp_path, body, mime):
    documents, _ = read(tmp_path, [response(1, body, mime)])
    assert documents[0].paragraphs[0] == SENTENCE.replace("towers", "Türme")


@pytest.mark.parametrize(
    ("language", "label", "codec", "extra"),
    [
        ("ko", "euc-kr", "cp949", "펲뷁"),
        ("ja", "Shift_JIS", "cp932", "㈱髙①"),
        ("zh", "gb2312", "gb18030", "㐀"),
        ("th", "tis-620", "cp874", "“”"),
    ],
)
def test_labels_include_the_vendors_characters(language, label, codec, extra):
    text = extra + TEXTS[language]
    data = text.encode(codec)
    assert decode_page(data, label, is_html=False) == text
    damaged = data + b"\xff" + data[:1]
    assert decode_page(damaged, label, is_html=False) == damaged.decode(codec, "replace")
    assert decode_page("臺北碁恒".encode("big5hkscs"), "big5", is_html=False) == "臺北碁恒"


def test_a_wrong_declaration_is_not_preferred():
    text = "Die Türme über dem Fluß sind größer als früher. " * 9
    for label in ("utf-8", "utf-16"):
        assert decode_page(text.encode("cp1252"), label, is_html=False) == text
    assert decode_page(text.encode(), "shift_jis", is_html=False) == text
    damaged = text.encode() + b"\xc3"
    assert decode_page(damaged, "utf-8", is_html=False) == text + "\ufffd"


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (gzip.compress(PAGE.encode()), "Content-Encoding: gzip\r\n"),
        (zlib.compress(PAGE.encode()), "Content-Encoding: deflate\r\n"),
        (
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE.encode()), PAGE.encode()),
            "Transfer-Encoding: chunked\r\n",
        ),
    ],
)
def test_encodings_of_http(tmp_path, body, more):
    documents, _ = read(tmp_path, [response(1, body, more=more)])
    assert documents[0].paragraphs[0] == SENTENCE


LENGTHS = [0, 5, 10**6, 10**18, -1, 10**25]


@pytest.mark.parametrize("length", LENGTHS)
def test_lying_lengths_cost_one_packed_record(tmp_path, length):
    records = [response(1), response(2, length=length), response(3), response(4)]
    documents, tally = read(tmp_path, records, "a.warc.gz")
    assert [d.id.rsplit("/", 1)[1] for d in documents] == ["id-1", "id-3", "id-4"]
    assert [entry.reason for entry in tally.unreadable] in (["bad_length"], ["bad_record"])
    assert tally.unreadable[0].offset == len(records[0])


@pytest.mark.parametrize("length", LENGTHS)
def test_a_lying_length_costs_one_plain_record(tmp_path, length):
    records = [response(1), response(2, length=length), response(3), response(4)]
    documents, tally = read(tmp_path, records)
    assert [d.id.rsplit("/", 1)[1] for d in documents] == ["id-1", "id-3", "id-4"]
    assert [entry.offset for entry in tally.unreadable] == [len(records[0])]
    assert f" {len(records[1]):,} bytes are passed over" in tally.unreadable[0].sentence


def test_members_of_several_records(tmp_path):
    records = [response(n) for n in range(1, 6)]
    members = [b"".join(records[:3]), records[3], b"\r\n\r\n", records[4]]
    documents, tally = read(tmp_path, members, "a.warc.gz")
    assert [d.id.rsplit("/", 1)[1] for d in documents] == [f"id-{n}" for n in range(1, 6)]
    assert not tally.unreadable


def test_a_record_longer_than_a_document(tmp_path):
    big = response(2, "<p>" + "It is long. " * 20_000)
    documents, tally = read(
        tmp_path, [response(1), big, response(3)], maximum_document_bytes=50_000
    )
    assert [d.id.rsplit("/", 1)[1] for d in documents] == ["id-1", "id-3"]
    assert tally.counters["dropped/too_long"] == 1
    packed = response(
        2, gzip.compress(bytes(10_000_000)), more="Content-Encoding: gzip\r\n"
    )  # a bomb inside
    documents, tally = read(
        tmp_path, [response(1), packed, response(3)], maximum_document_bytes=50_000
    )
    assert len(documents) == 2
    assert tally.counters["dropped/too_long"] == 1


def test_garbage_between_records(tmp_path):
    members = [
        response(1),
        b"garbage\r\nmore of it\r\n\r\n",
        response(2),
        b"\r\n\r\n\r\n",
        response(3),
        b"\0" * 5000,
    ]
    documents, tally = read(tmp_path, members, "a.warc.gz")
    assert len(documents) == 3
    assert tally.counters["quarantined/no_record"] == 2
    assert tally.unreadable[0].offset == len(response(1))


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_a_file_that_breaks_off(tmp_path, name):
    data = b"".join(
        gzip.compress(response(n)) if name.endswith("gz") else response(n) for n in range(1, 5)
    )[:-30]
    (tmp_path / name).write_bytes(data)
    file_slice = reader.slices(str(tmp_path / name))[0]
    with pytest.raises(DataError, match="ends inside"):
        list(reader.read(file_slice, options_of(reader), ReadCounters(slice=file_slice)))
    tally = ReadCounters(slice=file_slice, stop=False)
    assert len(list(reader.read(file_slice, options_of(reader, stop=False), tally))) == 3
    assert tally.counters["quarantined/truncated"] == 1


def test_a_damaged_member(tmp_path):
    members = [gzip.compress(response(n)) for n in range(1, 6)]
    members[2] = members[2][:40] + b"\xa5" * 30 + members[2][70:]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(members))
    file_slice = reader.slices(str(tmp_path))[0]
    tally = ReadCounters(slice=file_slice, stop=False)
    documents = list(reader.read(file_slice, options_of(reader, stop=False), tally))
    assert [d.id.rsplit("/", 1)[1] for d in documents] == ["id-1", "id-2", "id-4", "id-5"]
    assert tally.unreadable[0].offset == sum(map(len, members[:2]))


def test_pages_that_are_too_deep(tmp_path):
    documents, tally = read(
        tmp_path,
        [
            response(1, "<div>" * 100_000 + SENTENCE),
            response(2, "<p>It is a line of many.\n" * 3000),
        ],
    )
    assert [d.id.rsplit("/", 1)[1] for d in documents] == ["id-2"]
    assert tally.counters["dropped/too_deep"] == 1


def test_an_empty_file(tmp_path):
    assert read(tmp_path, [b""])[1].counters["quarantined/no_documents"] == 1
    assert read(tmp_path, [INFO])[1].counters["quarantined/no_documents"] == 1


FRAGMENTS = st.sampled_from(
    [b"WARC/1.0\r\n", b"WARC/1.1\n", b"WARC-Type: response\r\n", b"WARC-Type: request\r\n",
        b"Content-Length: 40\r\n", b"Content-Length: 9\r\n",
     b"Content-Length: 99999999999\r\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n",
     b"<p>It is.", b"\0", bytes(300), INFO, response(1), b"x" * 150]
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(FRAGMENTS, max_size=20).map(b"".join),
    st.integers(100, 2000),
    st.sampled_from(["a.warc", "a.warc.gz"]),
)
def test_any_bytes_end(tmp_path_factory, data, limit, name):
    records = [data, response(99)]
    documents, tally = read(
        tmp_path_factory.mktemp("x"), records, name, stop=False, maximum_document_bytes=limit
    )
    assert tally.counters["read/documents"] >= len(documents)
    assert all(0 <= entry.offset <= len(data) + len(response(99)) for entry in tally.unreadable)


def test_real_pages(shared_data):
    documents = []
    for file_slice in reader.slices(str(shared_data / "web")):
        tally = ReadCounters(slice=file_slice)
        documents += reader.read(file_slice, options_of(reader), tally)
        assert not tally.unreadable
    assert len(documents) == 37  # without four of Wget about its crawl
    text = "\n".join(d.text for d in documents)
    assert "Semantic Scholar" in text
    assert "<div" not in text
    assert "function(" not in text
    assert all(
        len(p.split()) > 3
        for d in documents
        for p in d.paragraphs
        if d.title.startswith("Semantic Scholar | About")
    )


NAVIGATION = "<nav><ul><li><a href=/>Home</a></li><li><a href=/a>About us</a></li></ul></nav>"
ARTICLE = (
    f"<html><head><title>The Mill &amp; the Town</title></head><body>{NAVIGATION}<article><h1>The "
    f"Mill</h1>"
    "<p>The mill stands by the brook at the end of the town, and it has stood there for some three "
    "hundred years.</p>"
    "<p>It was built by <a href=/k>Kristi Noem</a><span class=pop><span>Kristi Lynn Noem</span></"
    "span> and her brother in the spring.</p>"
    "<ul><li>Two stones of granite from the north</li><li>One wheel of oak</li></ul>"
    "<table><tr><th>Year</th><th>Flour in tons</th></tr><tr><td>1901</td><td>120</td></tr></table>"
    "<p>Nobody lives there today, but the town shows it to whoever asks for the key at the inn.</"
    "p></article>"
    "<footer>All rights reserved. Privacy policy.</footer></body></html>"
)


def test_the_main_text_of_a_page_has_its_lists_and_tables_and_no_glued_words(tmp_path):
    (document,), tally = read(tmp_path, [response(1, ARTICLE)])
    assert document.title == "The Mill & the Town"
    assert document.paragraphs == (
        "The mill stands by the brook at the end of the town, and it has stood there for some "
        "three hundred years.",
        "It was built by Kristi Noem Kristi Lynn Noem and her brother in the spring.",
        "Two stones of granite from the north",
        "One wheel of oak",
        "Year, Flour in tons",
        "1901, 120",
        "Nobody lives there today, but the town shows it to whoever asks for the key at the inn.",
    )
    assert tally.counters["dropped_lines/heading"] == 1


def test_the_fast_extractor_keeps_sentences_alone(tmp_path):
    (document,), _ = read(tmp_path, [response(1, ARTICLE)], extractor="fast")
    assert all(line.endswith(".") for line in document.paragraphs)
    assert not any("NoemKristi" in line for line in document.paragraphs)


def test_tags_in_a_script_are_no_depth(tmp_path):
    script = "<script>var a = '" + "<div>" * 400 + "';</script>"
    (document,), _ = read(
        tmp_path, [response(1, ARTICLE.replace("<article>", f"{script}<article>"))]
    )
    assert len(document.paragraphs) == 7


def test_the_text_of_a_page_depends_on_that_page_alone(tmp_path):
    pages = [
        response(number, ARTICLE.replace("three hundred", f"{number % 3} hundred"))
        for number in range(1, 7)
    ]
    once = [document.paragraphs for document in read(tmp_path, pages)[0]]
    again = [document.paragraphs for document in read(tmp_path, pages[::-1])[0]]
    assert once == again[::-1]
    assert once[0] == once[3] != once[1]


def test_a_page_of_very_many_tags_takes_linear_time(tmp_path):
    def work(count):
        spans = "<p>" + "<span>word</span> " * count + "</p><ul>"
        (document,), _ = read(tmp_path, [response(1, ARTICLE.replace("<ul>", spans))])
        assert document.text.count("word") == count

    assert is_linear(work, 20_000)
