"""The end of a build: a kill at any line from the last unit on loses no finished unit, and the
rerun's bytes are the same.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, claim
from cloze.core.artifacts.lock import LOCK
from cloze.core.config import StageConfig
from cloze.core.stages import execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Stage, StageResult

UNITS = 3
RESUMED = "checkpoints"


class Config(StageConfig):
    size: int = 3


def run(config: Config, build: BuildContext) -> StageResult:
    """Do each unit once: its file first, its result last, both kept for the next try. Note every
    unit that is done.
    """
    notes = Path(build.path).parent / "done"
    for number in range(UNITS):
        result = storage.join(build.scratch, "units", f"{number}.json")
        if not storage.exists(result):
            with notes.open("a") as stream:
                stream.write(f"{number}")
            storage.write_bytes(build.file(f"part-{number}"), bytes([number]) * config.size)
            storage.write_bytes(build.file(RESUMED, f"step-{number}", "weights"), b"resume")
            storage.write_bytes(result, b"{}")
    return StageResult(rows=UNITS, temporary=(RESUMED,))


STAGE = Stage(name="toy", version=1, config=Config, run=run)


def _killed_at(out: str, number: int) -> bool:
    """Execute the stage in a child that kills itself at that line after its last unit; whether it
    came so far.
    """
    child = os.fork()
    if child == 0:
        lines = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            nonlocal lines
            if frame.f_code.co_filename not in (execute.__file__, claim.__file__):
                return None
            if event == "line":
                lines += 1
                if lines == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        def counted(config: Config, build: BuildContext) -> StageResult:
            outcome = run(config, build)
            frame: FrameType | None = sys._getframe()
            while frame is not None:  # `execute` was entered before there was anything to trace
                frame.f_trace = trace
                frame = frame.f_back
            sys.settrace(trace)
            return outcome

        stage = Stage(name="toy", version=1, config=Config, run=counted)
        code = 1
        try:
            execute.execute(stage, Config(), {}, out)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.waitstatus_to_exitcode(status) != 0


def _names(out: str) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in Path(out).rglob("*"))


def test_a_kill_at_any_line_after_the_last_unit_loses_nothing(tmp_path: Path) -> None:
    whole = str(tmp_path / "whole" / "out")
    expected = execute.execute(STAGE, Config(), {}, whole).manifest
    assert _names(whole) == [artifact.MANIFEST, *(f"part-{number}" for number in range(UNITS))]
    number, seen = 1, set[bool]()
    while True:
        out = str(tmp_path / f"kill-{number}" / "out")
        killed = _killed_at(out, number)
        if artifact.is_artifact(out):  # what follows the manifest is clearing away
            assert artifact.read_manifest(out).files == expected.files
            assert artifact.verify(out).ok, f"line {number}"
        seen.add(artifact.is_artifact(out))
        made = execute.execute(STAGE, Config(), {}, out).manifest
        assert (tmp_path / f"kill-{number}" / "done").read_text() == "012", (
            f"line {number}: a finished unit was done again"
        )
        assert made.files == expected.files
        assert set(_names(out)) - {LOCK} == set(_names(whole)), (
            f"line {number}: something stays behind"
        )
        if not killed:
            break
        number += 1
    assert number > 30
    assert seen == {False, True}


def test_an_error_while_files_are_hashed_keeps_the_finished_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(artifact, "hash_files", unreachable)
        with pytest.raises(OSError, match="the store is away"):
            execute.execute(STAGE, Config(), {}, out)
    execute.execute(STAGE, Config(), {}, out)
    assert (tmp_path / "done").read_text() == "012"


def test_the_manifest_holds_no_secret(tmp_path: Path) -> None:
    """It may be read by more people than may use the store, and is uploaded to MLflow."""
    secret = "--s3_secret_access_key=abc123"
    execute.execute(
        STAGE, Config(), {}, str(tmp_path / "out"), execution=Execution(beam_options=(secret,))
    )
    options = artifact.read_manifest(str(tmp_path / "out")).execution["beam_options"]
    assert options == ["--s3_secret_access_key=***"]
