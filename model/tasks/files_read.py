"""Which files of a directory a task reads: what names its data in fingerprints, and whether they are there. No torch.

A directory such as GLUE's holds many tasks. A fine-tuning follows from its own task's files alone: when another task's change, or a test
file comes, it is not run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from model.tasks.formats.splits import directories
from model.tasks.options import TaskOptions
from pipeline.core import artifact, fingerprints, storage


def data_fingerprint(path: str, options: TaskOptions, splits: Iterable[str]) -> str:
    """What names the content of the files of these splits; of all that is at `path` where they do not go by their names.

    Args:
        path: the task's directory, the one above it, a split's file, or an artifact.

    Raises:
        DataError: nothing is at `path`, or the directory is empty.
    """
    wanted = tuple(splits)
    what = f"{path}\0{options.folder}\0{wanted}\0{sorted(options.files.items())}"
    return fingerprints.once(what, lambda: _fingerprint(path, options, wanted))


def _fingerprint(path: str, options: TaskOptions, splits: Iterable[str]) -> str:
    if not _is_archive(path):
        return fingerprints.input_fingerprint(path)
    named: dict[str, str] = {}
    for split in splits:
        found = dict(_files(path, options, split))
        if not found:
            return fingerprints.input_fingerprint(path)
        named |= found
    hashes = fingerprints.file_fingerprints(named.values())
    return fingerprints.combine((name, hashes[place]) for name, place in named.items())


def absent(path: str, options: TaskOptions, splits: Iterable[str]) -> str:
    """Which split's file is not there, as a clause; empty where all are, or where `path` is a file, an artifact or a place in a store."""
    if not storage.is_local(path) or (storage.exists(path) and not _is_archive(path)):
        return ""
    if not storage.exists(path):
        return f"{path} does not exist"
    where = storage.join(path, options.folder) if options.folder else path
    return next((f"{where} holds no {split} split" for split in splits if not dict(_files(path, options, split))), "")


def split_bytes(path: str | None, options: TaskOptions, split: str) -> int | None:
    """The size of the files that are read for a split; None: they are not here, or not to be told by their names."""
    if path is None or not storage.is_local(path) or not storage.exists(path):
        return None
    places = [path] if not _is_archive(path) else [place for _, place in _files(path, options, split)]
    with suppress(OSError):
        return sum(os.path.getsize(place) for place in places if os.path.isfile(place)) or None
    return None


def _is_archive(path: str) -> bool:
    return storage.exists(path) and storage.is_dir(path) and not artifact.is_artifact(path)


def _files(path: str, options: TaskOptions, split: str) -> Iterator[tuple[str, str]]:
    """The files that may be read for a split: their names in the task's directory, and their places.

    They lie where `model.tasks.formats.splits.split_file` looks: under the names that the options give, else as `dev.tsv`, or below `dev/`.
    """
    for directory in directories(path, options):
        if not storage.exists(directory):
            continue
        named = options.files.get(split)
        if named:
            found = next((name for name in named if storage.exists(storage.join(directory, name))), None)
            tops = [] if found is None else [found]
        else:
            inside = {name.split("/")[0] for name in storage.list_files(directory)}
            tops = sorted(name for name in inside if name.split(".")[0] == split)
        for top in tops:
            place = storage.join(directory, top)
            below = storage.list_files(place) if storage.is_dir(place) else None
            if below is None:
                yield top, place
            else:
                yield from ((f"{top}/{name}", storage.join(place, name)) for name in below)
        if tops:
            return
