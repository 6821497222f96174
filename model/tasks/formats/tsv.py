"""Tables as text: TSV without quoting, as GLUE's files are, CSV with it, and JSON lines. UTF-8, with or without a byte order mark."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from model.tasks.formats.json_text import load_json
from pipeline.core import storage
from pipeline.core.errors import DataError

BOM = b"\xef\xbb\xbf"
Line = tuple[int, list[str]]  # its number in the file, from 1, and its values


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, without their ends (LF or CRLF).

    Nothing else ends a line: U+2028 and vertical tabs are characters of the text.

    Raises:
        DataError: the file is missing, or a line is no UTF-8 or holds a NUL.
    """
    with storage.open_input(path) as handle:
        for number, line in enumerate(handle, start=1):
            yield number, _decoded(line.removeprefix(BOM) if number == 1 else line, path, number)


def tsv_lines(path: str, delimiter: str = "\t") -> Iterator[Line]:
    """The lines of a table, cut. A quotation mark is a character like any other: SST-2 and MRPC hold unpaired ones."""
    for number, line in text_lines(path):
        yield number, line.split(delimiter)


def csv_lines(path: str, delimiter: str = ",") -> Iterator[Line]:
    """The records of a CSV file (RFC 4180), whose quoted values may hold line ends; the number is that of a record's first line.

    Raises:
        DataError: a quotation mark is not closed, or stands where none may; and as `text_lines`.
    """
    number = 1
    reader = csv.reader(_with_ends(text_lines(path)), delimiter=delimiter, strict=True)
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}, line {number}: {error}; close the quotation mark, or write it twice") from error
        yield number, values
        number = reader.line_num + 1


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file that holds one a line; empty lines are passed over.

    Raises:
        DataError: a line holds no JSON object; and as `text_lines`.
    """
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            found = load_json(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}, column {error.colno}: no JSON ({error.msg}); mend the line") from error
        if not isinstance(found, dict):
            raise DataError(f"{path}, line {number}: {type(found).__name__} where an object belongs; write one object a line")
        yield number, found


def _with_ends(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    return (line + "\n" for _, line in lines)


def _decoded(line: bytes, path: str, number: int) -> str:
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8") from error
    if "\0" in text:
        raise DataError(f"{path}, line {number}: a NUL at character {text.index(chr(0)) + 1}; remove it, or convert the file")
    return text
