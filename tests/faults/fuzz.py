"""A fuzzer of the readers and cleaning steps: hostile texts and damaged files, with limits of time
and memory per byte.

    python -m tests.faults.fuzz --minutes 20 --seed 1

Every case is a function of the seed and its number. Most are a few pieces of markup repeated for 64
kB, which finds whatever is quadratic; the others are nested, shuffled, or files whose bytes are
damaged. A case fails if it takes longer than `seconds_allowed`, if the process grows beyond MEMORY,
or if it ends in an error that is none of Cloze's own. Exit code 1 if one did; `--case N` runs it
again.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import functools
import gzip
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from xml.sax.saxutils import escape

from cloze.core.config import parse_config
from cloze.core.errors import ClozeError
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.corpus.read.read_and_clean import read_documents
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.signatures import signature
from cloze.pipeline.corpus.steps.chain import Step, build_steps
from cloze.pipeline.corpus.steps.decontaminate import task_texts
from tests.faults.fuzz_pieces import CSV, HTML, JSON, PROSE, TEXT, WIKITEXT, XML
from tests.pipeline.corpus.readers.made import CONTAINER, HEAD, PACKAGE, chapter, page, response

SIZE = 64 << 10  # bytes of text in a case
SECONDS_PER_MB = 20.0  # CPU; usual text takes .2 to .6 with all steps on
BASE_SECONDS = 0.5
MEMORY, GROWTH = 1536 << 20, 1 << 30  # bytes: of a process, and of one that other tests made larger


def shaped(rng: random.Random, pieces: list[str], size: int = SIZE) -> str:
    """A hostile text of these pieces, of about `size` bytes."""
    pieces = [*pieces, "a ", "\n", " "]
    shape = rng.choice(("repeat", "repeat", "repeat", "nest", "soup", "insert"))
    if shape == "repeat":
        unit = "".join(rng.choices(pieces, k=rng.choice((1, 2, 2, 3, 3, 4))))
        begin, end = (
            rng.choice(("", "", rng.choice(pieces))),
            rng.choice(("", "", rng.choice(pieces))),
        )
        return begin + unit * (size // len(unit.encode("utf-8", "surrogatepass")) + 1) + end
    if shape == "nest":
        opening, closing = ("".join(rng.choices(pieces, k=rng.choice((1, 2)))) for _ in range(2))
        count = size // (len((opening + closing).encode("utf-8", "surrogatepass"))) + 1
        return (
            opening * count
            + rng.choice(("", PROSE))
            + closing * (count - rng.choice((0, 0, 1, count // 2)))
        )
    if shape == "soup":
        return "".join(rng.choices(pieces, k=size // 4))
    words = (PROSE * (size // len(PROSE))).split(" ")
    for _ in range(rng.choice((1, 10, len(words) // 4))):
        words[rng.randrange(len(words))] = rng.choice(pieces)
    return " ".join(words)


def _zip(*members: tuple[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return sink.getvalue()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _dump(rng: random.Random) -> bytes:
    return _encoded(
        HEAD
        + page("A", escape(shaped(rng, [*WIKITEXT, *TEXT])))
        + page("B", PROSE, number=2)
        + "</mediawiki>"
    )


def _epub(rng: random.Random) -> bytes:
    package = PACKAGE.format(
        items='<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/>',
        spine='<itemref idref="a"/>',
    )
    members = [
        ["META-INF/container.xml", CONTAINER.format("a.opf")],
        ["a.opf", package],
        ["a.xhtml", chapter("One", f"<p>{PROSE}</p>")],
    ]
    members[rng.choice((0, 1, 2, 2, 2))][1] = shaped(rng, [*HTML, *XML])
    return _zip(*((name, _encoded(text)) for name, text in members))


def _enterprise(rng: random.Random) -> bytes:
    body = {"html": shaped(rng, [*HTML, *TEXT]), "wikitext": ""}
    return _encoded(
        json.dumps(
            {"name": "A", "identifier": 1, "namespace": {"identifier": 0}, "article_body": body}
        )
        + "\n"
    )


def _table(rng: random.Random) -> bytes:
    sink = io.StringIO(newline="")
    csv.writer(sink).writerows([[shaped(rng, TEXT, 1000) for _ in range(3)] for _ in range(20)])
    return _encoded(sink.getvalue())


# What is read: (kind of source or `task`, name of the file, its content)
CASES: list[tuple[str, str, Callable[[random.Random], bytes]]] = [
    ("wikipedia", "a.xml", _dump),
    ("wikipedia", "a.xml", _dump),
    ("wikipedia", "a.xml", lambda rng: _encoded(HEAD + shaped(rng, XML) + rng.choice(("",
    "</mediawiki>")))),
    ("wikipedia", "a.xml.bz2", lambda rng: bz2.compress(_dump(rng), 1)),
    ("wikiextractor", "wiki_00",
    lambda rng: _encoded(
        f'<doc id="1" url="" title="T">\n{shaped(rng, [*WIKITEXT, *TEXT])}\n</doc>\n'
    )),
    ("html", "a.html",
    lambda rng: _encoded(f"<html><body>{shaped(rng, [*HTML, *TEXT])}</body></html>")),
    ("html", "a.html", lambda rng: _encoded(shaped(rng, HTML))),
    ("html", "a.ndjson", _enterprise),
    ("html", "a.zip", lambda rng: _zip(("a.html", _encoded(shaped(rng, HTML))),
    (rng.choice(("../b.html", "b.html")), b"<p>b"))),
    ("warc", "a.warc", lambda rng: response(1) + response(2, _encoded(shaped(rng, [*HTML,
    *TEXT]))) + response(3)),
    ("warc", "a.warc.gz", lambda rng: gzip.compress(response(1), 1) + gzip.compress(response(2,
    _encoded(shaped(rng, HTML))), 1)),
    ("jsonl", "a.jsonl", lambda rng: _encoded(json.dumps({"text": shaped(rng, TEXT)}) + "\n")),
    ("jsonl", "a.jsonl", lambda rng: _encoded(shaped(rng, JSON))),
    ("jsonl", "a.json", lambda rng: _encoded("[" + shaped(rng, JSON))),
    ("text", "a.txt", lambda rng: _encoded(shaped(rng, TEXT))),
    ("books", "a.txt", lambda rng: _encoded(shaped(rng, TEXT))),
    ("books", "a.md", lambda rng: _encoded(shaped(rng, TEXT))),
    ("books", "a.epub", _epub),
    ("task", "a.csv", lambda rng: _encoded(shaped(rng, CSV))),
    ("task", "a.csv", _table),
    ("task", "a.tsv", lambda rng: _encoded(shaped(rng, CSV))),
    ("task", "a.json", lambda rng: _encoded(shaped(rng, JSON))),
    ("task", "a.txt", lambda rng: _encoded(shaped(rng, TEXT))),
]  # fmt: skip


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The file as it is, or with bytes changed, cut out, repeated or inserted."""
    found = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 1, 3, 20))):
        place, size = rng.randrange(len(found) + 1), rng.choice((1, 1, 8, 1000))
        change = rng.choice(("set", "cut", "repeat", "insert", "truncate"))
        if change == "set":
            found[place : place + size] = rng.randbytes(min(size, len(found) - place))
        elif change == "cut":
            del found[place : place + size]
        elif change == "repeat":
            found[place:place] = found[place : place + size] * rng.choice((1, 2, 50))
        elif change == "insert":
            found[place:place] = (
                rng.choice((b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r")) * size
            )
        elif rng.random() < 0.2:
            del found[place:]
    return bytes(found)


def make_case(seed: int, number: int) -> tuple[str, str, bytes, dict[str, Any]]:
    """(kind, name of the file, content, options) of a case."""
    rng = random.Random(f"{seed}/{number}")
    kind, name, make = CASES[number % len(CASES)]
    data = damaged(rng, make(rng))
    options = {
        "language": rng.choice(("en", "en", "de", "fr", "ja", "ar", "auto")),
        "tables": rng.choice(("drop", "prose", "markdown")),
        "infobox": rng.choice(("drop", "metadata")),
        "math": rng.choice(("drop", "latex")),
    }
    return kind, name, data, options


@functools.cache
def _steps(language: str) -> tuple[Step, ...]:
    """All cleaning steps that need no files, switched on."""
    everything = {
        "preset": "web",
        "mask_personal_data": ["email", "phone", "ip", "card", "iban"],
        "language": language,
    }
    return build_steps(
        parse_config(
            CorpusConfig, {"sources": [{"kind": "text", "path": "/none"}], **everything}, "corpus"
        )
    )


def consume(kind: str, path: Path, options: dict[str, Any]) -> None:
    """Read a file, and take each document through every step, whether or not one before would have
    dropped it.
    """
    if kind == "task":
        for _ in task_texts(str(path)):
            pass
        return
    values = {
        "sources": [{"kind": kind, "path": str(path)}],
        "on_error": "quarantine",
        "namespaces": ["0"],
        **options,
    }
    config = parse_config(CorpusConfig, values, "corpus")
    steps = _steps(options.get("language", "en"))
    for file_slice in READERS.find(kind).slices(str(path)):
        for document in read_documents(config, ReadCounters(slice=file_slice, stop=False)):
            for _, step in steps:
                result = step(document)
                document = result.document or document
                if result.sentences is not None:
                    signature(" ".join(result.sentences.texts), MINHASH)


MINHASH = MinHash()


class TooSlow(BaseException):
    """A case has used up its time; raised where it was."""


def _stop(_: int, frame: FrameType | None) -> None:
    raise TooSlow


def _where() -> str:
    """The functions of the pipeline in which the current exception was raised, the
    innermost last.
    """
    frames = traceback.extract_tb(sys.exc_info()[2])[:-1]
    names = [
        f"{frame.filename.partition('/pipeline/')[2]}:{frame.lineno} {frame.name}"
        for frame in frames
        if "/pipeline/" in frame.filename
    ]
    return " > ".join(
        [
            *names[-4:],
            f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} {frames[-1].name}",
        ]
    )


def seconds_allowed(size: int) -> float:
    """CPU seconds that a case of this many bytes may take."""
    return (
        BASE_SECONDS + SECONDS_PER_MB * max(size, SIZE) / 1e6
    )  # a packed one may have SIZE bytes, too


def judge(directory: Path, kind: str, name: str, data: bytes, options: dict[str, Any]) -> str:
    """Run a case; what is wrong with it, or nothing."""
    path = directory / name
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds_allowed(len(data)))
    started = time.process_time()
    try:
        consume(kind, path, options)
    except ClozeError as error:
        if not str(error) or "\n" in str(error):
            return f"the error is no sentence: {error!r}"
    except TooSlow:
        return f"too slow in {_where()}"
    except Exception as error:
        return f"an error of no kind of Cloze's: {error!r} in {_where()}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    spent = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if spent > seconds_allowed(len(data)):
        return f"too slow: {spent:.2f} s"
    if peak > before and peak << 10 > max(MEMORY, (before << 10) + GROWTH):
        return f"too much memory: {peak >> 10} MB, {before >> 10} MB before"
    return ""


def failures(seed: int, numbers: Iterator[int], end: float) -> Iterator[tuple[int, str]]:
    """(number, what is wrong) of the cases that fail, until `time.monotonic` is `end`; at last the
    count of all under -1.
    """
    count = 0
    with tempfile.TemporaryDirectory() as directory:
        for number in numbers:
            if time.monotonic() > end:
                break
            kind, name, data, options = make_case(seed, number)
            if found := judge(Path(directory), kind, name, data, options):
                yield (
                    number,
                    f"{kind} {name}, {len(data):,} bytes, {data[:60]!r} … {options}\n{found}",
                )
            count += 1
    yield -1, f"{count:,} cases"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this case alone")
    given = parser.parse_args()
    numbers = iter([given.case]) if given.case is not None else iter(range(1 << 40))
    bad = 0
    for number, found in failures(given.seed, numbers, time.monotonic() + 60 * given.minutes):
        bad += number >= 0
        print(f"case {number}: {found}" if number >= 0 else f"{found}, {bad} failed", flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
