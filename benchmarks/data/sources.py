"""Raw input of any size, made from the real files of `shared/data`: first each file once, then
again under other names.

A repeated document must not be a copy that the corpus stage finds and drops, so that it costs what
a new one costs. In repetition n every common word (four to twelve letters between spaces, so no
markup) becomes another one of the same length that is about as frequent: which one depends on n.
What is left of a text's five-word shingles is under a tenth.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("wikipedia", "wikiextractor", "gutenberg", "novels", "warc", "jsonl", "docstrings")
READER = {"gutenberg": "books", "novels": "books"}  # where it is not the kind's own name
PACKAGES = (
    "pydantic",
    "prefect",
    "transformers",
    "torch",
    "stdlib",
    "scipy",
    "sklearn",
    "pandas",
    "numpy",
    "sympy",
    "mlflow",
)
MIX = {"wikiextractor": 0.45, "novels": 0.32, "gutenberg": 0.23}  # as much as there is of each

_WORD = re.compile(rb"(?<= )[a-z]{4,12}(?= )")
_NEIGHBOURS = 64  # words that take each other's places


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A source on the disk: what `--source KIND=PATH` is given, and its bytes as they are read,
    unpacked.
    """

    kind: str
    path: str
    bytes: int


@functools.cache
def _ranked(data: str) -> dict[int, list[bytes]]:
    """Words by their length, the frequent ones first."""
    counts: Counter[bytes] = Counter()
    for file in sorted(Path(data, "wikipedia/extracted").glob("wiki_*"))[:10]:
        counts.update(_WORD.findall(file.read_bytes()))
    found: dict[int, list[bytes]] = {}
    for word, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if count > 1:
            found.setdefault(len(word), []).append(word)
    return found


@functools.lru_cache(maxsize=2)
def _exchange(data: str, copy: int) -> dict[bytes, bytes]:
    table = {}
    for words in _ranked(data).values():
        for first in range(0, len(words), _NEIGHBOURS):
            block = words[first : first + _NEIGHBOURS]
            table.update(
                {word: block[(place + copy) % len(block)] for place, word in enumerate(block)}
            )
    return table


def varied(content: bytes, copy: int, data: str) -> bytes:
    """The text of repetition `copy`; 0 is the text as it is. As long as it was, to the byte."""
    if not copy:
        return content
    exchange = _exchange(data, copy)
    return _WORD.sub(lambda match: exchange.get(match[0], match[0]), content)


def make(kind: str, size: float, directory: str, data: str) -> Raw:
    """Write about `size` bytes (unpacked) of a kind.

    Args:
        kind: of `KINDS`.
        size: what is come near to; units (a page, a file) are whole.
        directory: to write to; it must not exist.
        data: the directory of real data.
    """
    out = Path(directory)
    out.mkdir(parents=True)
    if kind == "docstrings":
        return _packages(size)
    path, total = _MAKERS[kind](out, size, data)
    return Raw(kind=READER.get(kind, kind), path=str(path), bytes=total)


def make_mix(size: float, directory: str, data: str) -> list[Raw]:
    """About `size` bytes of encyclopedia and books; up to 62 MB all of it is different text."""
    return [make(kind, share * size, f"{directory}/{kind}", data) for kind, share in MIX.items()]


def _files(pattern: str, data: str) -> list[Path]:
    """In an order that has nothing to do with their names, so that a few of them are like all."""
    found = sorted(Path(data).glob(pattern), key=lambda path: zlib.crc32(path.name.encode()))
    if not found:
        raise FileNotFoundError(
            f"{data}/{pattern} is not here: give --data the directory of real data"
        )
    return found


def _until(
    size: float, units: list[bytes], render: Callable[[bytes, int], bytes]
) -> Iterator[tuple[int, int, bytes]]:
    """(copy, number, content) of units, again and again, until what there is is as near to `size`
    bytes as it gets; one at least.
    """
    total, copy = 0, 0
    while True:
        for number, unit in enumerate(units):
            content = render(unit, copy)
            if total and total + len(content) / 2 > size:
                return
            total += len(content)
            yield copy, number, content
        copy += 1


