"""GLUE's table format: UTF-8, a header line, tabs between the columns, no quoting, one example a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from model.tasks.labelled_texts import LabelledTexts
from pipeline.core import storage
from pipeline.core.errors import DataError


class TextFiles:
    """A directory with train.tsv, dev.tsv and perhaps test.tsv, whose examples have a label each.

    Args:
        text: the column of the text.
        label: the column of the label, which test.tsv may lack.
        labels: all labels, as they stand in the files.
        pair: the column of the second text, for tasks on pairs.
    """

    source: Literal["data"] = "data"

    def __init__(self, *, text: str, label: str, labels: tuple[str, ...], pair: str | None = None) -> None:
        self.texts = (text,) if pair is None else (text, pair)
        self.label, self.labels = label, labels
        self.files = f"a directory with train.tsv and dev.tsv (columns: {', '.join((*self.texts, label))})"

    def __call__(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        """The examples of `path`/`split`.tsv; the limit holds for the training examples only. Raises: see `Task.read`."""
        name = storage.join(path, f"{split}.tsv")
        if not storage.exists(name):
            raise DataError(f"{name} does not exist; the task reads {self.files}")
        labelled = split != "test" or self.label in read_header(name)
        columns: list[list[str]] = [[] for _ in self.texts]
        labels: list[int] = []
        for number, values in read_table(name, (*self.texts, self.label) if labelled else self.texts):
            for column, text, found in zip(self.texts, values, columns, strict=False):
                if not text.strip():
                    raise DataError(f"{name}, line {number}: the {column} is empty; remove the line")
                found.append(text)
            if labelled:
                if values[-1] not in self.labels:
                    known = ", ".join(self.labels)
                    raise DataError(f"{name}, line {number}: label {values[-1]!r} is not one of {known}; mend the line")
                labels.append(self.labels.index(values[-1]))
        examples = LabelledTexts(
            texts=columns[0],
            text_pairs=columns[1] if len(columns) > 1 else None,
            labels=labels if labelled else None,
            label_names=self.labels,
            where=name,
        )
        return examples.capped(limit_per_class) if split == "train" else examples


def read_table(path: str, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, values of `columns`) for each line after the header.

    A quotation mark is a character like any other (csv's QUOTE_NONE): SST-2 and MRPC hold unpaired ones.

    Raises:
        DataError: the file is missing or empty, a column is not in the header, a line has another number of
            columns than the header or is no UTF-8; the message names file and line.
    """
    with storage.open_input(path) as handle:
        lines = handle.read().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1].strip():  # what follows the last line end
        lines.pop()
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty; it must hold a header line ({', '.join(columns)}) and examples")
    header = _decoded(lines[0], path, 1).split("\t")
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            f"{path}, line 1: no column {missing[0]!r} in the header ({', '.join(header)});"
            f" name its columns {', '.join(columns)}"
        )
    if len(lines) == 1:
        raise DataError(f"{path} holds a header and no examples; add some or name another file")
    places = [header.index(name) for name in columns]
    for number, line in enumerate(lines[1:], start=2):
        values = _decoded(line, path, number).split("\t")
        if len(values) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(values)} columns where the header has {len(header)}; separate columns by one tab"
            )
        yield number, [values[place] for place in places]


def read_header(path: str) -> list[str]:
    """The names of the table's columns."""
    with storage.open_input(path) as handle:
        return _decoded(handle.readline().removeprefix(b"\xef\xbb\xbf").rstrip(b"\n"), path, 1).split("\t")


def _decoded(line: bytes, path: str, number: int) -> str:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8") from error
