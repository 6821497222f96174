"""Corpus stage: the texts of benchmark and task files, whose traces decontamination looks for.

Formats go by the file's name, with `.gz`, `.bz2`, `.xz` or `.zst` after it: `.tsv` and `.csv` (every cell), `.json` and `.jsonl` (every
string, however deep), `.parquet` and `.arrow` (every string column), and anything else as text: one word a line with
its tags, blank lines between sentences (CoNLL), or else a text a line; `.txt` that opens with a brace is jsonl.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.corpus.readers.byte_source import Damaged
from pipeline.corpus.readers.unpack import open_source

_PACKED = (".gz", ".bz2", ".xz", ".zst")
_NO_TASKS = re.compile(
    r"(?i)^(readme|licen[cs]e|copying|notice)\b|\.(md|rst|html?|pdf|py|sh|yaml|yml|zip|tar|tgz|log|sha256|md5)$"
)
_TAG = re.compile(r"^(O|[BIESLU]-\S+)$")
_LOOKED_AT = 200  # lines, to tell columns from prose


def task_files(path: str) -> list[tuple[str, str]]:
    """(relative name, path) of the task files at `path`: itself, or all below a directory but readmes, licences and the like.

    Raises:
        DataError: there is none.
    """
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; check the path in corpus.decontaminate")
    if not storage.is_dir(path):
        return [(posixpath.basename(path.rstrip("/")), path)]
    base = posixpath.basename(path.rstrip("/"))
    names = [
        name
        for name in storage.list_files(path)
        if not any(part.startswith((".", "_")) for part in name.split("/")) and not _NO_TASKS.search(name.rsplit("/", 1)[-1])
    ]
    if not names:
        raise DataError(f"{path} holds no task file; point corpus.decontaminate to files such as dev.tsv or test.jsonl")
    return [(posixpath.join(base, name), storage.join(path, name)) for name in names]


def task_texts(path: str) -> Iterator[str]:
    """Every text in a task file.

    Raises:
        DataError: it cannot be unpacked, decoded or parsed.
    """
    name = path.lower()
    while name.endswith(_PACKED):
        name = name.rsplit(".", 1)[0]
    if name.endswith((".parquet", ".arrow", ".feather")):
        yield from _columns(path, name)
        return
    text = _read(path)
    if name.endswith((".tsv", ".csv")):
        yield from _cells(text, "\t" if name.endswith(".tsv") else ",")
    elif name.endswith(".json") and not name.endswith(".jsonl"):
        yield from _json(text, path)
    elif name.endswith((".jsonl", ".ndjson", ".jsonlines")) or text.lstrip()[:1] == "{":
        yield from _lines_of_json(text, path)
    elif _is_tagged(text):
        yield from _sentences_of_columns(text)
    else:
        yield from text.splitlines()


def _read(path: str) -> str:
    data = bytearray()
    try:
        source = open_source(path)
        while chunk := source.read(storage.CHUNK_BYTES):
            data += chunk
        source.close()
        return data.decode("utf-16" if bytes(data[:2]) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except (Damaged, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a task file ({error}); give text, tsv, json or jsonl in UTF-8") from error


def _cells(text: str, delimiter: str) -> Iterator[str]:
    if delimiter == "\t":  # GLUE's files hold lone quotation marks
        for line in text.splitlines():
            yield from line.split("\t")
        return
    csv.field_size_limit(1 << 30)
    for row in csv.reader(io.StringIO(text)):
        yield from row


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            waiting += reversed(list(found.values()))
        elif isinstance(found, list):
            if found and all(isinstance(item, str) and " " not in item for item in found):
                yield " ".join(found)  # a list of words is a text
            else:
                waiting += reversed(found)


def _json(text: str, path: str) -> Iterator[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines_of_json(text, path)
        return
    yield from _strings(value)


def _lines_of_json(text: str, path: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield from _strings(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is no JSON ({error}); mend the line, or leave the file out") from error


def _is_tagged(text: str) -> bool:
    """Whether each line is a word with its tags: at least nine lines of ten end in a tag such as B-PER."""
    lines = [
        line.split() for line in text.split("\n", _LOOKED_AT)[:_LOOKED_AT] if line.strip() and not line.startswith("-DOCSTART-")
    ]
    return bool(lines) and sum(len(columns) > 1 and bool(_TAG.match(columns[-1])) for columns in lines) >= 0.9 * len(lines)


def _sentences_of_columns(text: str) -> Iterator[str]:
    words: list[str] = []
    for line in text.splitlines():
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            words.append(columns[0])
        elif words:
            yield " ".join(words)
            words = []
    if words:
        yield " ".join(words)


def _columns(path: str, name: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline.core.arrow import read_arrow

    try:
        if name.endswith(".parquet"):
            with storage.open_input(path) as handle:
                table = pq.read_table(pa.PythonFile(handle))
        else:
            table = read_arrow(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a table ({str(error).splitlines()[0]}); give the file again") from error
    for row in table.to_pylist():
        yield from _strings(row)
