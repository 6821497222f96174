"""Copies of a store's files on a machine's disk: one a machine, whatever the number of its
processes, and none left behind.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cloze.core import storage
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
