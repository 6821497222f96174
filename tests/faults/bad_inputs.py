"""Bad inputs of the corpus stage, as users have them: how each is made, and what the program must
say.

python -m tests.faults.bad_inputs     runs the installed program on each; prints exit code,
sentence, time and peak memory
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from tests.faults.test_hostile_input import LAUGHS, PROSE, STREAMS, dump, epub, hole, jsonl, parquet
from tests.pipeline.corpus.readers.made import HEAD, chapter, page, response

RUSSIAN = (
    "Это было лучшее из времён, и это было худшее из времён для всех людей в этом городе. " * 6
)
GERMAN = (
    "Es war die schönste Zeit für alle Bürger der Stadt, und niemand wußte so recht, woran es "
    "läge. "
) * 6
JAPANESE = (
    "それは最良の時代であり、それは最悪の時代でもあった。町の人々はみな、その理由を知らなかった。"
    * 12
)


@dataclass(frozen=True)
class Bad:
    """A bad input.

    Attributes:
        kind: of the source.
        make: writes what is bad into a directory, and returns the path of the source.
        code: exit code of the program.
        words: a regular expression for its sentence; of a run that succeeds, for what it says it
            left out (empty: nothing).
        settings: of the corpus stage.
    """

    kind: str
    make: Callable[[Path], Path]
    code: int
    words: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def _file(name: str, content: bytes | Callable[[Path], bytes]) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        path = directory / name
        path.write_bytes(content if isinstance(content, bytes) else content(directory))
        return path

    return make


def _folder(
    *more: tuple[str, bytes], change: Callable[[Path], object] = lambda folder: None
) -> Callable[[Path], Path]:
    """A folder with one good text and these files."""

    def make(directory: Path) -> Path:
        folder = directory / "in"
        folder.mkdir()
        for name, content in (("good.txt", PROSE.encode()), *more):
            (folder / name).write_bytes(content)
        change(folder)
        return folder

    return make


def _table(columns: Mapping[str, Any]) -> Callable[[Path], bytes]:
    def make(_: Path) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        return bytes(sink.getvalue().to_pybytes())

    return make


def _long_line(name: str, begin: bytes, end: bytes) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        with (directory / name).open("wb") as sink:
            sink.write(begin)
            for _ in range(100):
                sink.write(b"a b c d " * (1 << 17))
            sink.write(end)
        return directory / name

    return make


def _tasks(name: str, content: bytes) -> Callable[[Path], Path]:
    """A good text, and beside it a file of tasks that the settings name."""

    def make(directory: Path) -> Path:
        (directory / name).write_bytes(content)
        return _folder()(directory)

    return make


def _wiki(text: str) -> bytes:
    pages = page("A", escape(text)) + page("B", " ".join([PROSE] * 2), number=2)
    return f"{HEAD}{pages}</mediawiki>".encode()


RECORD = json.dumps({"id": "r", "text": PROSE}).encode() + b"\n"
GOOD = {"text": [PROSE], "id": ["a"]}

BAD = {
    # Truncated and damaged archives
    "truncated bz2": Bad("wikipedia", _file("a.xml.bz2", bz2.compress(dump().encode())[:-30]), 3,
    "ends inside a compressed stream"),
    "truncated gz": Bad("jsonl", _file("a.jsonl.gz", gzip.compress(jsonl())[:-12]), 3,
    "ends inside a compressed stream"),
    "truncated xz": Bad("jsonl", _file("a.jsonl.xz", lzma.compress(jsonl())[:-40]), 3,
    "ends inside a compressed stream"),
    "truncated zst": Bad("jsonl", _file("a.jsonl.zst", zstd.compress(jsonl())[:-10]), 3,
    "ends inside a compressed stream"),
    "hole in a bz2": Bad("wikipedia", _file("a.xml.bz2", b"".join([*STREAMS[:3], hole(STREAMS[3]),
    *STREAMS[4:]])), 3, "cannot be unpacked"),
    "truncated parquet": Bad("parquet", _file("a.parquet", parquet()[:-200]), 3, "cannot be read"),
    "truncated EPUB": Bad("books", _file("a.epub", lambda at: epub(at)[:-300]), 3, "EPUB"),
    "truncated zip": Bad("html", _file("a.zip", lambda at: epub(at)[:-300]), 3, "a.zip"),
    "gz that is none": Bad("text", _file("a.txt.gz", PROSE.encode()), 3, "cannot be unpacked"),
    # Bombs
    "entity bomb in a dump": Bad("wikipedia", _file("a.xml", LAUGHS.encode() + dump().encode()), 3,
    "declares a document type"),
    "bomb in gz": Bad("jsonl", _file("a.jsonl.gz",
    lambda _: gzip.compress(b'{"text": "' + b"a" * (80 << 20) + b'"}\n')), 3, "times its size"),
    "bomb in zst": Bad("text", _file("a.txt.zst", lambda _: zstd.compress(b"a" * (80 << 20))), 3,
    "times its size|more than"),
    "bomb in an EPUB": Bad("books", _file("a.epub", lambda at: epub(at, {"a.xhtml": chapter("One",
    "<p>" + "a" * (40 << 20)), "b.xhtml": chapter("Two", f"<p>{PROSE}</p>")})), 3,
    "unpacks to more than a book can hold"),
    # Encodings
    "UTF-16 with its mark": Bad("text", _file("a.txt", RUSSIAN.encode("utf-16")), 0,
    settings={"language": "ru"}),
    "UTF-16 without a mark": Bad("text", _file("a.txt", PROSE.encode("utf-16-le")), 0),
    "Russian UTF-16 without a mark": Bad("text", _file("a.txt", RUSSIAN.encode("utf-16-be")), 0,
    settings={"language": "ru"}),
    "UTF-16 records without a mark": Bad("jsonl", _file("a.jsonl",
    RECORD.decode().encode("utf-16-le")), 0),
    "Latin-1": Bad("text", _file("a.txt", GERMAN.encode("latin-1")), 0,
    settings={"language": "de"}),
    "KOI8-R": Bad("text", _file("a.txt", RUSSIAN.encode("koi8-r")), 0,
    settings={"language": "ru"}),
    "Shift JIS": Bad("text", _file("a.txt", JAPANESE.encode("shift-jis")), 0,
    settings={"language": "ja"}),
    "a mark of UTF-16 before other text": Bad("text", _file("a.txt", b"\xff\xfe" + PROSE.encode()),
    3, "neither UTF-8 .* nor surely of another encoding"),
    "bytes that are no text": Bad("text", _file("a.txt", b"\xff\xfe\xfa" + bytes(range(250,
    256)) * 50), 3, "a.txt"),
    "Latin-1 records": Bad("jsonl", _file("a.jsonl", RECORD + json.dumps({"id": "l",
    "text": GERMAN}, ensure_ascii=False).encode("latin-1")), 0, "is not UTF-8 at its byte"),
    # Long lines, deep nesting, mark-up that is never closed
    "a record of 100 MB": Bad("jsonl", _long_line("a.jsonl", RECORD + b'{"text": "', b'"}\n'), 0,
    "has 104,857,"),
    "a line of 100 MB": Bad("text", _long_line("a.txt", b"", b"\n"), 3,
    "more than 67,108,864 bytes"),
    "deep JSON": Bad("jsonl", _file("a.jsonl", RECORD + b"[" * 500_000 + b"\n"), 0, "is no JSON"),
    "deep HTML": Bad("warc", _file("a.warc", response(1,
    f"<html><body><main><p>{PROSE}</p></main></body></html>") + response(2, "<div>" * 300_000)), 0),
    "a deep page": Bad("html", _file("a.html", b"<div>" * 300_000 + PROSE.encode()), 3, "a.html"),
    "deep wikitext": Bad("wikipedia", _file("a.xml",
    _wiki("{{a|" * 50_000 + "[[b|" * 50_000 + "{|\n" * 5000)), 0),
    "code that is never closed": Bad("wikipedia", _file("a.xml", _wiki("<code>" * 34_000)), 0),
    "infoboxes that are never closed": Bad("wikipedia", _file("a.xml",
    _wiki("{{Infobox a|" * 20_000)), 0, settings={"infobox": "metadata"}),
    "a bracket that is never closed": Bad("wikipedia", _file("a.xml",
    _wiki("(" + "x <ref>r</ref>; " * 20_000)), 0),
    "8,000 articles in a page": Bad("html", _file("a.html",
    f"<html><body><p>{PROSE}</p>{'<article>a</article>' * 8000}".encode()), 0),
    # NUL bytes, nothing
    "NUL bytes": Bad("text", _file("a.txt", PROSE.encode()[:200] + b"\0" * 40 + PROSE.encode()), 3,
    "holds a NUL at byte 200"),
    "NUL bytes in records": Bad("jsonl", _file("a.jsonl", RECORD + b"\0" * 300 + b"\n"), 0,
    "holds a NUL at its byte 0"),
    "an empty text": Bad("text", _file("a.txt", b""), 3, "the file is empty"),
    "an empty file of records": Bad("jsonl", _file("a.jsonl", b""), 3, "holds no line"),
    "an empty dump": Bad("wikipedia", _file("a.xml", b""), 3, "holds no page"),
    "an empty parquet": Bad("parquet", _file("a.parquet", b""), 3, "cannot be read"),
    "an empty folder": Bad("text", lambda at: at / "made" if (at / "made").mkdir() is None else at,
    3, "contains no file of source text"),
    # Names and what lies in folders
    "names with blanks, line breaks and a dash": Bad("text", _folder(("a b.txt", RUSSIAN.encode()),
    ("c\nd.txt", GERMAN.encode()), ("-x.txt", b"Short.")), 0, settings={"minimum_words": 1,
    "minimum_characters": 1}),
    "a source called -x": Bad("text", lambda at: _file("-x.txt", PROSE.encode())(at), 0),
    "links in a circle": Bad("text", _folder(change=lambda at: ((at / "a.txt").symlink_to("a.txt"),
    (at / "b").symlink_to(at))), 0, "leads to no file"),
    "a broken link": Bad("text", _folder(change=lambda at: (at / "a.txt").symlink_to("/nowhere")),
    0, "leads to no file"),
    "a pipe": Bad("text", _folder(change=lambda at: os.mkfifo(at / "a.txt")), 0, "or a pipe"),
    "a folder with the name of a text": Bad("text",
    _folder(change=lambda at: (at / "a.txt").mkdir()), 0),
    "a file that nobody may read": Bad("text", _folder(("a.txt", b"secret"),
    change=lambda at: (at / "a.txt").chmod(0)), 3, "a.txt.*Permission denied"),
    # Wrong types, ids, columns
    "records of other types": Bad("jsonl", _file("a.jsonl",
    RECORD + b'{"text": 5}\n{"id": {"a": 1}, "text": ["b", 1]}\n'), 3, "2 of 3 .* not a text"),
    "the same id twice": Bad("jsonl", _file("a.jsonl", RECORD + json.dumps({"id": "r",
    "text": RUSSIAN}).encode()), 0, "duplicate_id"),
    "nested columns": Bad("parquet", _file("a.parquet", _table({"doc": [{"text": PROSE}]})), 3,
    "has no column 'text' but doc"),
    "nested columns that are named": Bad("parquet", _file("a.parquet",
    _table({"doc": [{"text": PROSE}]})), 0, settings={"fields": {"text": "doc.text"}}),
    "a table without rows": Bad("parquet", _file("a.parquet", _table({"text": pa.array([],
    pa.string())})), 3, "has no rows"),
    "numbers for texts": Bad("parquet", _file("a.parquet", _table({"text": [1, 2]})), 3,
    "not a text"),
    "JSON over several lines": Bad("jsonl", _file("a.json", json.dumps({"text": PROSE},
    indent=1).encode()), 3, "JSON over several lines"),
    "a log for records": Bad("jsonl", _file("a.jsonl", b"INFO the server has started\n" * 100_000),
    3, "1,000 pages and lines could not be read"),
    "a picture for a text": Bad("text", _file("a.txt",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))), 3, "NUL"),
    "a PDF for a book": Bad("books", _file("a.txt", b"%PDF-1.7\n" + PROSE.encode()), 3,
    "the file is a PDF"),
    "tasks with bare carriage returns": Bad("text", _tasks("t.csv",
    f"text,label\r{PROSE},1\r".encode()), 3, "contaminated 1", {"decontaminate": ["t.csv"]}),
    "tasks in Latin-1": Bad("text", _tasks("t.csv", GERMAN.encode("latin-1")), 3,
    "t.csv cannot be read as a task file", {"decontaminate": ["t.csv"]}),
    "nothing there": Bad("text", lambda at: at / "none.txt", 3, "does not exist"),
    "an unknown kind": Bad("wikipdia", _folder(), 2, "did you mean .*wikipedia"),
}  # fmt: skip


def prepare(name: str, directory: Path) -> tuple[str, dict[str, Any]]:
    """Write a bad input; the source as the command line has it, and the settings with
    their paths.
    """
    bad = BAD[name]
    settings = {
        key: [str(directory / one) for one in value] if key == "decontaminate" else value
        for key, value in bad.settings.items()
    }
    return f"{bad.kind}={bad.make(directory)}", settings


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _measure(name: str) -> str:
    """A line of the table: the installed program on a bad input."""
    with tempfile.TemporaryDirectory() as place:
        source, settings = prepare(name, Path(place))
        options = [
            f"--{key.replace('_', '-')}={value if isinstance(value, str) else value[0]}"
            for key, value in settings.items()
            if key in ("language", "infobox", "decontaminate")
        ]
        options += [f"--column={key}={value}" for key, value in settings.get("fields", {}).items()]
        options += [
            f"--set={key}={value}" for key, value in settings.items() if isinstance(value, int)
        ]
        command = [
            str(Path(sys.executable).parent / "cloze"),
            "corpus",
            "--source",
            source,
            "--out",
            f"{place}/out",
            *options,
        ]
        if name == "a file that nobody may read" and os.geteuid() == 0:
            return f"| {name} | – | root may read it | – | – | – |"
        started, spent, peak = time.perf_counter(), _children_seconds(), 0
        with tempfile.TemporaryFile("w+") as output:
            process = psutil.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=place,
                env={**os.environ, "COLUMNS": "400"},
            )
            while process.poll() is None:
                held = 0
                for one in (process, *process.children(recursive=True)):
                    try:
                        held += one.memory_full_info().pss
                    except psutil.Error:
                        continue
                peak = max(peak, held)
                time.sleep(0.05)
            seconds, spent = time.perf_counter() - started, _children_seconds() - spent
            output.seek(0)
            lines = [
                line.strip()
                for line in output.read().replace(place, "").splitlines()
                if line.strip()
            ]
        told = next(
            (line for line in lines if "could not be read" in line or "rror" in line),
            lines[-1] if lines else "",
        )
        return (
            f"| {name} | {process.returncode} | {told.replace('|', '/')} | {seconds:.1f} | "
            f"{spent:.1f} | {peak >> 20} |"
        )


if __name__ == "__main__":
    print(
        "| input | exit code | sentence | seconds | CPU seconds | peak memory of all processes, MB "
        "|\n|---|---|---|---|---|---|"
    )
    for one in sys.argv[1:] or BAD:
        print(_measure(one), flush=True)
