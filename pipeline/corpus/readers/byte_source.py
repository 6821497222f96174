"""Bytes of a source as they come, whatever they are packed in: what unpackers give and what readers read from."""

from __future__ import annotations

from typing import Protocol

FREE_BYTES = 64 << 20  # unpacked bytes of a stream for which the ratio is not looked at
MAXIMUM_RATIO = 250  # unpacked to packed; dumps of full histories, the most repetitive texts there are, stay below 200


class Damaged(Exception):
    """A stream of the file cannot be unpacked further. Reading again gives the next stream, or nothing.

    Attributes:
        reason: `truncated`, `damaged` or `bomb`.
        offset: where its stream begins, in bytes of the file as it lies there.
    """

    def __init__(self, reason: str, sentence: str, offset: int) -> None:
        super().__init__(sentence)
        self.reason, self.offset = reason, offset


class ByteSource(Protocol):
    """Bytes as they come: what readers read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end. `Damaged` once for each place that cannot be read."""

    def close(self) -> None: ...
