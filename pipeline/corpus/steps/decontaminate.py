"""Decontamination: drop text that also occurs in evaluation tasks.

The format of a task file follows from its name, without `.gz`, `.bz2`, `.xz` or `.zst`: `.tsv` and
`.csv` (every cell), `.json` and `.jsonl` (every string at any depth), `.parquet` and `.arrow`
(every string column). Other files are text: CoNLL (a word with its tags per line, blank lines
between sentences), or one text per line. Other files that open with a brace are read as jsonl.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.config import InputPath
from cloze.core.errors import DataError, first_line
from cloze.core.words import UNSPACED_LETTER, width
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers.encodings import SAMPLE_BYTES, detect_unicode
from cloze.pipeline.corpus.readers.streams import CorruptStreamError, open_source
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    TaskMatch,
    drop_if,
    remove_paragraphs,
)
from cloze.pipeline.corpus.steps.filters.documents import MinimumOptions

if TYPE_CHECKING:
    from cloze.pipeline.corpus.steps.task_index import TaskIndex

_PACKED = (".gz", ".bz2", ".xz", ".zst")
_NO_TASKS = re.compile(
    r"(?i)^(readme|licen[cs]e|copying|notice)\b|\.(md|rst|html?|pdf|py|sh|yaml|yml|zip|tar|tgz|log|"
    r"sha256|md5)$"
)
_TAG = re.compile(r"^(O|[BIESLU]-\S+)$")
_SAMPLE_LINES = 200  # lines, to detect CoNLL


def task_files(path: str) -> list[tuple[str, str]]:
    """Return (relative name, path) of the task files: `path` itself, or the files in a directory.

    Readmes, licences, scripts and hidden files are left out.

    Raises:
        DataError: no task file.
    """
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; check the path in corpus.decontaminate")
    if not storage.is_dir(path):
        return [(posixpath.basename(path.rstrip("/")), path)]
    base = posixpath.basename(path.rstrip("/"))
    names = [
        name
        for name in storage.list_files(path)
        if not any(part.startswith((".", "_")) for part in name.split("/"))
        and not _NO_TASKS.search(name.rsplit("/", 1)[-1])
    ]
    if not names:
        raise DataError(
            f"{path} contains no task file; point corpus.decontaminate to files such as dev.tsv or "
            f"test.jsonl"
        )
    return [(posixpath.join(base, name), storage.join(path, name)) for name in names]


def task_texts(path: str) -> Iterator[str]:
    """Yield every text in a task file.

    Raises:
        DataError: the file cannot be decompressed, decoded or parsed.
    """
    name = path.lower()
    while name.endswith(_PACKED):
        name = name.rsplit(".", 1)[0]
    if name.endswith((".parquet", ".arrow", ".feather")):
        yield from _columns(path, name)
        return
    text = _read(path)
    if name.endswith((".tsv", ".csv")):
        yield from _cells(text, "\t" if name.endswith(".tsv") else ",", path)
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
        encoding, mark = detect_unicode(bytes(data[:SAMPLE_BYTES]))
        return data[len(mark) :].decode(encoding or "utf-8")
    except (CorruptStreamError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as a task file ({error}); give text, tsv, json or jsonl in "
            f"UTF-8"
        ) from error


def _cells(text: str, delimiter: str, path: str) -> Iterator[str]:
    if delimiter == "\t":  # GLUE's files contain unpaired quotation marks
        for line in text.splitlines():
            yield from line.split("\t")
        return
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(text, newline=""))  # a lone carriage return also ends a row
    try:
        for row in reader:
            yield from row
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num} is not valid CSV ({error}). Correct the line, or "
            f"remove the file"
        ) from error


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            pending += reversed(list(node.values()))
        elif isinstance(node, list):
            if node and all(isinstance(item, str) and " " not in item for item in node):
                yield " ".join(node)  # a list of words is one text
                yield from filter(UNSPACED_LETTER.search, node)  # or of Chinese sentences
            else:
                pending += reversed(node)


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
                raise DataError(
                    f"{path}, line {number} is not valid JSON ({error}). Correct the line, or "
                    f"remove the file"
                ) from error


def _is_tagged(text: str) -> bool:
    """Return True if at least 90 % of the lines are columns that end in a tag such as B-PER."""
    rows = [
        line.split()
        for line in text.split("\n", _SAMPLE_LINES)[:_SAMPLE_LINES]
        if line.strip() and not line.startswith("-DOCSTART-")
    ]
    return bool(rows) and sum(
        len(columns) > 1 and bool(_TAG.match(columns[-1])) for columns in rows
    ) >= 0.9 * len(rows)


def _sentences_of_columns(text: str) -> Iterator[str]:
    words: list[str] = []
    for line in [*text.splitlines(), ""]:
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            words.append(columns[0])
        elif words:
            yield " ".join(words)
            words = []


def _columns(path: str, name: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cloze.core.arrow import read_arrow

    try:
        if name.endswith(".parquet"):
            with storage.open_input(path) as handle:
                table = pq.read_table(pa.PythonFile(handle))
        else:
            table = read_arrow(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as a table ({first_line(error)}); give the file again"
        ) from error
    for row in table.to_pylist():
        yield from _strings(row)


REASON = "contaminated"


class DecontaminateOptions(MinimumOptions):
    """Options of decontamination."""

    decontaminate: tuple[InputPath, ...] = ()
    """Evaluation files or directories whose text must not appear in documents. Repeatable."""

    decontaminate_words: int = Field(default=13, ge=1, le=100)
    """Length of a shared word sequence that counts as contamination (GPT-3: 13)."""

    decontaminate_minimum_words: int = Field(default=8, ge=1, le=100)
    """Shorter task texts count as a whole if they have at least this many words (GPT-3: 8)."""

    decontaminate_unit: Literal["document", "paragraph"] = "document"
    """Unit to drop: the document, or the paragraph."""

    @field_validator("decontaminate", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def task_files(self) -> list[tuple[str, str, str]]:
        """Return (name, path, sha256) of the task files by name, without repeated files."""
        files = {file for path in self.decontaminate for file in task_files(path)}
        hashes = fingerprints.file_fingerprints(path for _, path in files)
        return list(
            {
                (name, hashes[path]): (name, path, hashes[path]) for name, path in sorted(files)
            }.values()
        )


def decontaminate(
    document: Document,
    index: TaskIndex,
    unit: Literal["document", "paragraph"],
    minimum_characters: int = 0,
) -> CleaningResult:
    """Drop a document, or the paragraphs of it, that contain text of a task.

    Args:
        index: n-grams of the tasks.
        minimum_characters: drop the document if the remaining paragraphs have less text.
    """
    matches: list[TaskMatch] = []

    def reason_of(text: str) -> str | None:
        match = index.find(text)
        matches.extend([TaskMatch(*match)] if match else ())
        return REASON if match else None

    if unit == "document":
        result = drop_if(lambda document: reason_of(document.text))(document)
    else:
        result = remove_paragraphs(document, reason_of)
        rest = result.document.paragraphs if result.document else ()
        if result.removed and sum(map(width, rest)) < max(1, minimum_characters):
            result = CleaningResult(None, REASON)
    return replace(result, matches=tuple(matches))


def _prepare(options: DecontaminateOptions, directory: str) -> dict[str, str] | None:
    """Write the n-grams of the task files to the directory, for the workers."""
    from cloze.pipeline.corpus.steps.task_index import TaskIndex

    if not options.decontaminate:
        return None
    files = options.task_files()
    texts = ((name, text) for name, path, _ in files for text in task_texts(path))
    index = TaskIndex.build(texts, options.decontaminate_words, options.decontaminate_minimum_words)
    if not len(index):
        raise DataError(
            f"corpus.decontaminate ({', '.join(options.decontaminate)}) contains no text of "
            f"{options.decontaminate_minimum_words} words or"
            " more; name other files, or lower corpus.decontaminate_minimum_words"
        )
    path = storage.join(directory, "tasks.arrow")
    index.save(path)
    sha256 = fingerprints.combine_hashes((name, sha256) for name, _, sha256 in files)
    return {"path": path, "sha256": sha256}


def _build(options: DecontaminateOptions, prepared: dict[str, str] | None) -> StepFunction | None:
    if prepared is None:
        return None
    from cloze.pipeline.corpus.steps.task_index import load_index

    index = load_index(prepared["path"], prepared["sha256"])
    return partial(
        decontaminate,
        index=index,
        unit=options.decontaminate_unit,
        minimum_characters=options.minimum_characters,
    )


STEP = CleaningStep(
    options=DecontaminateOptions,
    build=_build,
    prepare=_prepare,
    settings={"contaminated": "decontaminate"},
    reasons={"contaminated": "contains text of a task"},
)
