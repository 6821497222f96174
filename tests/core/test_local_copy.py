"""Copies of a store's files on a machine's disk: one a machine, whatever the number of its
processes, and none left behind.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from cloze.core import arrow, storage
from tests import warm
from tests.object_store import Store

READ = """
import os, sys
from cloze.core import storage
from cloze.core.arrow import local_copy

opened, download = [], storage.download
storage.download = lambda path, target: (opened.append(path), download(path, target))[1]
copies = [local_copy(path, "stamp") for path in sys.argv[1:]]
assert [open(copy, "rb").read() for copy in copies] == [b"x" * (1 << 20)] * len(copies)
print(len(opened), flush=True)
sys.stdin.read()
"""


def test_the_processes_of_a_machine_share_their_copies(store: Store, tmp_path: Path) -> None:
    paths = [store.path("parts", f"{number}.arrow") for number in range(4)]
    for path in paths:
        storage.write_bytes(path, b"x" * (1 << 20))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    readers = [
        subprocess.Popen(
            [warm.python(), "-c", READ, *paths],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        fetched = [int(reader.stdout.readline()) for reader in readers if reader.stdout is not None]
        assert sum(fetched) == len(paths)
        warm.kill(readers[0])
        readers[1].communicate(timeout=30)
        assert len([path for path in tmp_path.rglob("*.arrow") if path.stat().st_size]) == len(
            paths
        )  # the third reads them
        readers[2].communicate(timeout=30)
    finally:
        for reader in readers:
            warm.kill(reader)
            reader.communicate(timeout=30)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_what_killed_processes_left_is_removed_by_the_next(store: Store, tmp_path: Path) -> None:
    first, second = store.path("parts", "a.arrow"), store.path("parts", "b.arrow")
    for path in (first, second):
        storage.write_bytes(path, b"x" * (1 << 20))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    reader = subprocess.Popen(
        [warm.python(), "-c", READ, first],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    warm.kill(reader)
    reader.communicate()
    subprocess.run(
        [warm.python(), "-c", READ.replace('"stamp"', '"other"'), second],
        env=environment,
        input="",
        text=True,
        check=True,
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


@pytest.mark.parametrize("left", ["no users", "nothing", "copies"])
def test_a_directory_that_nobody_finished_stops_no_later_process(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be killed at any line between making its directory and locking it."""
    base = tmp_path / f"cloze-copies-{os.getuid()}"
    (base / "0123456789abcdef").mkdir(parents=True)
    if left == "nothing":
        (base / "0123456789abcdef").rmdir()
    if left == "copies":
        (base / "0123456789abcdef" / "_users").touch()
        (base / "0123456789abcdef" / "a.arrow").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(arrow, "_IN_USE", [])
    monkeypatch.setattr(atexit, "register", lambda *given: None)
    own = Path(arrow._copies.__wrapped__("a stamp"))
    try:
        assert own.parent == base
        assert {path.name for path in base.iterdir()} == {own.name} | (
            {"0123456789abcdef"} if left == "no users" else set()
        )
    finally:
        for stream in arrow._IN_USE:
            stream.close()
