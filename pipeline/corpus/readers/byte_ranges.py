"""Division of large files between lines or records: borders are near even distances.

They are looked for in the file's bytes alone, so they are the same wherever it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from cloze.core import storage
from cloze.pipeline.corpus.readers.base import Slice

SLICE_BYTES = 256 << 20  # approximate, of a file as it is stored
MARGIN = 1 << 12  # bytes after a border that may be needed to know it
_WINDOW = 1 << 20
_FARTHEST = 16 << 20  # bytes that are looked at; a file of one gzip member has no border
_THREADS = 16  # a store answers each request slowly

Find = Callable[[bytes], int | None]
"""Returns the first byte of a line or record after the first byte of some data, if there is one
with MARGIN bytes after it or none further."""


def is_large(file_slice: Slice) -> bool:
    """Return True if a file makes two slices or more."""
    return file_slice.size >= 2 * SLICE_BYTES


def cut(file_slice: Slice, find: Find) -> list[Slice]:
    """Divide a file into slices of about SLICE_BYTES that begin where `find` says."""
    if not is_large(file_slice):
        return [file_slice]
    count = file_slice.size // SLICE_BYTES
    places = [file_slice.size * number // count for number in range(1, count)]

    def border(place: int) -> int:
        with storage.open_input(file_slice.path) as handle:
            return _border(handle, place, file_slice.size, find)

    with ThreadPoolExecutor(_THREADS) as pool:
        borders = {0, file_slice.size, *pool.map(border, places)}
    return file_slice.split(sorted(borders))


def _border(handle: IO[bytes], place: int, size: int, find: Find) -> int:
    """Return the first border after `place`, or the file's size if there is none nearby."""
    for begin in range(place, min(size, place + _FARTHEST), _WINDOW):
        handle.seek(begin)
        data = handle.read(_WINDOW + MARGIN)
        found = find(data)
        if found is not None and (found <= _WINDOW or len(data) <= _WINDOW):
            return begin + found
    return size
