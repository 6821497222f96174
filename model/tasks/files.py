"""Files of fine-tuning and evaluation: metrics, and the fingerprints of a task's data. No torch."""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.errors import DataError, did_you_mean
from cloze.core.hub_names import describe_siblings
from cloze.core.humanize import format_metrics
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.shards import shards

METRICS_FILE = "metrics.json"
NOTES = "notes"  # sentences of a summary about what its metrics leave out


def write_json(path: str, content: Mapping[str, Any]) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def headline(summary: Mapping[str, Any]) -> str:
    """Return the metrics of a summary, and its notes."""
    return "; ".join(filter(None, [format_metrics(summary["metrics"]), *summary.get(NOTES, ())]))


# Licence of a task's files: of `cloze fetch`, and in the header of a Hub data set's card.
LICENCES = {
    "fetched.json": r'"licence": "(.+)"',
    "README.md": r"\A---\n(?:(?!---).*\n)*?license:((?:\n *- .+)+|.+)",
}


def data_licence(path: str, options: TaskOptions) -> str:
    """Return the licence that lies beside a task's files, or one folder above; else "unknown"."""
    folder = path.rstrip("/") if storage.is_dir(path) else posixpath.dirname(path)
    places = list(filter(storage.exists, directories(folder, options)))[:1]
    for place in (*places, *map(posixpath.dirname, places)):
        for name, pattern in LICENCES.items():
            # A missing file, or anybody's of that name: neither costs a finished training.
            with suppress(OSError, ValueError, DataError):
                if match := re.search(pattern, storage.read_text(storage.join(place, name))):
                    return " OR ".join(
                        line.strip(" -'\"[]") for line in match[1].split("\n") if line
                    )
    return "unknown"


# Files of a directory that a task reads: fingerprint, existence, size.


def data_fingerprint(path: str, options: TaskOptions, splits: Iterable[str]) -> str:
    """Return the fingerprint of the splits' files, or of all of `path` if no names are known.

    Args:
        path: task directory, its parent, a split's file, or an artifact.

    Raises:
        DataError: `path` does not exist or is empty, or two splits would be the same file.
    """
    names = tuple(splits)
    check_apart(path, options, names)
    key = f"{path}\0{options.folder}\0{names}\0{sorted(options.files.items())}"

    def compute() -> str:
        files = [dict(_files(path, options, split)) for split in names] if is_archive(path) else []
        if not files or not all(files):
            return fingerprints.input_fingerprint(path)
        paths = {name: file for own in files for name, file in own.items()}
        hashes = fingerprints.file_fingerprints(paths.values())
        return fingerprints.combine_hashes((name, hashes[file]) for name, file in paths.items())

    return fingerprints.memoize(key, compute)


def check_apart(path: str, options: TaskOptions, splits: Sequence[str]) -> None:
    """Check that no file is read as two splits, but in folds or by rows of its own each.

    Raises:
        DataError: one file is, under one name or two.
    """
    own = [getattr(options, "splits", {}).get(split) for split in splits]
    rows = [getattr(options, "where", {}) if item is None or item.where is None else item.where
            for item in own]  # fmt: skip
    if len(splits) < 2 or getattr(options, "folds", False) or not storage.exists(path):
        return
    several = all(rows.count(item) == 1 for item in rows)
    if not storage.is_dir(path) and not several:
        named = " and ".join(f"{split}.*" for split in splits)
        folds = ", or cut the file with --set options.folds=10" if hasattr(options, "folds") else ""
        raise DataError(
            f"{path} is one file, and {' and '.join(splits)} are read; name a directory with "
            f"{named}{folds}"
        )
    if several or not is_archive(path):
        return
    seen: dict[object, str] = {}
    for split in splits:
        for _, file in _files(path, options, split):
            # A link, symbolic or hard, is the file.
            identity = os.stat(file)[1:3] if os.path.exists(file) else file
            if seen.setdefault(identity, split) != split:
                raise DataError(
                    f"{file} is both {seen[identity]} and {split}; name another file for one of "
                    f"them, with --set 'options={{files: {{…}}}}', or its rows with options.splits"
                )


def missing_split(path: str, options: TaskOptions, splits: Iterable[str]) -> str:
    """Return a clause about the first missing split; empty if none is.

    Files, artifacts and object stores are not checked.
    """
    if not storage.is_local(path) or (storage.exists(path) and not is_archive(path)):
        return ""
    if not storage.exists(path):
        return f"{path} does not exist"
    candidates = directories(path, options)
    directory = next(item for item in candidates if storage.exists(posixpath.dirname(item)))
    missing = (split for split in splits if not dict(_files(path, options, split)))
    return next((f"{directory} has no {split} split" for split in missing), "")


def split_bytes(path: str | None, options: TaskOptions, split: str) -> int | None:
    """Return the bytes of a split's files; None if they are not local or not known by name."""
    if path is None or not storage.is_local(path) or not storage.exists(path):
        return None
    files = [path] if not is_archive(path) else [file for _, file in _files(path, options, split)]
    with suppress(OSError):
        return sum(os.path.getsize(file) for file in files if os.path.isfile(file)) or None
    return None


def is_archive(path: str) -> bool:
    """Return whether a path is a directory of files, not an artifact."""
    return storage.exists(path) and storage.is_dir(path) and not artifact.is_artifact(path)


