"""Two accounts share one runs directory, and places that cannot be written: a run goes on, or says
in one sentence what is wrong.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloze.core import accounts
from cloze.core.errors import UsageError
from cloze.flows import cli
from cloze.flows.machine import slots
from cloze.flows.tracking import spool_state

OTHER, GROUP = 12345, 54321  # an account and the group of both
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two accounts")


def as_account(uid: int, umask: int, work: Callable[[], int]) -> int:
    """Do something as an account of the group; return its code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgroups([GROUP])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(umask)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that other accounts may enter; pytest closes its own to them."""
    with tempfile.TemporaryDirectory(prefix="cloze-shared-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def shared(toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs directory that a group shares as an administrator makes it, and slots of its own."""
    (tmp_path / "slots").mkdir()
    (tmp_path / "slots").chmod(0o1777)
    (tmp_path / "toy.yaml").chmod(0o644)
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    # the other accounts may not read where Python is: all modules are imported before
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "own"))
    for size in (5, 4):
        run = ["run", toy_config, "--no-prefect", "--set", f"letters.size={size}"]
        assert cli.main(run) == 0
    assert cli.main(["clean", "--delete"]) == 0
    runs = tmp_path / "runs"
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(runs))
    runs.mkdir()
    os.chown(runs, -1, GROUP)
    runs.chmod(0o2775)
    return runs


@as_root
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027, 0o002], ids=oct)
def test_two_accounts_run_and_clean_in_one_directory(
    shared: Path, toy_config: str, umask: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *words: str) -> Callable[[], int]:
        return lambda: cli.main(
            ["run", toy_config, "--no-prefect", "--set", f"name={name}", *words]
        )

    assert as_account(OTHER, umask, run("first")) == 0
    assert as_account(OTHER + 1, umask, run("second")) == 0
    assert as_account(OTHER + 1, umask, run("first", "--set", "letters.size=9")) == 0
    assert as_account(OTHER, umask, run("first")) == 0
    assert as_account(OTHER + 1, umask, lambda: cli.main(["clean", "--delete"])) == 0
    printed = "".join(capfd.readouterr())
    assert "2 artifacts removed" in printed
    assert "enied" not in printed
    records = [*(shared / ".tracking").glob("*.jsonl"), *shared.glob("*/_status/*.json")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in records] == [0o660] * 7  # the group's


@as_root
def test_two_accounts_record_in_one_database(shared: Path, tmp_path: Path) -> None:
    def record(place: Path) -> int:
        accounts.share(place)
        uri = f"sqlite:///{place}/mlflow.db"
        client = spool_state.connect(uri)
        client.create_run(spool_state.experiment_id(client, uri))
        return 0

    earlier = os.umask(0o022)
    record(tmp_path)  # imports all modules
    os.umask(earlier)
    assert [as_account(OTHER + n, 0o022, lambda: record(shared)) for n in (0, 1)] == [0, 0]


@as_root
def test_a_second_account_without_the_right_to_record_still_runs(
    shared: Path, toy_config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (shared / ".tracking").mkdir(mode=0o755)  # of root
    (shared / ".tracking").chmod(0o755)
    run = ["run", toy_config, "--no-prefect"]
    assert as_account(OTHER, 0o022, lambda: cli.main(run)) == 0
    printed = "".join(capfd.readouterr())
    assert "nothing of this run is recorded in MLflow" in printed
    assert "Permission denied" in printed


@pytest.mark.parametrize("mode", [0o755, 0o2755, 0o775, 0o1777], ids=oct)
def test_other_directories_leave_the_umask_alone(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    earlier = os.umask(0o022)
    try:
        accounts.share(tmp_path)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(earlier)
        tmp_path.chmod(stat.S_IRWXU)


HERE = slots.MachineResources(cores=("0", "1"), gpus=())


def take() -> list[slots.Holder]:
    request = slots.ResourceRequest(cpus=2)
    with slots.acquire(request, HERE, "run", "node", lambda: False, lambda: None):
        return slots.holders()


@as_root
def test_slots_below_an_unwritable_place_are_named(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0o755)
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "closed" / "slots"))

    def refused() -> int:
        with pytest.raises(UsageError, match=r"closed/slots \(Permission denied\).*oversubscribe"):
            take()
        return 0

    assert as_account(OTHER, 0o022, refused) == 0


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path))

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UsageError, match="No locks available"):
        take()


def test_a_full_disk_of_slots_holds_up_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path))
    assert [holder.slot for holder in take()] == ["cpu-0", "cpu-1"]

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert take() == []  # taken, though nobody can be told by whom
