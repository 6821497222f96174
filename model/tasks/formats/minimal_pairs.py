"""Minimal pairs: two sentences that differ in one thing, of which one is good. BLiMP's files (Warstadt et al. 2020), or any like them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.tasks.formats.rows import read_rows
from model.tasks.formats.tables import SUFFIXES
from pipeline.core import storage
from pipeline.core.errors import DataError

COLUMNS = {  # by role, as BLiMP calls them
    "good": "sentence_good",
    "bad": "sentence_bad",
    "phenomenon": "UID",
    "id": "pairID",
    "term": "linguistics_term",
    "field": "field",
}
REQUIRED = ("good", "bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimalPair:
    """One of them.

    Attributes:
        phenomenon: BLiMP's UID; the file's name where it says none.
        id: unique within the phenomenon; the line number where the file says none.
        groups: what else it belongs to, by role: `term`, `field`.
        where: file and line, for messages.
    """

    good: str
    bad: str
    phenomenon: str
    id: str
    groups: Mapping[str, str]
    where: str


def read_minimal_pairs(path: str, columns: Mapping[str, str] | None = None, limit: int | None = None) -> list[MinimalPair]:
    """The pairs of a file, or of all files of a directory, in the order of the files' names.

    Args:
        path: a file, or a directory of them (or of a directory `data` in it, as BLiMP's repository has it).
        columns: by role, where they are called otherwise than in BLiMP: good, bad, phenomenon, id, term, field.
        limit: the most pairs of each phenomenon, the first ones.

    Raises:
        DataError: there are no such files, one is malformed, or two pairs of a phenomenon have one id; the message names file and line.
    """
    named = {**COLUMNS, **(columns or {})}
    more = [name for role, name in named.items() if role not in REQUIRED]
    found: list[MinimalPair] = []
    counted: Counter[str] = Counter()
    first: dict[tuple[str, str], str] = {}
    for file in _files(path):
        stem = os.path.splitext(os.path.basename(file))[0]
        for where, row in read_rows(file, [named[role] for role in REQUIRED], more):
            phenomenon, identity = row.get(named["phenomenon"], stem), row.get(named["id"], where.split()[-1])
            if (phenomenon, identity) in first:
                raise DataError(
                    f"{where}: {phenomenon} has a pair {identity!r} already ({first[phenomenon, identity]}); give each its own id"
                )
            first[phenomenon, identity] = where
            counted[phenomenon] += 1
            if limit is not None and counted[phenomenon] > limit:
                continue
            # BLiMP's own files spell one field syntax_semantics and syntax/semantics
            groups = {role: row[named[role]].replace("/", "_") for role in ("term", "field") if named[role] in row}
            pair = MinimalPair(
                good=row[named["good"]],
                bad=row[named["bad"]],
                phenomenon=phenomenon,
                id=identity,
                groups=groups,
                where=where,
            )
            found.append(pair)
    return found


def _files(path: str) -> Sequence[str]:
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; name a file of minimal pairs, or a directory of them")
    if not storage.is_dir(path):
        if not path.lower().endswith(tuple(SUFFIXES)):
            raise DataError(f"{path} ends like no table ({', '.join(SUFFIXES)}); rename it after what it is")
        return [path]
    for directory in (path, storage.join(path, "data")):
        names = sorted(storage.list_files(directory)) if storage.is_dir(directory) else []
        files = [storage.join(directory, name) for name in names if "/" not in name and name.endswith(tuple(SUFFIXES))]
        if files:
            return files
    raise DataError(f"{path} holds no minimal pairs (no {', '.join(SUFFIXES)}); name a directory that does")
