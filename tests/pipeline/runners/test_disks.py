"""A full disk and an output that cannot be written to: a sentence and an exit code; the next run
goes on.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloze.core.artifacts import artifact
from tests.flows.test_cli import cloze

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[Path]:
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@needs_root
@pytest.mark.soak
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk(workers: str, library: Path, samples: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=2m") as disk:
        command = [
            "corpus",
            "--source",
            f"books={library}",
            "--out",
            str(disk / "corpus"),
            "--workers",
            workers,
            "--json",
        ]
        full = cloze(*command, cwd=samples)
        assert full.returncode == 1
        assert re.search(
            rf"{disk}/corpus/\S+: No space left on device; free some space", full.stderr
        ), full.stderr
        assert full.stderr.strip().count("\n") <= 2
        assert "Traceback" not in full.stderr
        assert not artifact.is_artifact(str(disk / "corpus"))
        kept = sorted((disk / "corpus" / "_scratch" / "read").glob("*.json"))
        times = {path.name: path.stat().st_mtime_ns for path in kept}
        assert times  # some books fit
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        done = cloze(*command, cwd=samples)
        assert done.returncode == 0, done.stderr
        assert artifact.verify(str(disk / "corpus")).ok
        assert done.json["documents"]


@needs_root
def test_a_read_only_output(samples: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=8m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        done = cloze(
            "corpus",
            "--source",
            f"books={samples / 'books'}",
            "--out",
            str(disk / "corpus"),
            cwd=samples,
        )
    assert done.returncode == 1
    assert (
        f"{disk / 'corpus'}: Read-only file system; mount it writable again, or choose another path"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
