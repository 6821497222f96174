"""What a verb is asked: requests, from the command line, or line by line from a file or a pipe. No torch.

A line of a plain file is one field of the request, as it stands between the line ends. A line of a JSONL file is an object: its keys are the
verb's fields (they stand in the verb's help), `id` comes back with the answer, other keys are left alone. Blank lines are passed over; an
answer's `index` is the number of its line, from 0.
"""

from __future__ import annotations

import contextlib
import json
import select
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from model.tasks.formats.json_text import load_json
from pipeline.core import storage
from pipeline.core.errors import ClozeError, DataError, UsageError

LONGEST = 1 << 24  # bytes of a line; a file without line ends is no file of lines
_CHUNK = 1 << 16
_SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that is asked.

    Attributes:
        index: its number, from 0: of the texts on the command line, or of the lines of the file.
        fields: the verb's fields, by name.
        where: what to call it in messages: `reviews.txt, line 7`, or the text itself.
        typed: whether the user typed it, and no file holds it.
    """

    index: int
    fields: Mapping[str, Any]
    where: str
    typed: bool = False

    def text(self, name: str) -> str:
        """The field of that name.

        Raises:
            UsageError, DataError: there is none, or it is no text.
        """
        value = self.fields.get(name)
        if value is None:
            raise self.fault(f"has no {name!r} (it has {', '.join(sorted(self.fields)) or 'nothing'}); add it")
        if not isinstance(value, str):
            raise self.fault(f"has a {name!r} that is no text ({shortened(json.dumps(value))}); write it as a string")
        if "\0" in value:
            raise self.fault(f"has a NUL character in {name!r}; remove it")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.fault(f"has half a character in {name!r} (it is no UTF-8); mend it")
        return value

    def optional(self, name: str) -> str | None:
        """The field of that name; None where there is none. Raises as `text` does."""
        return None if self.fields.get(name) is None else self.text(name)

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong inside is told with the line of the file, and is bad data; of a text that was typed it is told as it is."""
        try:
            yield
        except ClozeError as error:
            if self.typed or str(error).startswith(self.where):
                raise
            raise DataError(f"{self.where}: {error}") from None

    def fault(self, what: str) -> ClozeError:
        """The error to raise where this request cannot be answered. Args: what: what is wrong with it: a verb, and after `;` the remedy."""
        return (UsageError if self.typed else DataError)(f"{self.where} {what}")


def typed(fields: Sequence[Mapping[str, Any]], common: Mapping[str, Any], first: str) -> Iterator[Request]:
    """The requests of the command line. Args: common, first: as of `read`."""
    for number, given in enumerate(fields):
        where = f"the {first} {shortened(str(given.get(first)))!r}"
        yield Request(index=number, fields={**common, **given}, where=where, typed=True)


def read(path: str, called: str, *, jsonl: bool, common: Mapping[str, Any], first: str) -> Iterator[Request | None]:
    """The requests of a file, one at a time; None where a pipe has no more lines for now.

    Args:
        called: what messages call the file.
        jsonl: whether each line is a JSON object.
        common: fields that every request has, unless its line says otherwise.
        first: the field that a plain line is.

    Raises:
        DataError: there is no such file, it has no lines but blank ones, or a line is no UTF-8, too long, or no JSON object.
    """
    found, number = False, 0
    for line in _lines(path, called):
        if line is None:
            yield None
            continue
        number += 1
        where = f"{called}, line {number}"
        text = _decoded(line, where)
        if text.strip():
            found = True
            own = _object(text, where) if jsonl else {first: text}
            yield Request(index=number - 1, fields={**common, **own}, where=where)
    if not found:
        raise DataError(f"{called} holds no lines (only blank ones at most); give it one {first} a line")


def _lines(path: str, called: str) -> Iterator[bytes | None]:
    """The lines without their ends, read as they come: no more than `LONGEST` bytes are in memory."""
    with _opened(path, called) as handle:
        parts: list[bytes] = []  # of a line whose end is still to come
        number = 1
        while chunk := handle.read(_CHUNK):
            for place, piece in enumerate(chunk.split(b"\n")):
                if place:
                    yield b"".join(parts)
                    parts, number = [], number + 1
                parts.append(piece)
            if len(parts) * _CHUNK > LONGEST and sum(map(len, parts)) > LONGEST:
                raise DataError(f"{called}, line {number} is longer than {LONGEST:,} bytes; name a file of lines")
            if not _ready(handle):
                yield None
        if any(parts):
            yield b"".join(parts)


def _opened(path: str, called: str) -> IO[bytes]:
    if not storage.is_local(path):
        return storage.open_input(path)
    try:
        return open(storage.filesystem(path)[1], "rb", buffering=0)  # of a pipe, what is there, without waiting for more
    except FileNotFoundError:
        raise DataError(f"{called} does not exist; name a file of lines, or - for standard input") from None
    except IsADirectoryError:
        raise DataError(f"{called} is a directory; name a file of lines, or - for standard input") from None


def _ready(handle: IO[bytes]) -> bool:
    """Whether reading on would give something at once, or the end."""
    try:
        return bool(select.select([handle], [], [], 0)[0])
    except (OSError, ValueError):  # a file of an object store has no descriptor
        return True


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.removesuffix(b"\r").decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is no UTF-8 (byte {error.object[error.start]:#04x}); convert the file") from None


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        content = load_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is no JSON ({error}); write one object a line") from None
    if not isinstance(content, dict):
        raise DataError(f"{where} holds no JSON object ({shortened(text)}); write one object a line")
    return content


def shortened(text: str) -> str:
    """The text as a message shows it."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"