def _files(path: str, options: TaskOptions, split: str) -> Iterator[tuple[str, str]]:
    """Iterate over (name, path) of the files that may be read for a split.

    The rules are those of `split_file`: names from the options, else such as `dev.tsv`, or files in
    `dev/`.
    """
    for directory in directories(path, options):
        if not storage.exists(directory):
            continue
        if names := options.files.get(split):
            entries = [name for name in names if storage.exists(storage.join(directory, name))][:1]
        else:
            available = {name.split("/")[0] for name in storage.list_files(directory)}
            entries = sorted(name for name in available if name.split(".")[0] == split)
        for entry in entries:
            entry_path = storage.join(directory, entry)
            if not storage.is_dir(entry_path):
                yield entry, entry_path
                continue
            for name in storage.list_files(entry_path):
                yield f"{entry}/{name}", storage.join(entry_path, name)
        if not entries:
            entries = shards(directory, split)
            yield from ((name, storage.join(directory, name)) for name in entries)
        if entries:
            return


# Location of a split: a named file, or one in a directory.


def directories(path: str, options: TaskOptions) -> list[str]:
    """Return the directories of a task's files, in order of preference.

    A folder such as `glue/CoLA` is below `path`, or its last part is, or it is `path`.
    """
    parts = options.folder.split("/") if options.folder else []
    return [*(storage.join(path, *parts[i:]) for i in range(len(parts))), path]


def split_file(
    path: str, split: str, options: TaskOptions, suffixes: Sequence[str], expected_files: str
) -> str:
    """Return the file of a split.

    Args:
        path: the file itself, the task directory, or its parent.
        suffixes: suffixes of default names, such as `.tsv`.
        expected_files: description of the expected files, for the message.

    Raises:
        DataError: the file does not exist.
    """
    if storage.exists(path) and not storage.is_dir(path):
        return path
    names = options.files.get(split) or tuple(f"{split}{suffix}" for suffix in suffixes)
    for directory in directories(path, options):
        for file in (storage.join(directory, name) for name in names):
            if storage.exists(file):
                return file
    near = describe_siblings(storage.join(path, split))
    if "train" in options.files and split not in options.files:
        near += f", and {split} is no split of the task ({did_you_mean(split, options.files)})"
    raise DataError(
        f"{storage.join(path, names[0])} does not exist{near}; the task reads {expected_files}"
    )


def split_files(
    path: str, split: str, options: TaskOptions, suffixes: Sequence[str], expected_files: str
) -> list[str]:
    """Return the files of a split, as `split_file` does, or in the layouts of `shards`.

    A store is asked for the latter first: it answers by one listing.

    Raises:
        DataError: there are none, or some are missing.
    """

    def in_shards() -> list[str]:
        for directory in directories(path, options):
            files = shards(directory, split)
            if files and files[0].endswith(tuple(suffixes)):
                return [storage.join(directory, name) for name in files]
        return []

    if not storage.is_local(path) and (files := in_shards()):
        return files
    try:
        return [split_file(path, split, options, suffixes, expected_files)]
    except DataError:
        if storage.is_local(path) and (files := in_shards()):
            return files
        raise


# Cross-validation of a file without splits.


def fold_indices(texts: Sequence[str], split: str, folds: int, fold: int) -> list[int]:
    """Return the numbers of a split's examples: dev is part `fold`, train all other parts.

    Distinct texts are ordered by a hash and cut into `folds` equal parts (to within one text).
    Examples with equal texts stay together, independent of file order and machine.

    Args:
        texts: text of each example that must not occur in two parts.
        split: train or dev.
    """
    from cloze.core.random_keys import document_key  # imports numpy, which configs do without

    ranked = sorted(set(texts), key=lambda text: (document_key(text), text))
    fold_of = {text: rank * folds // len(ranked) for rank, text in enumerate(ranked)}
    return [
        number for number, text in enumerate(texts) if (fold_of[text] == fold) == (split == "dev")
    ]


# Documents of a corpus artifact.


def corpus_shards(path: str) -> list[str]:
    """Return the names of the shards of a corpus, or of an index's passages, sorted.

    Raises:
        DataError: `path` has no corpus.
    """
    files = storage.list_files(path)
    names = [
        name for kind in ("corpus", "passages") for name in fnmatch.filter(files, f"{kind}-*.arrow")
    ]
    if not names:
        raise DataError(
            f"{path} contains no corpus (no file corpus-*.arrow); name the artifact that `cloze "
            f"corpus` made"
        )
    return sorted(names)


def documents(
    path: str, columns: Sequence[str], source: str | None = None, split: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the values of `columns` of every document, one record batch in memory at a time.

    Args:
        source, split: only documents of this source and this split; None: all.

    Raises:
        DataError: `path` has no corpus, or a shard is no Arrow file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in corpus_shards(path):
        with storage.open_input(storage.join(path, name)) as handle:
            try:
                reader = pa.ipc.open_file(handle)
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{storage.join(path, name)} is no Arrow file ({error}); run `cloze corpus` "
                    f"again"
                ) from error
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                for column, value in (("source", source), ("split", split)):
                    if value is not None:
                        batch = batch.filter(pc.equal(batch.column(column), value))
                values = (batch.column(column).to_pylist() for column in columns)
                yield from zip(*values, strict=True)


def write_rows(path: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows with equal columns as TSV with a header, without quoting."""
    lines = ["\t".join(rows[0])] if rows else []
    lines += ["\t".join(map(_first_line, row.values())) for row in rows]
    storage.write_bytes(path, ("\n".join(lines) + "\n").encode("utf-8"))


def _first_line(text: str) -> str:
    """Replace tabs and line breaks by spaces."""
    return " ".join(text.replace("\t", " ").splitlines())
