"""The end of a build: a kill at any line from the last unit on loses no finished unit, and the
rerun's bytes are the same.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
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


def _left_by_kills(place: Path, kills: Path) -> list[Path]:
    """Execute the stage below `place`; of each line that is run after its last unit, the files that
    a kill there leaves, where they differ from those of the line before.

    A child does so, which then is no more: its locks are of nobody.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _execute_and_copy(place, kills)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return sorted(kills.iterdir())


def _execute_and_copy(place: Path, kills: Path) -> None:
    seen = dict[Path, bytes]()
    sources = {module.__file__ for module in (execute, claim, artifact, storage)}

    def copy() -> None:
        nonlocal seen
        now = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        if now != seen:
            shutil.copytree(place, kills / f"{len(list(kills.iterdir())):03}")
            seen = now

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in sources:
            return None
        if event == "line":
            copy()
        return trace

    def traced(config: Config, build: BuildContext) -> StageResult:
        outcome = run(config, build)
        frame: FrameType | None = sys._getframe()
        while frame is not None:  # `execute` was entered before there was anything to trace
            frame.f_trace = trace
            frame = frame.f_back
        sys.settrace(trace)
        return outcome

    execute.execute(
        Stage(name="toy", version=1, config=Config, run=traced), Config(), {}, str(place / "out")
    )
    sys.settrace(None)
    copy()


def _names(out: str) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in Path(out).rglob("*"))


def test_a_kill_at_any_line_after_the_last_unit_loses_nothing(tmp_path: Path) -> None:
    whole = str(tmp_path / "whole" / "out")
    expected = execute.execute(STAGE, Config(), {}, whole).manifest
    assert _names(whole) == [artifact.MANIFEST, *(f"part-{number}" for number in range(UNITS))]
    (tmp_path / "kills").mkdir()
    seen = Counter[bool]()
    for place in _left_by_kills(tmp_path / "place", tmp_path / "kills"):
        out = str(place / "out")
        seen[artifact.is_artifact(out)] += 1
        if artifact.is_artifact(out):  # what follows the manifest is clearing away
            assert artifact.read_manifest(out).files == expected.files
            assert artifact.verify(out).ok, place
        left = _names(out)
        made = execute.execute(STAGE, Config(), {}, out).manifest
        assert (place / "done").read_text() == "012", f"a finished unit was done again: {left}"
        assert made.files == expected.files
        assert set(_names(out)) - {LOCK} == set(_names(whole)), f"something stays behind: {left}"
    assert min(seen[False], seen[True]) >= 3, seen


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
