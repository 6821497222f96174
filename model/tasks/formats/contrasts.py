"""Contrasts: sentences of which a language model should find the first one likeliest.

Formats are told by their columns: BLiMP's minimal pairs and its supplement (Warstadt et al. 2020),
EWoK (Ivanova et al. 2024), entity tracking (Kim and Schuster 2023), COMPS (Misra et al. 2023). What
of a sentence is compared is as in BabyLM's evaluation (babylm/evaluation-pipeline-2025).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.tasks.formats.lines import load_json
from cloze.model.tasks.formats.table_files import SUFFIXES, open_table
from cloze.model.tasks.formats.tables import read_texts_by_column
from cloze.model.tasks.options import TableOptions

COLUMNS = {  # BLiMP's columns by role
    "good": "sentence_good",
    "bad": "sentence_bad",
    "phenomenon": "UID",
    "id": "pairID",
    "term": "linguistics_term",
    "field": "field",
}
GROUPS = ("term", "field")


class Contrast(NamedTuple):
    """Sentences, the right one first.

    Attributes:
        sentences: two or more.
        starts: first character of each sentence that counts; those before are context.
        file: name of the file, without suffix.
        phenomenon: BLiMP's UID or EWoK's domain; default: the file's name.
        id: id, unique within the phenomenon; default: the line number.
        groups: other groups by role: `term`, `field`.
        where: file and line, for messages.
    """

    sentences: tuple[str, ...]
    starts: tuple[int, ...]
    file: str
    phenomenon: str
    id: str
    groups: Mapping[str, str]
    where: str


Row = Mapping[str, str]
Sentences = list[tuple[str, int]]  # sentence, first character that counts


def _ewok(row: Row) -> Sentences:
    """The first context makes the first target likelier; the space before it counts, too."""
    context = row["Context1"]
    return [(f"{context} {row[target]}", len(context)) for target in ("Target1", "Target2")]


def _entity_tracking(row: Row) -> Sentences:
    """The contents of a box after `numops` operations; the first option is right."""
    context, options = row["input_prefix"], load_json(row["options"])
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError("options")
    return [(f"{context}{option}", len(context)) for option in options]


def _comps(row: Row) -> Sentences:
    """The property is likelier of the first concept."""
    contexts = (row["prefix_acceptable"], row["prefix_unacceptable"])
    return [(f"{context} {row['property_phrase']}", len(context) + 1) for context in contexts]


# Formats by their required columns.
FORMATS: dict[tuple[str, ...], Callable[[Row], Sentences]] = {
    ("Context1", "Target1", "Target2", "Domain"): _ewok,
    ("input_prefix", "options", "numops"): _entity_tracking,
    ("prefix_acceptable", "prefix_unacceptable", "property_phrase"): _comps,
}


def read_contrasts(
    path: str, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> list[Contrast]:
    """Read the contrasts of a file, or of a directory's files in order of their names.

    Args:
        path: file, directory of files, or directory with a subdirectory `data`, as in BLiMP's
            repository.
        columns: names that differ from BLiMP's, by role: good, bad, phenomenon, id, term, field.
        limit: maximum contrasts per phenomenon and file, from the first.

    Raises:
        DataError: no files, a malformed file, or a duplicate id in a phenomenon; the message names
            file and line.
    """
    contrasts: list[Contrast] = []
    counts: Counter[tuple[str, str]] = Counter()
    locations: dict[tuple[str, str], str] = {}
    for file in _files(path):
        for contrast in _read(file, {**COLUMNS, **(columns or {})}):
            key = contrast.phenomenon, contrast.id
            if key in locations:
                raise DataError(
                    f"{contrast.where}: {contrast.phenomenon} has a pair {contrast.id!r} already "
                    f"({locations[key]}); give each its own id"
                )
            locations[key] = contrast.where
            counts[contrast.file, contrast.phenomenon] += 1
            if limit is None or counts[contrast.file, contrast.phenomenon] <= limit:
                contrasts.append(contrast)
    return contrasts


def _read(file: str, names: Mapping[str, str]) -> Iterator[Contrast]:
    stem = os.path.splitext(os.path.basename(file))[0]
    table = open_table(file, TableOptions())
    good, bad = names["good"], names["bad"]
    required, read = next(
        (item for item in FORMATS.items() if {*item[0]} <= {*table.columns}),
        ((good, bad), lambda row: [(row[good], 0), (row[bad], 0)]),
    )
    optional = [name for role, name in names.items() if role not in ("good", "bad")]
    for location, row in read_texts_by_column(table, required, optional, lists=("options",)):
        try:
            sentences = read(row)
        except ValueError as error:
            raise DataError(
                f"{location}: options ({row['options'][:50]}) is no list of texts in JSON; correct "
                f"the line"
            ) from error
        if len(sentences) < 2:
            raise DataError(f"{location}: options has fewer than two texts; remove the line")
        operations = row.get("numops")
        # BLiMP's own files spell one field both syntax_semantics and syntax/semantics.
        groups = {role: row[names[role]].replace("/", "_") for role in GROUPS if names[role] in row}
        yield Contrast(
            sentences=tuple(sentence for sentence, _ in sentences),
            starts=tuple(start for _, start in sentences),
            file=stem,
            phenomenon=f"{stem}_{operations}_ops"
            if operations
            else row.get("Domain") or row.get(names["phenomenon"], stem),
            id=row.get(names["id"], location.split()[-1]),
            groups=groups,
            where=location,
        )


def _files(path: str) -> Sequence[str]:
    if not storage.exists(path):
        raise DataError(
            f"{path} does not exist; name a file of minimal pairs, or a directory of them"
        )
    if not storage.is_dir(path):
        if not path.lower().endswith(tuple(SUFFIXES)):
            raise DataError(f"{path} has no suffix of a table ({', '.join(SUFFIXES)}); rename it")
        return [path]
    for directory in (path, storage.join(path, "data")):
        names = sorted(storage.list_files(directory)) if storage.is_dir(directory) else []
        files = [
            storage.join(directory, name)
            for name in names
            if "/" not in name and name.endswith(tuple(SUFFIXES))
        ]
        if files:
            return files
    raise DataError(
        f"{path} contains no minimal pairs (no {', '.join(SUFFIXES)}); name a directory that does"
    )
