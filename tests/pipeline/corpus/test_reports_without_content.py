"""What a corpus says of bad input quotes none of it: not in the artifact, and not in an error."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from tests.pipeline.corpus.corpora import make, prose
from tests.pipeline.corpus.readers.made import (
    HEAD,
    PAGE,
    chapter,
    page,
    record,
    response,
    write_epub,
)
from tests.pipeline.corpus.reading import options_of

MAIL = "jane.doe@example.org"
LETTER = f"Dear all, please write to {MAIL} about the mill, for she answers within a day. " * 40
WEB = PAGE.replace("<p>", f"<p>{LETTER}</p><p>", 1)


def warc_files() -> dict[str, bytes]:
    lies = [
        response(n, WEB, more=f"{header}\r\n")
        for n, header in enumerate(
            (
                "Transfer-Encoding: chunked",
                "Content-Encoding: gzip",
                "Content-Encoding: br",
                f"Content-Encoding: {MAIL}",
                f"Content-Length: {MAIL}",
            )
        )
    ]
    return {
        "lies.warc": b"".join(lies),
        "length.warc": response(1, WEB, length=5) + response(2),
        "length-text.warc": response(1, WEB, length=MAIL) + response(2),
        "no-head.warc": b"WARC/1.0\r\n" + WEB.encode(),
        "junk.warc.gz": gzip.compress(response(1)) + gzip.compress(LETTER.encode()),
        "cut.warc": response(1, WEB)[:-900],
        "none.warc": LETTER.encode(),
        "type.warc": record(1, WEB, kind="resource", mime=MAIL),
    }


def record_files() -> dict[str, bytes]:
    lines = (
        f'{{"text": "{MAIL}',
        f'"{MAIL}"',
        f'["{MAIL}"]',
        json.dumps({"text": {MAIL: 1}}),
        json.dumps({"text": [MAIL, 1]}),
        f"{MAIL}: 1",
        f'{{"text": {MAIL}}}',
        "{'text': '" + MAIL + "'}",
    )
    text = "\n".join(lines).encode()
    return {
        "a.jsonl": text + b'\n{"text": "' + MAIL.encode() + b'\xff"}\n',
        "array.json": f'[{{"text": "a"}}, {MAIL}]'.encode(),
        "nul.jsonl": f'{{"text": "\0{MAIL}"}}\n'.encode(),
    }


def table(**columns: list[object]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def zipped(name: str, data: bytes, damage: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, data)
    packed = bytearray(out.getvalue())
    if damage:
        packed[packed.index(data) + 9] ^= 0xFF
    return bytes(packed)


def epub(path: Path, body: str, **changes: str) -> bytes:
    write_epub(path, {"a.xhtml": chapter("One", body)})
    members = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            members[name] = archive.read(name).decode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            for old, new in changes.items():
                text = text.replace(old, new)
            archive.writestr(name, text)
    return out.getvalue()


def bad_files(directory: Path) -> dict[str, dict[str, bytes]]:
    """Bad files by kind of source and name; each quotes the address where a library looks."""
    tag = f"<{MAIL}>"
    article = json.dumps({"article_body": {"html": 5}, "name": MAIL, "identifier": MAIL})
    scratch = directory / "scratch.epub"
    return {
        "warc": warc_files(),
        "jsonl": record_files(),
        "parquet": {
            "a.parquet": table(text=[LETTER], id=[MAIL])[:-20],
            "b.parquet": table(text=[{"x": MAIL}]),
        },
        "arrow": {"a.arrow": b"ARROW1\0\0" + LETTER.encode()},
        "wikipedia": {
            "a.xml": (HEAD + f"<page>{tag}</page></mediawiki>").encode(),
            "b.xml": (HEAD + f"<page a='{MAIL}' a='{MAIL}'>&{MAIL};</page>").encode(),
            "c.xml": (HEAD + f"<page><title>{MAIL}</page>").encode(),
        },
        "wikiextractor": {
            "wiki_00": f'{{"id": "{MAIL}"}}\n{{"id": "1", "text": ["{MAIL}"]}}\n{MAIL}\n'.encode(),
            "wiki_01": f'<doc id="7" url="x" title="{MAIL}">\n{LETTER}\n'.encode(),
        },
        "html": {
            "a.ndjson": f"{article}\n{MAIL}\n".encode(),
            "b.html": LETTER.encode(),
            "c.zip": zipped("a.html", WEB.encode(), damage=True),
            "d.zip": zipped("a.html", WEB.encode())[:-30],
        },
        "books": {
            "a.epub": epub(scratch, "<p>x", **{"<rootfile ": f"<rootfile {tag} "}),
            "b.epub": epub(scratch, "<p>x", **{"<metadata": f"<{MAIL}><metadata"}),
            "c.epub": epub(scratch, "<p>x", **{"<manifest>": f"&{MAIL};<manifest>"}),
            "d.txt": MAIL.encode() + bytes(300),
        },
        "text": {"a.txt": MAIL.encode() + bytes(300), "b.txt": b"\xff\xfe\xfa" + LETTER.encode()},
        "babylm": {"a.train": b"\x80\x81" + LETTER.encode() + b"\0" * 100},
    }


def good_files() -> dict[str, tuple[str, bytes]]:
    """A sound file of each kind; a source without any document is an error."""
    text = f"{prose(1)}\n\nWrite to {MAIL} or else. {prose(2)}"
    table_file = io.BytesIO()
    batch = pa.record_batch({"text": [text]})
    with pa.ipc.new_file(table_file, batch.schema) as writer:
        writer.write_batch(batch)
    dump = f"{HEAD}{page(MAIL, text)}</mediawiki>"
    return {
        "warc": ("z.warc", response(1, WEB)),
        "jsonl": ("z.jsonl", json.dumps({"text": text}).encode()),
        "parquet": ("z.parquet", table(text=[text])),
        "arrow": ("z.arrow", table_file.getvalue()),
        "wikipedia": ("z.xml", dump.encode()),
        "wikiextractor": ("wiki_99", json.dumps({"id": 1, "text": text}).encode()),
        "html": ("z.html", WEB.encode()),
        "books": ("z.txt", text.encode()),
        "text": ("z.txt", text.encode()),
        "babylm": ("z.train", text.encode()),
    }


def write(directory: Path, kind: str, name: str, data: bytes) -> Path:
    path = directory / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_artifact_has_no_masked_data_whatever_cannot_be_read(tmp_path):
    files = bad_files(tmp_path)
    files["jsonl"]["keys.jsonl"] = json.dumps({MAIL: 1}).encode()
    files["html"]["keys.ndjson"] = json.dumps({MAIL: {"html": 1}}).encode()
    files["html"]["names.zip"] = zipped(f"{MAIL}.html", WEB.encode(), damage=True)
    files["text"][f"{MAIL}.txt"] = bytes(300)
    files["parquet"]["names.parquet"] = table(**{MAIL: [1]})
    for kind, (name, data) in good_files().items():
        files[kind][name] = data
    for kind, named in files.items():
        for name, data in named.items():
            write(tmp_path, kind, name, data)
    built = make(
        tmp_path / "out",
        *(f"{kind}={tmp_path}/{kind}" for kind in files),
        on_error="quarantine",
        mask_personal_data=["email"],
        keep_dropped=True,
    )
    assert len(built.manifest.summary["quarantined"]) > 8
    written = [path for path in Path(built.artifact).rglob("*") if path.is_file()]
    assert {"manifest.json", "unreadable.jsonl", "card.html"} <= {path.name for path in written}
    for path in written:
        data = path.read_bytes()
        if path.suffix == ".arrow":
            data = str(pa.ipc.open_file(path).read_all().to_pylist()).encode()
        assert b"jane.doe" not in data, path.name
        assert path.name != "unreadable.jsonl" or max(map(len, data.splitlines())) < 1000


@pytest.mark.parametrize("stop", [True, False])
def test_messages_quote_no_text_without_masking(tmp_path, stop):
    said = []
    for kind, named in bad_files(tmp_path).items():
        for name, data in named.items():
            path = write(tmp_path, kind, name, data)
            reader = READERS.find(kind)
            tally = ReadCounters(slice=reader.slices(str(path))[0], stop=stop)
            try:
                list(reader.read(tally.slice, options_of(reader, stop=stop), tally))
            except DataError as error:
                said.append((kind, name, str(error)))
            said += [(kind, name, entry.sentence) for entry in tally.report()]
    assert len(said) > 20
    for kind, name, message in said:
        assert "jane" not in message, (kind, name)
        assert len(message.replace(str(tmp_path), "")) < 600, (kind, name)
