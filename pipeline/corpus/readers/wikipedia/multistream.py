"""The slices of a multistream dump: which bytes of it different workers may read, by the index that lies beside it.

A multistream dump (`…-multistream.xml.bz2`) is a row of bzip2 streams: one with `<siteinfo>`, many of a hundred pages each, one with
the end. Its index (`…-multistream-index.txt.bz2`) names the byte where the stream of each page begins. A slice is a run of
whole streams. An index that does not fit its dump is left alone, and the dump is read whole.
"""

from __future__ import annotations

import functools
import logging
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from pipeline.core import storage
from pipeline.corpus.readers.base import Slice
from pipeline.corpus.readers.byte_source import Damaged
from pipeline.corpus.readers.unpack import open_source

SLICE_BYTES = 32 << 20  # packed bytes of a slice, about: half a minute of one core
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_LINE = re.compile(rb"^(\d{1,19}):", re.MULTILINE)
_log = logging.getLogger(__name__)


def index_name(path: str) -> str | None:
    """Where the index of the dump at `path` lies, if there is one.

    `a-multistream.xml.bz2` has `a-multistream-index.txt.bz2`, `a-multistream7.xml-p5p9.bz2` has `a-multistream-index7.txt-p5p9.bz2`;
    both may be unpacked.
    """
    directory, name = posixpath.split(path)
    if "multistream" not in name or not name.endswith(".bz2"):
        return None
    packed = name.replace("multistream", "multistream-index", 1).replace(".xml", ".txt", 1)
    for candidate in (packed, packed.removesuffix(".bz2")):
        found = posixpath.join(directory, candidate)
        if candidate != name and storage.exists(found):
            return found
    return None


def cut(file_slice: Slice) -> list[Slice]:
    """`file_slice` in slices of about SLICE_BYTES, each with its `span`; as it is where it is small or has no index."""
    if file_slice.size <= SLICE_BYTES:
        return [file_slice]
    index = index_name(file_slice.path)
    if index is None:
        return [file_slice]
    changed = str(storage.stat(index).get("mtime") or storage.stat(index).get("LastModified") or "")
    borders = _borders(file_slice.path, index, file_slice.size, SLICE_BYTES, changed)
    if len(borders) < 3:
        return [file_slice]
    ranges = list(zip(borders[:-1], borders[1:], strict=True))
    return [replace(file_slice, span=span, size=span[1] - span[0]) for span in ranges]


@functools.lru_cache(maxsize=64)
def _borders(path: str, index: str, size: int, step: int, _changed: str) -> tuple[int, ...]:
    """Where slices begin: 0, then beginnings of streams at least `step` apart; last, the dump's end. Only (0, size) if in doubt."""
    borders = [0]
    for offset in _offsets(index):
        if offset < borders[-1] or offset >= size:
            if offset >= size:  # a dump that was cut off: what is there is read in slices
                break
            continue
        if offset - borders[-1] >= step:
            borders.append(offset)
    if size - borders[-1] < step // 4 and len(borders) > 1:
        borders.pop()
    with storage.open_input(path) as handle:
        for border in borders:
            handle.seek(border)
            if not _STREAM.match(handle.read(10)):
                _log.warning(
                    "%s does not fit %s: no stream begins at byte %d; the dump is read by one worker", index, path, border
                )
                return 0, size
    return *borders, size


def _offsets(index: str) -> Iterator[int]:
    """The offsets that an index names, each once for every run of lines. What cannot be read of it is left out."""
    source = open_source(index)
    rest, last = b"", -1
    try:
        while True:
            try:
                data = source.read(1 << 20)
            except Damaged:
                continue
            if not data:
                return
            head, newline, rest = (rest + data).rpartition(b"\n")
            for found in dict.fromkeys(_LINE.findall(head + newline)):
                if int(found) != last:
                    last = int(found)
                    yield last
    finally:
        source.close()
