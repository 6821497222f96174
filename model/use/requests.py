"""Requests of inference commands, from the command line, a file or a pipe. No torch.

A line of a plain file is one field of a request. A line of a JSONL file is an object with the
command's fields; `id` is returned with the answer, other keys are ignored. Blank lines are skipped.
The `index` of an answer is its line number, from 0.
"""

from __future__ import annotations

import contextlib
import json
import select
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.model.tasks.formats.lines import load_json

LONGEST = 1 << 24  # maximum bytes of a line
_CHUNK = 1 << 16
_SHOWN = 60  # maximum characters of a text in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to an inference command.

    Attributes:
        index: number, from 0, of the text on the command line or of the line in the file.
        fields: fields of the command by name.
        where: name in messages: `reviews.txt, line 7`, or the text itself.
        typed: given on the command line, not in a file.
    """

    index: int
    fields: Mapping[str, Any]
    where: str
    typed: bool = False

    def text(self, name: str) -> str:
        """Return a text field.

        Raises:
            UsageError, DataError: the field is missing or no text.
        """
        value = self.fields.get(name)
        if value is None:
            raise self.error(
                f"has no {name!r} (it has {', '.join(sorted(self.fields)) or 'nothing'}); add it"
            )
        if not isinstance(value, str):
            raise self.error(
                f"has a {name!r} that is no text ({shortened(json.dumps(value))}); write it as a "
                f"string"
            )
        if "\0" in value:
            raise self.error(f"has a NUL character in {name!r}; remove it")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(f"has half a character in {name!r} (it is no UTF-8); mend it")
        return value

    def optional(self, name: str) -> str | None:
        """Return a text field, or None if it is missing. Raises as `text`."""
        return None if self.fields.get(name) is None else self.text(name)

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Add the file's line to errors, as DataError; errors of typed requests are unchanged."""
        try:
            yield
        except ClozeError as error:
            if self.typed or str(error).startswith(self.where):
                raise
            raise DataError(f"{self.where}: {error}") from None

    def error(self, what: str) -> ClozeError:
        """Return the error for this request; `what` is a verb phrase and, after `;`, the remedy."""
        return (UsageError if self.typed else DataError)(f"{self.where} {what}")


def requests_from_args(
    fields: Sequence[Mapping[str, Any]], common: Mapping[str, Any], first: str
) -> Iterator[Request]:
    """Iterate over requests of the command line; `common` and `first` as for `read`."""
    for number, given in enumerate(fields):
        where = f"the {first} {shortened(str(given.get(first)))!r}"
        yield Request(index=number, fields={**common, **given}, where=where, typed=True)


def read(
    path: str, called: str, *, jsonl: bool, common: Mapping[str, Any], first: str
) -> Iterator[Request | None]:
    """Iterate over requests of a file; yields None while a pipe has no more lines.

    Args:
        called: name of the file in messages.
        jsonl: each line is a JSON object.
        common: default fields of every request.
        first: field in a plain line.

    Raises:
        DataError: the file is missing or blank, or a line is no UTF-8, too long, or no JSON object.
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
        raise DataError(
            f"{called} holds no lines (only blank ones at most); give it one {first} a line"
        )


def _lines(path: str, called: str) -> Iterator[bytes | None]:
    """Iterate over lines without their ends; at most about `LONGEST` bytes are in memory."""
    with _opened(path, called) as handle:
        parts: list[bytes] = []  # parts of a line without its end
        number = 1
        while chunk := handle.read(_CHUNK):
            for place, piece in enumerate(chunk.split(b"\n")):
                if place:
                    yield b"".join(parts)
                    parts, number = [], number + 1
                parts.append(piece)
            if len(parts) * _CHUNK > LONGEST and sum(map(len, parts)) > LONGEST:
                raise DataError(
                    f"{called}, line {number} is longer than {LONGEST:,} bytes; name a file of "
                    f"lines"
                )
            if not _ready(handle):
                yield None
        if any(parts):
            yield b"".join(parts)


def _opened(path: str, called: str) -> IO[bytes]:
    if not storage.is_local(path):
        return storage.open_input(path)
    try:
        return open(
            storage.filesystem(path)[1], "rb", buffering=0
        )  # unbuffered: a pipe returns available bytes without waiting
    except FileNotFoundError:
        raise DataError(
            f"{called} does not exist; name a file of lines, or - for standard input"
        ) from None
    except IsADirectoryError:
        raise DataError(
            f"{called} is a directory; name a file of lines, or - for standard input"
        ) from None


def _ready(handle: IO[bytes]) -> bool:
    """Return True if reading does not block."""
    try:
        return bool(select.select([handle], [], [], 0)[0])
    except (OSError, ValueError):  # a file of an object store has no descriptor
        return True


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.removesuffix(b"\r").decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is no UTF-8 (byte {error.object[error.start]:#04x}); convert the file"
        ) from None


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        content = load_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is no JSON ({error}); write one object a line") from None
    if not isinstance(content, dict):
        raise DataError(
            f"{where} holds no JSON object ({shortened(text)}); write one object a line"
        )
    return content


def shortened(text: str) -> str:
    """Shorten a text for messages."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"
