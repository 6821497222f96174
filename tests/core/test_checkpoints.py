"""Checkpoints that are read while their training goes on: what is held stays, a dead reader holds
nothing, nobody reads a half.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloze.core.artifacts import checkpoints
from cloze.core.errors import DataError

HOLD = """
import sys
from cloze.core.artifacts import checkpoints
with checkpoints.pinned(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def made(run: Path, step: int) -> Path:
    directory = run / checkpoints.STEPS / checkpoints.step_name(step)
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "tokenizer" / "vocab.txt").write_text("a\n")
    (directory / checkpoints.COMPLETE).write_text("{}")
    return directory


def test_names_say_steps() -> None:
    assert checkpoints.parse_step(f"/runs/x/checkpoints/{checkpoints.step_name(8000)}/") == 8000
    assert checkpoints.parse_step("checkpoints/step-123456789") == 123456789
    assert [
        checkpoints.parse_step(name) for name in ("step-x", "step-", "_removed-step-00000001", "")
    ] == [-1] * 4


def test_only_complete_ones_are_listed_oldest_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert checkpoints.complete_steps(str(run)) == []
    second, first = made(run, 100), made(run, 20)
    (made(run, 30) / checkpoints.COMPLETE).unlink()
    made(run, 40).rename(run / checkpoints.STEPS / f"{checkpoints.REMOVED}step-00000040")
    assert checkpoints.complete_steps(str(run)) == [str(first), str(second)]


def test_what_a_process_holds_stays_until_it_dies(tmp_path: Path) -> None:
    directory = made(tmp_path / "run", 5)
    reader = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "held\n"
    with checkpoints.pinned(str(directory)):
        assert checkpoints.remove(str(directory)) is False
    assert checkpoints.remove(str(directory)) is False
    assert (directory / "tokenizer" / "vocab.txt").exists()
    reader.kill()
    reader.communicate(timeout=30)
    assert checkpoints.remove(str(directory)) is True
    assert list((tmp_path / "run" / checkpoints.STEPS).iterdir()) == []
    with (
        pytest.raises(DataError, match="or its training has removed it; name a newer one"),
        checkpoints.pinned(str(directory)),
    ):
        pass


def test_who_comes_while_it_is_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has the file open already, and waits for a lock on what has lost its name when it
    gets it.
    """
    directory = made(tmp_path / "run", 5)
    messages: list[str] = []

    def read() -> None:
        try:
            with checkpoints.pinned(str(directory)):
                messages.append("held")
        except DataError as error:
            messages.append(str(error))

    reader = threading.Thread(target=read)
    rename, waits = Path.rename, threading.Event()
    flock = checkpoints.fcntl.flock

    def seen(handle: object, how: int) -> None:
        if how & checkpoints.fcntl.LOCK_SH:
            waits.set()
        flock(handle, how)  # type: ignore[arg-type]

    def slowly(self: Path, target: Path) -> Path:
        reader.start()
        assert waits.wait(10)
        return rename(self, target)

    monkeypatch.setattr(checkpoints.fcntl, "flock", seen)
    monkeypatch.setattr(Path, "rename", slowly)
    assert checkpoints.remove(str(directory))
    reader.join(10)
    assert len(messages) == 1
    assert "its training has removed it" in messages[0]


def test_a_kill_while_removing_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = made(tmp_path / "run", 5)

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if Path(path).exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.remove(str(directory))
    assert checkpoints.complete_steps(str(tmp_path / "run")) == []
    checkpoints.remove_leftovers(str(tmp_path / "run"))
    assert list((tmp_path / "run" / checkpoints.STEPS).iterdir()) == []
