"""Lines of text files: UTF-8 text, TSV without quoting, CSV, JSON lines; JSON written by users."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any

from cloze.core import storage
from cloze.core.errors import DataError

csv.field_size_limit(1 << 30)  # the default is 131,072 characters
BOM = b"\xef\xbb\xbf"
# escaped surrogate: half of a character beyond the first 65,536; UTF-8 contains none
SURROGATE = "\\ud"
SEPARATOR = re.compile(r'"?sep=(.)"?\s*')  # first line that tells a spreadsheet the delimiter
Line = tuple[int, list[str]]  # line number from 1, and values


def text_lines(path: str, spreadsheet: bool = False) -> Iterator[tuple[int, str]]:
    """Iterate over the numbered lines of a UTF-8 file, without their ends (LF or CRLF).

    Only LF ends a line: U+2028 and vertical tabs are part of the text. A file `.gz` is unpacked.

    Args:
        spreadsheet: also read UTF-16 with a byte order mark, and CR as the end of lines in a file
            without LF, as spreadsheets write them.

    Raises:
        DataError: the file is missing or damaged, or a line is not UTF-8 or has a NUL.
    """
    with storage.open_input(path) as handle:
        lines = _unpacked(handle, path) if path.endswith(".gz") else iter(handle)
        lines = _with_lf(lines, path) if spreadsheet else lines
        for number, line in enumerate(lines, start=1):
            content = line.removeprefix(BOM) if number == 1 else line
            if b"\0" in content:
                raise DataError(
                    f"{path}, line {number}: a NUL at byte {content.index(0) + 1}; the file is "
                    f"damaged or in UTF-16, convert it to UTF-8"
                )
            content = content.removesuffix(b"\n").removesuffix(b"\r")
            yield number, _decode(content, f"{path}, line {number}")


def _with_lf(lines: Iterator[bytes], path: str) -> Iterator[bytes]:
    """Iterate over lines in UTF-8 that end with LF, of a file that may be in UTF-16 or have CR."""
    first = next(lines, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            text = b"".join([first, *lines]).decode("utf-16")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is no complete UTF-16 ({error.reason}); get it again"
            ) from error
        lines = iter(io.BytesIO(text.encode()))
        first = next(lines, b"")
    if not first.endswith(b"\n"):  # the whole file
        yield from (line + b"\n" for line in first.removesuffix(b"\r").split(b"\r") if first)
        return
    yield first
    yield from lines


def _unpacked(handle: IO[bytes], path: str) -> Iterator[bytes]:
    """Iterate over the lines of a gzip file."""
    try:
        yield from gzip.GzipFile(fileobj=handle)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is no complete gzip file ({error}); get it again") from error


def _decode(content: bytes, location: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{location}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8 (a "
            f"spreadsheet saves it as CSV UTF-8)"
        ) from error


def tsv_lines(path: str, delimiter: str = "\t") -> Iterator[Line]:
    """Iterate over split lines; quotation marks are text, as SST-2 and MRPC have unpaired ones."""
    for number, line in text_lines(path, spreadsheet=True):
        yield number, line.split(delimiter)


def csv_delimiter(path: str, header: bool) -> str:
    """Return the delimiter of a CSV file by its first line.

    It is that of a line such as `sep=;`; else a semicolon or tab if a header has one and no comma,
    as spreadsheets write where the comma is the decimal mark; else a comma.
    """
    first = next((line for _, line in text_lines(path, spreadsheet=True)), "")
    if named := SEPARATOR.fullmatch(first):
        return named[1]
    return next((sign for sign in ";\t" if header and sign in first and "," not in first), ",")


def csv_lines(path: str, delimiter: str = ",") -> Iterator[Line]:
    """Iterate over CSV records (RFC 4180) with the number of their first line.

    A first line that names the delimiter, such as `sep=;`, is no record.

    Raises:
        DataError: a quotation mark is unclosed or misplaced; and as for `text_lines`.
    """
    lines = (line + "\n" for _, line in text_lines(path, spreadsheet=True))
    first = next(lines, "")
    skipped = int(SEPARATOR.fullmatch(first) is not None)
    number = 1 + skipped
    reader = csv.reader(
        lines if skipped else chain([first], lines), delimiter=delimiter, strict=True
    )
    try:
        for values in reader:
            yield number, values
            number = reader.line_num + skipped + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {number}: {error}; close the quotation mark, or write it twice"
        ) from error


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the objects of a JSON-lines file; empty lines are skipped.

    Raises:
        DataError: a line is no JSON object; and as for `text_lines`.
    """
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            values = load_json(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}, column {error.colno}: not valid JSON ({error.msg}); "
                f"correct the line"
            ) from error
        if not isinstance(values, dict):
            raise DataError(
                f"{path}, line {number}: {type(values).__name__} instead of an object; write one "
                f"object per line"
            )
        yield number, values


def read_json(path: str) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: the file is missing, empty, or not JSON in UTF-8; the message names the place.
    """
    with storage.open_input(path) as handle:
        text = _decode(handle.read().removeprefix(BOM), path)
    if not text.strip():
        raise DataError(f"{path} is empty; it must contain JSON")
    try:
        return load_json(text)
    except json.JSONDecodeError as error:
        end = "" if text[error.pos :].strip() else ", the file ends too early"
        raise DataError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}{end})"
            f"; use a complete file"
        ) from error


def load_json(text: str) -> Any:
    r"""Parse JSON written by users.

    Raises:
        json.JSONDecodeError: the text is not valid JSON, is nested too deeply, has a number of
            thousands of digits, or a lone surrogate (`\ud83d`); no tokenizer accepts those.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", text, 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error).partition(";")[0], text, 0) from None
    lowered = text.lower() if "\\u" in text else ""
    if SURROGATE in lowered:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise json.JSONDecodeError(
                f"{half} is half a character", text, max(0, lowered.find(half))
            ) from None
    return value
