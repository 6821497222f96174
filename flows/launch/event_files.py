"""Event files: messages between hosts through a shared directory, with one writer and one reader.

On a disk (NFS, Lustre, …) an event file grows by whole lines. An object store cannot append, so
each batch of events is a numbered object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cloze.core import storage
from cloze.core.accounts import open_private, open_unlinked
from cloze.core.secrets import holds_secret


class EventWriter:
    """Writer of an event file."""

    def __init__(self, path: str) -> None:
        """Open the file. Args: path: path without the ending .jsonl."""
        self.path = path
        self._count = 0
        file, flags = f"{storage.filesystem(path)[1]}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = open_unlinked(file, flags) if storage.is_local(path) else None

    def send(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Append events in order.

        Raises OSError: the disk is full, or the directory is gone.
        """
        if not events:
            return
        content = "".join(f"{json.dumps(event)}\n" for event in events).encode()
        if self._file is None:
            storage.write_bytes(f"{self.path}/{self._count:08d}.jsonl", content)
            self._count += 1
            return
        while content:
            content = content[os.write(self._file, content) :]


class EventReader:
    """Reader of an event file that may not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._position = 0  # bytes or objects read so far
        self._pending = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the events since the last call; an incomplete last line is left for the next."""
        content = self._pending + (
            self._from_file() if storage.is_local(self.path) else self._from_store()
        )
        *lines, self._pending = content.split(b"\n")
        return [json.loads(line) for line in lines]

    def _from_file(self) -> bytes:
        _refresh_directory(storage.filesystem(self.path)[1])
        try:
            # opened at each call: NFS checks for new data when a file is opened
            with open(f"{storage.filesystem(self.path)[1]}.jsonl", "rb") as stream:
                stream.seek(self._position)
                content = stream.read()
        except FileNotFoundError:
            return b""
        self._position += len(content)
        return content

    def _from_store(self) -> bytes:
        content = b""
        with suppress(FileNotFoundError):
            while True:
                content += storage.read_at_once(f"{self.path}/{self._position:08d}.jsonl")
                self._position += 1
        return content


def write_json(path: str, content: Mapping[str, Any]) -> None:
    opener = open_private if holds_secret(content) else open_unlinked
    storage.write_bytes(path, json.dumps(content).encode(), opener=opener)


def read_json(path: str) -> dict[str, Any] | None:
    """Return the content written by `write_json`; None if the file does not exist."""
    if storage.is_local(path):
        _refresh_directory(storage.filesystem(path)[1])
    try:
        content: dict[str, Any] = json.loads(storage.read_at_once(path))
    except FileNotFoundError:
        return None
    return content


def _refresh_directory(file: str) -> None:
    """Refresh the directory: NFS caches for 30 seconds that a file does not exist."""
    with suppress(OSError):
        os.close(os.open(os.path.dirname(file), os.O_RDONLY))


def peek(path: str) -> str:
    """Return the content of a small file that may be missing or incomplete."""
    with suppress(OSError):
        return storage.read_at_once(path).decode()
    return ""
