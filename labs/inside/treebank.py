"""Sentences with dependencies, from CoNLL-U files (universaldependencies.org/format.html)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.ragged import I64

ROOT = -1  # head of the root
COLUMNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence of n syntactic words.

    Attributes:
        text: the words, with the spaces of the original.
        spans: int64 [n, 2], characters of each word.
        heads: int64 [n], number of each word's head from 0; `ROOT` for the root.
        relations: n labels of the dependencies, such as nsubj or nsubj:pass.
    """

    text: str
    spans: I64
    heads: I64
    relations: tuple[str, ...]


def read_treebank(path: str) -> list[Sentence]:
    """Read all sentences of a CoNLL-U file.

    Multiword tokens (`3-4`) and empty nodes (`5.1`) are no words. The words of a multiword token
    are written without spaces, if that gives its form, as in `do` and `n't`.

    Raises:
        DataError: the file is missing or no CoNLL-U, or a sentence has an impossible head.
    """
    sentences, rows = [], list[list[str]]()
    for number, line in enumerate([*storage.read_text(path).splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if line.strip():
            rows.append(line.split("\t"))
            if len(rows[-1]) != COLUMNS:
                raise DataError(
                    f"{path}, line {number} has {len(rows[-1])} columns instead of {COLUMNS}; give "
                    f"a CoNLL-U file"
                )
        elif rows:
            try:
                sentences.append(_sentence(rows))
            except ValueError as error:
                where = f"{path}, sentence {len(sentences) + 1} (up to line {number - 1})"
                raise DataError(f"{where} {error}; correct the file") from None
            rows = []
    if not sentences:
        raise DataError(f"{path} has no sentences; give a CoNLL-U file")
    return sentences


def _sentence(rows: list[list[str]]) -> Sentence:
    """Build a sentence from the columns of its lines; raises ValueError with a verb phrase."""
    words = [row for row in rows if row[0].isdecimal()]
    if [row[0] for row in words] != [str(number) for number in range(1, len(words) + 1)]:
        raise ValueError("does not number its words from 1")
    heads = [int(row[6]) - 1 if row[6].isdecimal() else len(words) for row in words]
    if not words or max(heads) >= len(words) or any(map(int.__eq__, heads, range(len(words)))):
        raise ValueError("has a word whose head is none of its words")
    follows_space = _spaces(rows, words)
    text, spans = "", []
    for row, spaced in zip(words, follows_space, strict=True):
        text += " " if text and spaced else ""
        spans.append((len(text), len(text) + len(row[1])))
        text += row[1]
    return Sentence(
        text=text,
        spans=np.array(spans, np.int64),
        heads=np.array(heads, np.int64),
        relations=tuple(row[7] for row in words),
    )


def _spaces(rows: list[list[str]], words: list[list[str]]) -> list[bool]:
    """Return whether a space precedes each word."""
    spaced_after = ["SpaceAfter=No" not in row[9].split("|") for row in words]
    for row in rows:
        first, _, last = row[0].partition("-")
        if not last:
            continue
        if not (first + last).isdecimal() or not 1 <= int(first) <= int(last) <= len(words):
            raise ValueError(f"has a multiword token {row[0]!r} that is no range of its words")
        members = range(int(first) - 1, int(last))
        joins = "".join(words[member][1] for member in members) == row[1]
        for member in members[:-1]:
            spaced_after[member] = not joins
        spaced_after[members[-1]] = "SpaceAfter=No" not in row[9].split("|")
    return [True, *spaced_after[:-1]]
