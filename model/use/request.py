"""Requests to the inference commands, from the command line, a file or a pipe.

A line of a plain file is one field of a request. A line of a JSONL file is an object with the
command's fields; `id` is returned with the answer, other keys are ignored. Blank lines are skipped.
The `index` of an answer is its line number, from 0.
"""

from __future__ import annotations

import contextlib
import json
import select
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.model.tasks.formats.lines import load_json
from cloze.model.use.configs import VerbConfig

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
        end: bytes of the file up to the end of the line; 0 without a file.
    """

    index: int
    fields: Mapping[str, Any]
    where: str
    typed: bool = False
    end: int = 0

    def text(self, name: str) -> str:
        """Return a text field.

        Raises:
            UsageError, DataError: the field is missing, empty or no text.
        """
        if name not in self.fields:
            named = ", ".join(sorted(map(str, self.fields))) or "nothing"
            raise self.error(f"has no {name!r} (it has {named}); add it")
        value = self.fields[name]
        if not isinstance(value, str):
            shown = shortened(json.dumps(value, default=repr))
            raise self.error(f"has a {name!r} that is no text ({shown}); write it as a string")
        if not value.strip():
            raise self.error(f"has an empty {name!r}; write something")
        if "\0" in value:
            raise self.error(f"has a NUL character in {name!r}; remove it")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(f"has half a character in {name!r} (it is no UTF-8); remove it")
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


def typed_requests(config: VerbConfig, first: str) -> Iterator[Request]:
    """Iterate over requests of the command line; `first` as for `read_requests`."""
    for number, arguments in enumerate(config.requests):
        where = f"the {first} {shortened(str(arguments.get(first)))!r}"
        yield Request(index=number, fields={**config.common, **arguments}, where=where, typed=True)


def read_requests(path: str, config: VerbConfig, first: str) -> Iterator[Request | None]:
    """Iterate over requests of a file; yields None while a pipe has no more lines.

    Args:
        config: says how the lines are read.
        first: field in a plain line.

    Raises:
        DataError: the file is missing or blank, or a line is no UTF-8, too long, or no JSON object.
    """
    any_request, number, end, called = False, 0, 0, config.called or path
    for line in _lines(path, called):
        if line is None:
            yield None
            continue
        number, end = number + 1, end + len(line) + 1
        where = f"{called}, line {number}"
        try:
            text = line.removesuffix(b"\r").decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where} is no UTF-8 (byte {error.object[error.start]:#04x}); convert the file"
            ) from None
        if text.strip():
            any_request = True
            fields = {**config.common, **(_object(text, where) if config.jsonl else {first: text})}
            yield Request(index=number - 1, fields=fields, where=where, end=end)
    if not any_request:
        raise DataError(
            f"{called} has no lines (only blank ones at most); give it one {first} a line"
        )


def _lines(path: str, called: str) -> Iterator[bytes | None]:
    """Iterate over lines without their ends; at most about `LONGEST` bytes are in memory."""
    with _opened(path, called) as handle:
        pieces: list[bytes] = []  # parts of a line without its end
        number = 1
        while chunk := handle.read(_CHUNK):
            for index, piece in enumerate(chunk.split(b"\n")):
                if index:
                    yield b"".join(pieces)
                    pieces, number = [], number + 1
                pieces.append(piece)
            if len(pieces) * _CHUNK > LONGEST and sum(map(len, pieces)) > LONGEST:
                raise DataError(
                    f"{called}, line {number} is longer than {LONGEST:,} bytes; name a file of "
                    f"lines"
                )
            if not _ready(handle):
                yield None
        if any(pieces):
            yield b"".join(pieces)


def _opened(path: str, called: str) -> IO[bytes]:
    if not storage.is_local(path):
        return storage.open_input(path)
    try:  # unbuffered: a pipe returns available bytes without waiting
        return open(storage.filesystem(path)[1], "rb", buffering=0)
    except (FileNotFoundError, IsADirectoryError) as error:
        problem = "does not exist" if isinstance(error, FileNotFoundError) else "is a directory"
        raise DataError(
            f"{called} {problem}; name a file of lines, or - for standard input"
        ) from None


def _ready(handle: IO[bytes]) -> bool:
    """Return True if reading does not block."""
    try:
        return bool(select.select([handle], [], [], 0)[0])
    except (OSError, ValueError):  # a file of an object store has no descriptor
        return True


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        content = load_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is no JSON ({error}); write one object a line") from None
    if not isinstance(content, dict):
        raise DataError(
            f"{where} contains no JSON object ({shortened(text)}); write one object a line"
        )
    return content


def shortened(text: str) -> str:
    """Shorten a text for messages."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"


def request_of(fields: Mapping[str, Any], index: int) -> Request:
    """Return a request that a program made."""
    return Request(index=index, fields=fields, where=f"request {index}", typed=True)


# Arguments of `cloze.Checkpoint`: one text, or several.


def texts_of(value: str | Iterable[str], name: str) -> list[str]:
    """Return the texts of an argument, one or several.

    Raises:
        UsageError: it is no text and no list of texts, or one of them is empty.
    """
    if isinstance(value, str):
        return [Request(index=0, fields={name: value}, where="the call", typed=True).text(name)]
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise UsageError(f"{name} ({value!r:.60}) is no text; give a string, or a list of strings")
    return [
        Request(index=0, fields={name: text}, where=f"text {number}", typed=True).text(name)
        for number, text in enumerate(value, 1)
    ]


def matching_texts(value: str | Iterable[str], name: str, texts: Sequence[str]) -> list[str]:
    """Return a second text for each text; one text stands for all.

    Raises:
        UsageError: as for `texts_of`, or the numbers differ.
    """
    seconds = texts_of(value, name) * (len(texts) if isinstance(value, str) else 1)
    if len(seconds) != len(texts):
        raise UsageError(f"{name} ({len(seconds)}) must have one text for each of {len(texts)}")
    return seconds


def as_given(value: str | Iterable[str], results: Sequence[Any]) -> Any:
    """Return one result for one text, and a list of them for a list."""
    return results[0] if isinstance(value, str) else results
