"""`execute`: nothing to do, interrupted builds, directories that hold something else, two builders
at once.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from pydantic import Field

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute, join_execution
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter, Stage, StageResult


class ToyConfig(StageConfig):
    size: int = Field(default=3, gt=0)
    data: InputPath | None = None


def run(config: ToyConfig, build: BuildContext) -> StageResult:
    calls = Path(build.path).parent / "calls"
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    storage.write_bytes(build.file("out.bin"), b"y" * config.size)
    storage.write_bytes(storage.join(build.scratch, "part"), b"scratch")
    build.counters["dropped/short"] += 2
    return StageResult(rows=config.size, summary={"size": config.size})


TOY = Stage(name="toy", version=1, config=ToyConfig, run=run)


def calls(tmp_path: Path) -> int:
    path = tmp_path / "calls"
    return len(path.read_text()) if path.exists() else 0


def test_second_run_does_no_work(tmp_path: Path) -> None:
    out = str(tmp_path / "toy")
    first = execute(TOY, ToyConfig(), {}, out)
    second = execute(TOY, ToyConfig(), {}, out, execution=Execution(workers=2))
    assert (first.cached, second.cached, calls(tmp_path)) == (False, True, 1)
    assert second.manifest.counters == {"dropped/short": 2}
    assert sorted(path.name for path in Path(out).iterdir()) == [
        "manifest.json",
        "out.bin",
    ]  # no scratch, lock or mark is left
    assert execute(TOY, ToyConfig(), {}, out, force=True).cached is False


def test_other_settings_never_overwrite_without_force(tmp_path: Path) -> None:
    out = str(tmp_path / "toy")
    execute(TOY, ToyConfig(), {}, out)
    with pytest.raises(UsageError, match="other settings"):
        execute(TOY, ToyConfig(size=4), {}, out)
    assert Path(out, "out.bin").read_bytes() == b"yyy"
    assert execute(TOY, ToyConfig(size=4), {}, out, force=True).manifest.rows == 4


def test_an_input_is_never_built_over(tmp_path: Path) -> None:
    out = str(tmp_path / "toy")
    execute(TOY, ToyConfig(), {}, out)
    (tmp_path / "link").symlink_to("toy")
    for path in (out, f"{out}/", f"{out}/part", str(tmp_path / "link")):
        with pytest.raises(
            UsageError, match=r"toy contains the input before \(.*\), which the build would remove"
        ):
            execute(TOY, ToyConfig(size=4), {"before": path}, out, force=True)
    assert Path(out, "out.bin").read_bytes() == b"yyy"
    assert execute(TOY, ToyConfig(), {"before": out}, str(tmp_path / "toys")).cached is False


def test_force_begins_with_an_empty_directory(tmp_path: Path) -> None:
    """An empty checkpoints/step-… that stayed made a forced pretraining refuse to begin."""
    seen = []

    def nested(config: ToyConfig, build: BuildContext) -> StageResult:
        seen.append(sorted(path.name for path in Path(build.path).iterdir()))
        storage.write_bytes(build.file("checkpoints", "step-1", "weights"), b"w" * config.size)
        return StageResult()

    stage = Stage(name="nested", version=1, config=ToyConfig, run=nested)
    for size in (3, 3, 4):
        execute(stage, ToyConfig(size=size), {}, str(tmp_path / "a"), force=True)
    assert seen[1:] == [seen[0]] * 2


def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        execute(TOY, ToyConfig(), {}, str(tmp_path / "toy"), force=True)
    assert (tmp_path / "toy" / "thesis.tex").read_text() == "precious"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        execute(TOY, ToyConfig(), {}, str(tmp_path / "file"))
    other = Stage(name="other", version=1, config=ToyConfig, run=run)
    execute(TOY, ToyConfig(), {}, str(tmp_path / "a"))
    with pytest.raises(UsageError, match="contains a toy artifact"):
        execute(other, ToyConfig(), {}, str(tmp_path / "a"), force=True)


def test_data_behind_a_path_counts_not_the_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("same")
    (tmp_path / "b").write_text("same")
    prints = {TOY.fingerprint(ToyConfig(data=str(tmp_path / name)), {}) for name in ("a", "b")}
    assert len(prints) == 1
    (tmp_path / "b").write_text("else")
    assert TOY.fingerprint(ToyConfig(data=str(tmp_path / "b")), {}) not in prints
    with pytest.raises(DataError, match="does not exist"):
        execute(TOY, ToyConfig(data=str(tmp_path / "none")), {}, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def _fail(config: ToyConfig, build: BuildContext) -> StageResult:
    storage.write_bytes(build.file("half.bin"), b"half")
    storage.write_bytes(storage.join(build.scratch, "part-0"), b"done")
    raise DataError("the second half is missing")


def test_an_interrupted_build_is_no_artifact_and_its_scratch_serves_the_next(
    tmp_path: Path,
) -> None:
    out = str(tmp_path / "toy")
    broken = Stage(name="toy", version=1, config=ToyConfig, run=_fail)
    with pytest.raises(DataError):
        execute(broken, ToyConfig(), {}, out)
    assert not artifact.is_artifact(out)
    assert Path(out, "_scratch", "part-0").exists()
    seen = []

    def look(config: ToyConfig, build: BuildContext) -> StageResult:
        seen.append(storage.exists(storage.join(build.scratch, "part-0")))
        return StageResult()

    Path(out, "_tmp-half.bin-1-2").touch()  # a writer was killed here
    execute(Stage(name="toy", version=1, config=ToyConfig, run=look), ToyConfig(), {}, out)
    assert seen == [True]
    assert not Path(out, "_tmp-half.bin-1-2").exists()
    with pytest.raises(DataError):
        execute(broken, ToyConfig(), {}, str(tmp_path / "t2"))
    execute(
        Stage(name="toy", version=1, config=ToyConfig, run=look),
        ToyConfig(size=9),
        {},
        str(tmp_path / "t2"),
    )
    assert seen == [True, False]  # other settings start from nothing
    assert not (tmp_path / "t2" / "half.bin").exists()


def _slow(config: ToyConfig, build: BuildContext) -> StageResult:
    Path(build.path, "begun").touch()
    time.sleep(20)
    return StageResult()


def _build_slowly(out: str) -> None:
    execute(Stage(name="toy", version=1, config=ToyConfig, run=_slow), ToyConfig(), {}, out)


def test_second_builder_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    out = tmp_path / "toy"
    process = multiprocessing.get_context("fork").Process(target=_build_slowly, args=(str(out),))
    process.start()
    while not (out / "begun").exists():
        time.sleep(0.01)
    with pytest.raises(UsageError, match=f"process {process.pid} on "):
        execute(TOY, ToyConfig(), {}, str(out))
    process.kill()
    process.join()
    assert execute(TOY, ToyConfig(), {}, str(out)).cached is False


def test_all_tries_at_an_artifact_share_a_build_id(tmp_path: Path) -> None:
    out = str(tmp_path / "toy")
    begun: list[str] = []

    class Listener(Reporter):
        def build_started(self, build_id: str) -> None:
            begun.append(build_id)

    broken = Stage(name="toy", version=1, config=ToyConfig, run=_fail)
    for _ in range(2):
        with pytest.raises(DataError):
            execute(broken, ToyConfig(), {}, out, report=Listener())
    made = execute(TOY, ToyConfig(), {}, out, report=Listener())
    assert begun == [made.manifest.build] * 3
    assert execute(TOY, ToyConfig(), {}, out, report=Listener()).cached
    assert len(begun) == 3  # nothing begins where all is there
    again = execute(TOY, ToyConfig(), {}, out, report=Listener(), force=True)
    assert begun[3:] == [again.manifest.build]
    assert begun[3] != begun[0]


def test_a_process_that_joins_waits_until_the_first_has_begun(tmp_path: Path) -> None:
    """It must not write into the directory before, or the first one would find something else
    there.
    """
    out = str(tmp_path / "toy")
    joined: list[bool] = []

    def take_part(config: ToyConfig, build: BuildContext) -> StageResult:
        joined.append(Path(out, "_building.json").exists())
        return StageResult()

    def hold(config: ToyConfig, build: BuildContext) -> StageResult:
        second.join(timeout=10)
        return run(config, build)

    other = Stage(name="toy", version=1, config=ToyConfig, run=take_part)
    second = threading.Thread(
        target=join_execution, args=(other, ToyConfig(), {}, out), kwargs={"execution": Execution()}
    )
    second.start()
    time.sleep(0.5)
    assert not Path(out).exists()
    owner = Stage(name="toy", version=1, config=ToyConfig, run=hold)
    assert execute(owner, ToyConfig(), {}, out).manifest.rows == 3
    assert joined == [True]
