"""Hostile input: whatever a file holds, it is counted, told with file and offset, and never costs
the rest of the corpus.

Each reader gets a directory with a good file before and after the hostile one; then the whole stage
gets all of them at once.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from cloze.core.arrow import read_arrow
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.readers.made import HEAD, chapter, page, response, write_epub
from tests.pipeline.corpus.reading import options_of

PROSE = " ".join(
    f"It was the {word} of times for all of the people in this town."
    for word in ("best", "worst", "age", "season", "spring", "winter", "end")
)
BOOK = f"CHAPTER I\n\n{PROSE}\n\n{PROSE}\n"


def dump(count=5, change=lambda text: text):
    return change(
        HEAD
        + "".join(page(f"P{n}", f"Number {n}. {PROSE}", number=n) for n in range(count))
        + "</mediawiki>"
    )


def jsonl(*extra):
    return (
        b"\n".join(
            [
                json.dumps({"id": "a", "text": PROSE}).encode(),
                *extra,
                json.dumps({"id": "z", "text": PROSE}).encode(),
            ]
        )
        + b"\n"
    )


def epub(tmp_path, chapters=None, link="", member=""):
    path = write_epub(
        tmp_path / "made.epub",
        chapters
        or {
            "a.xhtml": chapter("One", f"<p>{PROSE}</p>"),
            "b.xhtml": chapter("Two", f"<p>{PROSE}</p>"),
        },
    )
    data = path.read_bytes()
    path.unlink()
    if link or member:
        target = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(data)) as source,
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for entry in source.infolist():
                content = source.read(entry)
                if link and entry.filename.endswith(link):
                    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                    content = b"/etc/passwd"
                archive.writestr(entry, content)
            if member:
                archive.writestr(member, "evil")
        data = target.getvalue()
    return data


def parquet():
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"text": [PROSE] * 50, "id": [str(n) for n in range(50)]}), sink, row_group_size=10
    )
    return sink.getvalue()


def hole(data, at=0.5, size=60):
    position = int(len(data) * at)
    return data[:position] + b"\xa5" * size + data[position + size :]


UTF16 = dump().encode("utf-16")
STREAMS = [
    bz2.compress(part.encode())
    for part in (
        HEAD,
        *(page(f"P{n}", f"Number {n}. {PROSE}", number=n) for n in range(5)),
        "</mediawiki>",
    )
]
NAMES = "abcdefghij"
LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {NAMES[n + 1]} "{10 * ("&" + NAMES[n] + ";")}">' for n in range(8))
    + "]>"
)

# name: (kind, file's name, content, documents that must be read, reasons one of which must be told
# or counted)
CASES = {
    "truncated bz2": ("wikipedia", "b.xml.bz2", lambda _: bz2.compress(dump().encode())[:-30], 0,
    {"truncated"}),
    "truncated multistream bz2": ("wikipedia", "b.xml.bz2", lambda _: b"".join(STREAMS)[:-60], 5,
    {"truncated"}),
    "hole in a multistream bz2": ("wikipedia", "b.xml.bz2", lambda _: b"".join([*STREAMS[:3],
    hole(STREAMS[3]), *STREAMS[4:]]), 4, {"damaged"}),
    "bz2 with garbage after it": ("wikipedia", "b.xml.bz2",
    lambda _: b"".join(STREAMS) + b"garbage" * 50, 5, {"damaged"}),
    "truncated gz": ("wikipedia", "b.xml.gz", lambda _: gzip.compress(dump().encode())[:-12], 5,
    {"truncated"}),
    "truncated xz": ("jsonl", "b.jsonl.xz", lambda _: lzma.compress(jsonl())[:-40], 1,
    {"truncated"}),
    "truncated zst": ("jsonl", "b.jsonl.zst", lambda _: zstd.compress(jsonl())[:-10], 0,
    {"truncated"}),
    "bomb in bz2": ("wikipedia", "b.xml.bz2",
    lambda _: bz2.compress(HEAD.encode()) + bz2.compress(b"<page><title>" + bytes(90 << 20)) + b"".join(STREAMS[1:]), 5, {"bomb"}),
    "bomb in gz": ("jsonl", "b.jsonl.gz",
    lambda _: gzip.compress(b'{"text": "' + b"a" * (80 << 20) + b'"}\n'), 0, {"bomb"}),
    "bomb in zst": ("text", "b.txt.zst", lambda _: zstd.compress(b"a" * (80 << 20)), 0, {"bomb",
    "too_large"}),
    "entity expansion": ("wikipedia", "b.xml",
    lambda _: LAUGHS.encode() + dump(change=lambda t: t.replace("Number 2", "&i;")).encode(), 0,
    {"damaged"}),
    "entities in a page": ("wikipedia", "b.xml",
    lambda _: dump(change=lambda t: t.replace("Number 2", "&lol; &xxe;")).encode(), 4, {"damaged"}),
    "bad UTF-8 in a dump": ("wikipedia", "b.xml", lambda _: dump().encode().replace(b"Number 2",
    b"Number \xff\xfe"), 4, {"damaged"}),
    "bad UTF-8 in jsonl": ("jsonl", "b.jsonl", lambda _: jsonl(b'{"text": "\xff\xfe\xfd"}'), 2,
    {"bad_utf8"}),
    "bad UTF-8 in text": ("text", "b.txt",
    lambda _: ("é" * 50 + PROSE).encode() + b"\xff" + PROSE.encode(), 0, {"bad_utf8"}),
    "bad UTF-8 in wikiextractor": ("wikiextractor", "wiki_01",
    lambda _: (
        b'<doc id="1" url="" title="T">\nA\xff\n</doc>\n<doc id="2" url="" title="U">\n'
    ) + PROSE.encode() + b"\n</doc>\n", 1, {"bad_utf8"}),
    "UTF-16 dump": ("wikipedia", "b.xml", lambda _: UTF16, 5, set()),
    "UTF-16 dump cut in a character": ("wikipedia", "b.xml", lambda _: UTF16[: len(UTF16) // 2 | 1],
    2, {"truncated"}),
    "UTF-16 jsonl": ("jsonl", "b.jsonl", lambda _: jsonl().decode().encode("utf-16"), 2, set()),
    "UTF-16 text without a mark": ("text", "b.txt", lambda _: PROSE.encode("utf-16-le"), 1, set()),
    "NULs in a dump": ("wikipedia", "b.xml", lambda _: dump().encode().replace(b"Number 2",
    b"Number \0\0"), 4, {"damaged"}),
    "NULs in jsonl": ("jsonl", "b.jsonl", lambda _: jsonl(b'{"text": "a\0b"}', b"\0" * 100), 2,
    {"bad_json"}),
    "NULs in a book": ("books", "b.txt", lambda _: BOOK.encode() + b"\0" * 10, 0, {"binary"}),
    "NULs before a dump": ("wikipedia", "b.xml", lambda _: b"\0" * 1000 + dump().encode(), 5,
    set()),
    "an empty dump": ("wikipedia", "b.xml", lambda _: b"", 0, {"empty_dump"}),
    "a dump without pages": ("wikipedia", "b.xml.bz2",
    lambda _: bz2.compress((HEAD + "</mediawiki>").encode()), 0, {"empty_dump"}),
    "an empty bz2": ("wikipedia", "b.xml.bz2", lambda _: b"", 0, {"empty_dump"}),
    "an empty jsonl": ("jsonl", "b.jsonl", lambda _: b"", 0, {"empty_file"}),
    "an empty book": ("books", "b.txt", lambda _: b"", 0, {"empty_file"}),
    "an empty epub": ("books", "b.epub", lambda _: b"", 0, {"damaged_epub"}),
    "an empty parquet": ("parquet", "b.parquet", lambda _: b"", 0, {"damaged"}),
    "an empty arrow": ("arrow", "b.arrow", lambda _: b"", 0, {"damaged"}),
    "an empty warc": ("warc", "b.warc.gz", lambda _: b"", 0, {"no_documents"}),
    "../ in an epub": ("books", "b.epub", lambda tmp: epub(tmp, member="../../../evil.txt"), 2,
    set()),
    "../ in an epub's spine": ("books", "b.epub", lambda tmp: epub(tmp,
    {"../../../etc/passwd": chapter("One", f"<p>{PROSE}</p>"), "b.xhtml": chapter("Two",
    f"<p>{PROSE}</p>")}), 1, {"damaged_epub"}),
    "a link in an epub": ("books", "b.epub", lambda tmp: epub(tmp, link="a.xhtml"), 1,
    {"damaged_epub"}),
    "a bomb in an epub": ("books", "b.epub", lambda tmp: epub(tmp, {"a.xhtml": chapter("One",
    "<p>" + "a" * (40 << 20)), "b.xhtml": chapter("Two", f"<p>{PROSE}</p>")}), 1, {"damaged_epub"}),
    "a WARC with a length too long": ("warc", "b.warc.gz",
    lambda _: gzip.compress(response(1)) + gzip.compress(response(2,
    length=10**9)) + gzip.compress(response(3)), 2, {"bad_length"}),
    "a WARC with a length too short": ("warc", "b.warc.gz",
    lambda _: gzip.compress(response(1)) + gzip.compress(response(2,
    length=3)) + gzip.compress(response(3)), 2, {"bad_length"}),
    "a WARC with a negative length": ("warc", "b.warc", lambda _: response(1) + response(2,
    length=-5) + response(3), 2, {"bad_record"}),
    "deep HTML": ("warc", "b.warc", lambda _: response(1, "<div>" * 300_000) + response(2), 1,
    {"too_deep"}),
    "deep JSON": ("jsonl", "b.jsonl", lambda _: jsonl(b"[" * 500_000, b'{"a":' * 500_000 + b"1",
    b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}"), 2, {"bad_json"}),
    "deep wikitext": ("wikipedia", "b.xml", lambda _: dump(change=lambda t: t.replace("Number 2",
    "{{a|" * 50_000 + "[[b|" * 50_000 + "{|\n" * 5000)).encode(), 5, set()),
    "a tag without an end": ("wikipedia", "b.xml",
    lambda _: dump(change=lambda t: t.replace("<title>P2",
    "<title " + "x" * (6 << 20) + "<title>P2")).encode(), 4, {"damaged"}),
    "a page in a page": ("wikipedia", "b.xml",
    lambda _: dump(change=lambda t: t.replace("</revision></page>", "", 1)).encode(), 4,
    {"truncated"}),
    "a hole in a parquet": ("parquet", "b.parquet", lambda _: hole(parquet(), at=0.15, size=400),
    10, {"damaged"}),
    "half a parquet": ("parquet", "b.parquet", lambda _: parquet()[:-200], 0, {"damaged"}),
    "XML of something else": ("books", "b.txt", lambda _: b"<?xml version='1.0'?><svg/>", 0,
    {"not_text"}),
    "a picture for a text": ("text", "b.txt",
    lambda _: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), 0, {"binary", "bad_encoding"}),
}  # fmt: skip

ARROW = pa.table({"text": [PROSE], "id": ["good"]})


def good(kind, directory, name):
    """A file of `kind` with one document."""
    path = directory / name
    if kind == "wikipedia":
        path.with_suffix(".xml").write_text(dump(1))
    elif kind == "wikiextractor":
        (directory / f"wiki_{name}").write_text(f'<doc id="1" url="" title="T">\n{PROSE}\n</doc>\n')
    elif kind == "jsonl":
        path.with_suffix(".jsonl").write_text(json.dumps({"text": PROSE}))
    elif kind == "warc":
        path.with_suffix(".warc").write_bytes(response(1))
    elif kind == "parquet":
        pq.write_table(ARROW, path.with_suffix(".parquet"))
    elif kind == "arrow":
        with pa.ipc.new_file(path.with_suffix(".arrow"), ARROW.schema) as sink:
            sink.write_table(ARROW)
    else:
        path.with_suffix(".txt").write_text(BOOK)


def read(kind, directory, stop=False):
    """({file: documents}, {file: tally})"""
    reader, documents, tallies = READERS.find(kind), {}, {}
    for file_slice in reader.slices(str(directory)):
        tally = tallies[file_slice.name] = ReadCounters(slice=file_slice, stop=stop)
        documents[file_slice.name] = list(
            reader.read(file_slice, options_of(reader, stop=stop), tally)
        )
    return documents, tallies


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_costs_itself_alone(tmp_path, case):
    kind, name, make, expected, reasons = CASES[case]
    source, beside = tmp_path / "in", tmp_path / "made"
    source.mkdir()
    beside.mkdir()
    good(kind, source, "a")
    (source / name).write_bytes(make(beside))
    good(kind, source, "c")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    documents, tallies = read(kind, source)
    assert len(documents.pop(name)) == expected
    tally = tallies.pop(name)
    assert all(len(others) == 1 for others in documents.values())
    assert len(documents) == 2
    counted = {
        key.partition("/")[2]
        for key in tally.counters
        if key.startswith(("quarantined/", "dropped/"))
    }
    assert bool(reasons) == bool(counted & reasons), (counted, tally.unreadable)
    assert bool(tally.unreadable) == bool(
        {key for key in tally.counters if key.startswith("quarantined/")}
    )
    for entry in tally.unreadable:
        assert entry.file.startswith(f"{kind}/{name}")
        assert entry.offset >= 0
        assert entry.sentence
        assert str(tmp_path) not in entry.sentence
    assert (
        sorted(str(path) for path in tmp_path.rglob("*")) == before
    )  # nothing was unpacked anywhere
    assert not Path("/tmp/evil.txt").exists()


@pytest.mark.parametrize(
    "case",
    ["truncated bz2", "bomb in gz", "entity expansion", "../ in an epub's spine", "half a parquet"],
)
def test_damage_stops_the_stage_by_default(tmp_path, case):
    kind, name, make, _, _ = CASES[case]
    (tmp_path / "made").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(make(tmp_path / "made"))
    with pytest.raises(DataError) as error:
        read(kind, tmp_path / "in", stop=True)
    assert name in str(error.value)
    assert error.value.exit_code == 3


def test_the_stage_goes_on_and_tells_everything(tmp_path):
    """All hostile files of all kinds at once through the stage: the good documents are in the
    corpus, each hostile file is told.
    """
    from tests.pipeline.corpus.corpora import make

    sources = []
    told = set()
    skipped = {"bomb in bz2", "bomb in gz", "deep HTML", "deep JSON"}  # slow, and seen above
    for number, (case, (kind, name, content, _, reasons)) in enumerate(CASES.items()):
        if case in skipped:
            continue
        directory = tmp_path / kind / f"{number:03d}"
        directory.mkdir(parents=True)
        (tmp_path / "made").mkdir(exist_ok=True)
        (directory / name).write_bytes(content(tmp_path / "made"))
        if reasons and not reasons & {"too_deep"}:
            told.add(f"{kind}/{number:03d}/{name}")
    for kind in sorted({case[0] for case in CASES.values()}):
        good(kind, tmp_path / kind, "good")
        sources.append(f"{kind}={tmp_path / kind}")
    result = make(tmp_path / "corpus", *sources, on_error="quarantine")
    rejected = [
        json.loads(line)
        for line in (tmp_path / "corpus" / "unreadable.jsonl").read_text().splitlines()
    ]
    files = {entry["file"] for entry in rejected}
    # Files of the same bytes are read once: of the empty ones, one is told.
    missing = {name for name in told if not any(file.startswith(name) for file in files)}
    assert all((tmp_path / name).stat().st_size == 0 for name in missing), missing
    assert not any(str(tmp_path) in json.dumps(entry) for entry in rejected)
    assert result.manifest.rows >= 1
    assert artifact.verify(str(tmp_path / "corpus")).ok


def test_a_file_whose_name_is_no_utf8_is_read(tmp_path: Path) -> None:
    """Linux names are bytes; the id shows those that are no text as escapes."""
    directory = tmp_path / "texts"
    directory.mkdir()
    prose = (
        "The river ran past the mill and into the valley, where the people of the town had "
        "built their houses. "
    ) * 6
    with open(os.path.join(os.fsencode(directory), b"caf\xe9.txt"), "w", encoding="utf-8") as file:
        file.write(prose)
    config = CorpusConfig(sources=({"kind": "text", "path": str(directory)},))  # type: ignore[arg-type]
    result = execute(STAGE, config, {}, str(tmp_path / "corpus"))
    assert result.manifest.rows == 1
    assert execute(STAGE, config, {}, str(tmp_path / "corpus")).cached
    table = read_arrow(str(tmp_path / "corpus" / "corpus-00000-of-00001.arrow"))
    assert table["id"].to_pylist() == ["text/caf\\xe9.txt"]
