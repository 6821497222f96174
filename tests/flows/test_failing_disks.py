"""A place that can no longer be written halfway through a run: the run goes on without it, or ends
in one sentence that names it and the remedy, and its status says the same.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloze.core import storage
from cloze.core.artifacts import lock
from cloze.core.errors import describe_os_error
from cloze.flows import cli
from cloze.flows.prefect import sweep
from cloze.flows.run import cancellation, status_file, status_writer
from cloze.flows.tracking import spool_state
from cloze.flows.tracking.spool import Spool
from cloze.pipeline.runners import exchange
from tests.faults.conftest import small_disk as small_disk
from tests.faults.disks import Disk, fill
from tests.object_store import Store, no_fault

NODE = status_writer.RunStatusFile.node
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE, errno.EDQUOT)


def failing(code: int, path: str = "") -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code), *filter(None, [path]))

    return fail


class Failing:
    """A stream on a disk that takes nothing more."""

    def __init__(self, stream: Any, code: int) -> None:
        self._stream, self.write = stream, failing(code)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@pytest.fixture
def halfway(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """Let something happen when a stage begins."""

    def arrange(stage: str, act: Callable[[], None]) -> None:
        began = status_writer.RunStatusFile.node

        def node(record: status_writer.RunStatusFile, name: str, state: str, **values: Any) -> None:
            began(record, name, state, **values)
            if (name, state) == (stage, status_file.RUNNING):
                act()

        monkeypatch.setattr(status_writer.RunStatusFile, "node", node)

    return arrange


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("stage", ["letters", "count"])
def test_records_that_cannot_be_written_stop_no_run(
    toy_config: str,
    code: int,
    stage: str,
    halfway: Callable[[str, Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spools: list[Spool] = []
    made = Spool.__init__

    def make(spool: Spool, *arguments: Any) -> None:
        made(spool, *arguments)
        spools.append(spool)

    def act() -> None:
        monkeypatch.setattr(spool_state, "write", failing(code, "cursors.lock"))
        spools[0]._stream = Failing(spools[0]._stream, code)  # type: ignore[assignment]

    monkeypatch.setattr(Spool, "__init__", make)
    halfway(stage, act)
    assert cli.main(["run", toy_config, "--no-prefect", "--json"]) == 0
    told = capsys.readouterr()
    assert {row["stage"] for row in json.loads(told.out)["stages"]} == {"letters", "count"}
    warning = " ".join(told.err.split())
    assert "some records of this run may never reach MLflow" in warning
    assert f"cursors.lock: {os.strerror(code)}" in warning or str(spools[0].path) in warning


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.__getitem__)
def test_the_cause_of_a_failed_stage_is_said_and_not_its_records(
    toy_config: str,
    code: int,
    halfway: Callable[[str, Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Both lie on the disk that fails."""
    written = storage.write_bytes

    def write(path: str, data: bytes, **options: Any) -> None:
        if path.endswith("count.txt"):
            failing(code, path)()
        written(path, data, **options)

    def act() -> None:
        monkeypatch.setattr(spool_state, "write", failing(code, "cursors.lock"))
        monkeypatch.setattr(storage, "write_bytes", write)

    halfway("count", act)
    assert cli.main(["run", toy_config, "--no-prefect"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("cloze: ")
    assert f"count.txt: {os.strerror(code)}; " in last
    record = status_file.read(tmp_path / "runs", "toy")
    assert (record["state"], record["nodes"]["letters"]["state"]) == ("failed", "finished")
    assert f"count.txt: {os.strerror(code)}; " in record["error"]
    monkeypatch.undo()


def test_a_look_at_all_runs_writes_nothing(
    tmp_path: Path, toy_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dashboard and sweep look each few seconds; only a look at one crashed run tries its disk."""
    runs, tried = tmp_path / "runs", []
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(runs))
    assert cli.main(["run", toy_config, "--no-prefect", "--until", "letters"]) == 0
    record = status_file.records_in(runs / "toy")[-1]
    content = json.loads(record.read_bytes()) | {"state": "running", "ended": None, "pid": 1 << 22}
    record.write_text(json.dumps(content))
    monkeypatch.setattr(status_file, "_why_unwritten", lambda path: tried.append(path) or "; so")
    assert cli.main(["status"]) == 0
    assert status_file.all_records(runs)["toy"]["state"] == "crashed"
    assert cancellation.mark_crashed(runs, write=False) == ["toy"]
    assert sweep.sweep(runs, mark=False)
    assert not tried
    assert status_file.read(runs, "toy")["error"].endswith("is gone; so")
    cancellation.mark_crashed(runs)
    assert status_file.read(runs, "toy")["error"].endswith("is gone")  # no longer known
    assert tried == [record]


@pytest.mark.parametrize("is_full", [False, True], ids=["read-only", "full"])
def test_the_status_of_a_run_whose_end_could_not_be_written_names_the_place(
    toy_config: str,
    small_disk: Disk,
    is_full: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a new start says the same; afterwards it goes on."""
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(small_disk.path))
    assert cli.main(["run", toy_config, "--no-prefect", "--until", "letters"]) == 0
    record = status_file.records_in(small_disk.path / "toy")[-1]
    content = json.loads(record.read_bytes()) | {"state": "running", "ended": None, "pid": 1 << 22}
    record.write_text(json.dumps(content))
    if is_full:
        fill(small_disk, 0)
    else:
        small_disk.remount("ro")
    reason = "No space left on device; free some space"
    if not is_full:
        reason = "Read-only file system; mount it writable again, or choose another path"
    capsys.readouterr()
    assert cli.main(["status", "toy"]) == 0
    told = "".join(capsys.readouterr().out.split())  # a long path has its own lines
    assert "".join(f"is gone; {record.parent}: {reason}".split()) in told
    assert cli.main(["run", toy_config, "--no-prefect"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"cloze: {small_disk.path}")
    assert last.endswith(reason)
    small_disk.remount("rw")
    (small_disk.path / "filler").unlink(missing_ok=True)
    assert cli.main(["resume", "toy", "--no-prefect"]) == 0
    assert cli.main(["run", toy_config, "--no-prefect"]) == 0
    assert status_file.read(small_disk.path, "toy")["state"] == "finished"


@pytest.mark.parametrize("stage", ["letters", "count"])
def test_a_store_that_becomes_read_only_is_named_and_gone_on_after(
    toy_config: str,
    store: Store,
    stage: str,
    halfway: Callable[[str, Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """As where credentials lose the right to write: each change is answered by 403."""
    changes = ("put", "part", "multipart", "copy", "delete")
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1.0)  # this process lives on, and with it its lease
    monkeypatch.setenv("CLOZE_STORE", store.path("runs"))

    def act() -> None:
        store.server.fault = lambda kind, *_: (403, "AccessDenied") if kind in changes else None

    halfway(stage, act)
    assert cli.main(["run", toy_config, "--no-prefect"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"cloze: {store.path('runs', 'toy', stage)}-")
    assert last.endswith("; renew your credentials or ask for the right, and run again")
    record = status_file.read(tmp_path / "runs", "toy")
    assert (record["state"], record["nodes"][stage]["state"]) == ("failed", "failed")
    assert record["error"] == last.removeprefix("cloze: ")
    store.server.fault = no_fault
    monkeypatch.setattr(status_writer.RunStatusFile, "node", NODE)
    assert cli.main(["resume", "toy", "--no-prefect"]) == 0
    assert status_file.read(tmp_path / "runs", "toy")["state"] == "finished"
    assert cli.main(["verify", "toy"]) == 0


def of_a_store(path: Path) -> None:
    storage.write_bytes("memory://failing/corpus.arrow", bytes(1 << 16))
    storage.download("memory://failing/corpus.arrow", str(path))


def within_an_upload(path: Path) -> None:
    with storage.atomic_output("memory://failing/merged.arrow"):
        path.write_bytes(bytes(1 << 16))


def of_sorted_rows(path: Path) -> None:
    table = pa.table({"row": list(range(1 << 13))})
    list(exchange._sorted_pieces([(table, np.arange(1 << 13))] * 2))


@pytest.mark.parametrize("write", [of_a_store, within_an_upload, of_sorted_rows])
def test_a_full_temporary_directory_is_named_and_no_store(
    write: Callable[[Path], None], small_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk.path))
    monkeypatch.setattr(exchange, "SORTED_BYTES", 1)
    fill(small_disk, 0)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write(small_disk.path / "copy")
    told = describe_os_error(raised.value, "")
    if write is not within_an_upload:  # the block's own error, which names what it wrote
        assert told.startswith(str(small_disk.path))
    assert told.endswith("No space left on device; free some space")
