"""Sources of stores without content tags: the workers hash them, each file once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.stages.execution import Execution
from cloze.flows.graph import plan as planning
from cloze.flows.graph.config import RunConfig
from cloze.pipeline.runners import hashing

TEXT = b"Tags of content are what most stores have, and a few have not. " * 40


@pytest.fixture
def untagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Seven files of a store without tags; the limits are so small that they are several units."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "SURE_AGE", -1.0)
    monkeypatch.setattr(hashing, "UNIT_BYTES", 3 * len(TEXT))
    paths = [f"memory://{tmp_path.name}/{number}.txt" for number in range(7)]
    for number, path in enumerate(paths):
        storage.write_bytes(path, TEXT + b"%d" % number)
    return paths


def test_units_of_files_give_each_files_hash_and_are_remembered(
    untagged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a unit failed: a rerun reads what is left."""
    read, original = list[str](), storage.sha256

    def counted(path: str) -> tuple[str, int]:
        read.append(path)
        if len(read) == 4:
            raise OSError("the store is gone")
        return original(path)

    monkeypatch.setattr(storage, "sha256", counted)
    execution = Execution(runner="direct")  # several workers, of one process

    def hashed() -> dict[str, str]:
        with fingerprints.hashing_by(
            lambda *files: hashing.hash_by_workers(execution, str(tmp_path / "run"), *files)
        ):
            return fingerprints.file_fingerprints(untagged)

    with pytest.raises(Exception, match="the store is gone"):
        hashed()
    assert hashed() == {
        path: hashlib.sha256(storage.read_at_once(path)).hexdigest() for path in untagged
    }
    assert sorted(set(read)) == untagged
    assert len(read) <= 7 + 3  # the units of two files that were under way are read again
    assert not (tmp_path / "run" / hashing.HASHES).exists()
    count = len(read)
    assert len(hashed()) == 7
    assert len(read) == count


@pytest.mark.parametrize(("workers", "limit", "units"), [(1, 1, 0), (2, 1 << 30, 0), (2, 1, 7)])
def test_a_plan_gives_large_files_to_the_workers_once(
    untagged: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    limit: int,
    units: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hashing, "UNIT_BYTES", limit)
    done: list[str] = []

    def in_this_process(build, step, units, function, **how):  # type: ignore[no-untyped-def]
        done.extend(name for name, _ in units)
        return [function(unit) for _, unit in units]

    monkeypatch.setattr(hashing, "fan_out", in_this_process)
    source = untagged[0].rpartition("/")[0]
    corpus = {"sources": [{"kind": "text", "path": source}]}
    config = RunConfig({"corpus": corpus, "run": {"workers": workers}}, "toy")
    for _ in range(2):
        planning.plan(config)
    assert len(done) == units


def test_two_plans_at_once_hash_in_places_of_their_own(
    untagged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that ends first removes nothing of the other."""
    places: list[Path] = []
    execution, original = Execution(runner="direct"), hashing.fan_out

    def hashed() -> list[str]:
        return hashing.hash_by_workers(execution, str(tmp_path / "run"), untagged, [(3000, 1)] * 7)

    def interrupted(build, *arguments, **how):  # type: ignore[no-untyped-def]
        places.append(Path(build.path))
        results = original(build, *arguments, **how)
        if len(places) == 1:
            left = sorted(places[0].rglob("*"))
            assert hashed() == expected  # another process's plan, from its start to its end
            assert sorted(places[0].rglob("*")) == left
        return results

    monkeypatch.setattr(hashing, "fan_out", interrupted)
    expected = [hashlib.sha256(storage.read_at_once(path)).hexdigest() for path in untagged]
    assert hashed() == expected
    assert len(set(places)) == 2
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("threads", "workers", "by"), [(1 << 20, 1 << 20, ""), (0, 1 << 20, "threads"), (0, 0, "given")]
)
def test_local_files_of_many_bytes_are_hashed_in_parallel_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, workers: int, by: str
) -> None:
    """As those of stores without tags; few bytes take less time without."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "THREADS_BYTES", threads)
    monkeypatch.setattr(fingerprints, "WORKERS_BYTES", workers)
    paths = [str(tmp_path / f"{number}.txt") for number in range(5)]
    for path in paths:
        Path(path).write_text(path)
    asked: list[tuple[str, list[str]]] = []
    original = fingerprints.hash_by_threads

    def noted(name: str) -> fingerprints.Hasher:
        def hashed(paths: Sequence[str], stamps: Sequence[fingerprints.Stamp | None]) -> list[str]:
            asked.append((name, list(paths)))
            return list(original(paths, stamps))

        return hashed

    monkeypatch.setattr(fingerprints, "hash_by_threads", noted("threads"))
    with fingerprints.hashing_by(noted("given")):
        for _ in range(2):
            found = fingerprints.file_fingerprints(paths)
            assert found == {path: hashlib.sha256(path.encode()).hexdigest() for path in paths}
        assert asked == ([(by, paths)] if by else [])
        Path(paths[3]).write_text("more")
        found = fingerprints.file_fingerprints(paths)
        assert found[paths[3]] == hashlib.sha256(b"more").hexdigest()
        assert asked[1:] == ([(by, paths[3:4])] if by else [])


def test_a_stage_that_trains_needs_no_beam_to_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "THREADS_BYTES", 0)
    monkeypatch.setattr(fingerprints, "WORKERS_BYTES", 0)
    monkeypatch.setattr(planning, "HASH", "no.such.module:function")
    monkeypatch.chdir(tmp_path)
    rows = "text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(40))
    for split in ("train", "dev"):
        storage.write_bytes(str(tmp_path / "rows" / f"{split}.csv"), rows.encode())
    storage.write_bytes(str(tmp_path / "hub" / "x" / "config.json"), b"{}")
    task = {"task": "classification", "data": "rows", "checkpoint": "hub/x"}
    planning.plan(RunConfig({"finetune": task, "run": {"zero": 1}}, "toy"))
