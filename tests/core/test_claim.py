"""Claims on directories: simultaneous starts, and what a kill leaves half-claimed."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, claim
from cloze.core.config import StageConfig
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.stage import BuildContext, Stage, StageResult

FORK = multiprocessing.get_context("fork")


class Config(StageConfig):
    size: int = 3


def run(config: Config, build: BuildContext) -> StageResult:
    """Look again and again whether the directory is still claimed for this build, and holds nobody
    else's scratch.
    """
    storage.write_bytes(storage.join(build.scratch, f"size-{config.size}"), b"")
    for _ in range(5):
        begun = json.loads(Path(build.path, claim.BUILDING).read_text())
        assert begun["fingerprint"] == build.fingerprint, "claimed by another while it is built"
        assert sorted(path.name for path in Path(build.scratch).iterdir()) == [
            f"size-{config.size}"
        ]
        time.sleep(0.002)
    storage.write_bytes(build.file("out.bin"), b"y" * config.size)
    return StageResult(rows=config.size)


STAGE = Stage(name="toy", version=1, config=Config, run=run)


def _start(out: str, size: int, barrier: Any, queue: Any) -> None:
    barrier.wait()
    try:
        result = execute(STAGE, Config(size=size), {}, out)
        queue.put((size, "cached" if result.cached else "made"))
    except UsageError as error:
        queue.put(
            (
                size,
                "refused"
                if "is being built" in str(error) or "made from other settings" in str(error)
                else str(error),
            )
        )
    except BaseException as error:
        queue.put((size, f"{type(error).__name__}: {error}"))


def test_of_simultaneous_starts_one_builds_and_the_others_are_refused_or_find_it_made(
    tmp_path: Path,
) -> None:
    for number in range(6):
        out, sizes = str(tmp_path / f"out-{number}"), (3, 3, 4, 4)
        barrier, queue = FORK.Barrier(len(sizes)), FORK.Queue()
        processes = [
            FORK.Process(target=_start, args=(out, size, barrier, queue)) for size in sizes
        ]
        for process in processes:
            process.start()
        answers = [queue.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
        made = [size for size, how in answers if how == "made"]
        assert len(made) == 1, answers
        assert {how for _, how in answers} <= {"made", "cached", "refused"}, answers
        assert artifact.verify(out).ok
        assert artifact.read_manifest(out).rows == made[0]
        assert sorted(path.name for path in Path(out).iterdir()) == ["manifest.json", "out.bin"]


def test_a_kill_while_an_old_artifact_is_removed_leaves_a_directory_that_is_still_ours(
    tmp_path: Path, monkeypatch: Any
) -> None:
    out = str(tmp_path / "out")
    execute(STAGE, Config(), {}, out)
    remove = storage.remove_file

    def killed(path: str) -> None:
        remove(path)
        if path.endswith(artifact.MANIFEST):
            raise KeyboardInterrupt

    monkeypatch.setattr(storage, "remove_file", killed)
    with pytest.raises(KeyboardInterrupt):
        execute(STAGE, Config(size=4), {}, out, force=True)
    monkeypatch.undo()
    assert claim.is_unfinished(out)
    assert execute(STAGE, Config(size=5), {}, out).manifest.rows == 5
    assert artifact.verify(out).ok


def test_a_kill_before_the_claim_is_written_leaves_nothing_foreign(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "_lock").touch()
    (out / f"{storage.TEMPORARY}{claim.BUILDING}-1-2").touch()
    assert execute(STAGE, Config(), {}, str(out)).cached is False
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "out.bin"]


def test_a_refusal_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / "theirs" / "thesis.tex").write_text("precious")
    before = (tmp_path / "theirs").stat().st_mtime_ns
    with pytest.raises(UsageError, match=r"contains other files \(thesis.tex\)"):
        execute(STAGE, Config(), {}, str(tmp_path / "theirs"), force=True)
    assert (tmp_path / "theirs").stat().st_mtime_ns == before


def test_tries_at_one_artifact_have_one_build_id(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    first = claim.claim_directory(out, claim.Claim("toy", "f1"), force=False).build
    assert claim.claim_directory(out, claim.Claim("toy", "f1"), force=False).build == first
    assert claim.claim_directory(out, claim.Claim("toy", "f2"), force=False).build != first


def test_a_build_continues_on_inputs_of_the_same_content(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    first = claim.claim_directory(
        out, claim.Claim("toy", "f", inputs={"data": "1"}), force=False
    ).build
    same = claim.claim_directory(
        out, claim.Claim("toy", "f", inputs={"data": "1", "new": "2"}), force=False
    )
    assert same.build == first
    assert (
        claim.claim_directory(out, claim.Claim("toy", "f", inputs={"data": "2"}), force=False).build
        != first
    )
    storage.write_bytes(f"{out}/checkpoints/step-00000001/checkpoint.json", b"{}")
    with pytest.raises(UsageError, match="checkpoints of a run with other content of data"):
        claim.claim_directory(out, claim.Claim("toy", "f", inputs={"data": "3"}), force=False)
    claim.claim_directory(out, claim.Claim("toy", "f", inputs={"data": "3"}), force=True)
    assert not storage.exists(f"{out}/checkpoints")


def test_a_build_that_another_version_began_is_refused_with_what_to_do(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    claim.claim_directory(out, claim.Claim("pretrain", "f1", version="3"), force=False)
    storage.write_bytes(f"{out}/checkpoints/step-00000005/manifest.json", b"{}")
    with pytest.raises(
        UsageError, match=r"begun by another version.*stage pretrain, this one has 4"
    ):
        claim.claim_directory(out, claim.Claim("pretrain", "f2", version="4"), force=False)
    with pytest.raises(UsageError, match="finish it with that version"):
        claim.check_version(claim.read(out), out, "4")
    claim.check_version(claim.read(out), out, "3")
    claim.check_version(None, out, "4")
    # a development version recorded no version
    claim.claim_directory(f"{out}/old", claim.Claim("pretrain", "f1"), force=False)
    with pytest.raises(UsageError, match="version unknown of the stage pretrain"):
        claim.check_version(claim.read(f"{out}/old"), out, "4")
    with pytest.raises(UsageError, match="checkpoints of a run with other settings"):
        claim.claim_directory(out, claim.Claim("pretrain", "f2", version="3"), force=False)
