"""Where a split of a task lies: a file that is named, or one in a directory, under the names that it may have."""

from __future__ import annotations

from collections.abc import Sequence

from model.tasks.options import TaskOptions
from pipeline.core import storage
from pipeline.core.errors import DataError


def directories(path: str, options: TaskOptions) -> list[str]:
    """Where a task's files may lie: its folder below `path`, else `path` itself."""
    return [storage.join(path, options.folder), path] if options.folder else [path]


def split_file(path: str, split: str, options: TaskOptions, suffixes: Sequence[str], told: str) -> str:
    """The file of a split.

    Args:
        path: the file itself, or the task's directory, or the one above it.
        suffixes: of the names that a split has where the options do not name it, such as `.tsv`.
        told: what the task reads, for the message.

    Raises:
        DataError: it is not there.
    """
    if storage.exists(path) and not storage.is_dir(path):
        return path
    names = options.files.get(split) or tuple(f"{split}{suffix}" for suffix in suffixes)
    for directory in directories(path, options):
        for name in names:
            if storage.exists(storage.join(directory, name)):
                return storage.join(directory, name)
    raise DataError(f"{storage.join(path, names[0])} does not exist; the task reads {told}")