def _text_files(
    pattern: str, rename: Callable[[bytes, int], bytes] | None = None
) -> Callable[..., tuple[Path, int]]:
    def write(out: Path, size: float, data: str) -> tuple[Path, int]:
        files = _files(pattern, data)

        def render(content: bytes, copy: int) -> bytes:
            text = varied(content, copy, data)
            return rename(text, copy) if rename and copy else text

        total = 0
        for copy, number, content in _until(size, [file.read_bytes() for file in files], render):
            (out / f"{files[number].stem}_{copy:03d}{files[number].suffix}").write_bytes(content)
            total += len(content)
        return out, total

    return write


def _rename_extracted(content: bytes, copy: int) -> bytes:
    return re.sub(
        rb'(<doc id=")(\d+)',
        lambda match: match[1] + b"%d" % (int(match[2]) + copy * 10**9),
        content,
    )


def _wikipedia(out: Path, size: float, data: str) -> tuple[Path, int]:
    dump = bz2.decompress(_files("wikipedia/dumps/enwiki-2016*.bz2", data)[0].read_bytes())
    pages = re.findall(rb"  <page>.*?</page>\n", dump, re.DOTALL)
    head, foot = dump[: dump.index(b"  <page>")], b"</mediawiki>\n"

    def render(page: bytes, copy: int) -> bytes:
        if not copy:
            return page
        page = page.replace(b"</title>", b" (%d)</title>" % copy, 1)
        page = re.sub(
            rb"<id>(\d+)</id>",
            lambda match: b"<id>%d</id>" % (int(match[1]) + copy * 10**8),
            page,
            count=1,
        )
        return varied(page, copy, data)

    path, total = out / "enwiki.xml.bz2", len(head) + len(foot)
    with bz2.open(path, "wb") as file:
        file.write(head)
        for _, _, content in _until(size - total, pages, render):
            file.write(content)
            total += len(content)
        file.write(foot)
    return path, total


def _jsonl(out: Path, size: float, data: str) -> tuple[Path, int]:
    lines = [
        line
        for file in _files("web/*.jsonl.gz", data)
        for line in gzip.decompress(file.read_bytes()).splitlines(True)
    ]

    def render(line: bytes, copy: int) -> bytes:
        if not copy:
            return line
        row = json.loads(line)
        row["id"] = f"{row['id']}#{copy}"
        row["text"] = varied(row["text"].encode(), copy, data).decode()
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"

    path, total = out / "web.jsonl.gz", 0
    with gzip.open(path, "wb", compresslevel=6) as file:
        for _, _, content in _until(size, lines, render):
            file.write(content)
            total += len(content)
    return path, total


def _warc(out: Path, size: float, data: str) -> tuple[Path, int]:
    records: list[bytes] = []
    for file in _files("web/*.warc.gz", data):
        content = gzip.decompress(file.read_bytes())
        records += re.split(rb"(?<=\r\n\r\n)(?=WARC/1\.0\r\n)", content)

    def render(record: bytes, copy: int) -> bytes:
        if not copy:
            return record
        head, _, body = record.partition(b"\r\n\r\n")
        head = re.sub(rb"\r\nWARC-(?:Block|Payload)-Digest: [^\r]*", b"", head)
        return (
            re.sub(rb"(urn:uuid:)(........)", rb"\g<1>%08X" % copy, head)
            + b"\r\n\r\n"
            + varied(body, copy, data)
        )

    path, total = out / "web.warc.gz", 0
    with open(path, "wb") as packed:
        for _, _, content in _until(size, records, render):
            packed.write(gzip.compress(content, 6))  # a member a record, as the format wants it
            total += len(content)
    return path, total


def _packages(size: float) -> Raw:
    """As many installed packages as have `size` bytes of source; nothing is repeated."""
    from cloze.core.errors import DataError
    from cloze.pipeline.corpus.readers import READERS

    names: list[str] = []
    total = 0
    for package in PACKAGES:
        try:
            total += sum(split.size for split in READERS.find("docstrings").slices(package))
        except DataError:  # it is not installed here
            continue
        names.append(package)
        if total >= size:
            break
    return Raw(kind="docstrings", path=",".join(names), bytes=total)


_MAKERS: dict[str, Callable[..., tuple[Path, int]]] = {
    "wikipedia": _wikipedia,
    "wikiextractor": _text_files("wikipedia/extracted/wiki_*", _rename_extracted),
    "gutenberg": _text_files("books/gutenberg/*.txt"),
    "novels": _text_files("books/novels/*.txt"),
    "warc": _warc,
    "jsonl": _jsonl,
}
