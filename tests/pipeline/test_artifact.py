"""Artifacts: the manifest says what is there, and verify finds what is not as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import artifact
from pipeline.artifact import Manifest
from pipeline.errors import DataError


def make(path: Path) -> Manifest:
    (path / "sub").mkdir(parents=True)
    (path / "a.arrow").write_bytes(b"rows")
    (path / "sub" / "b.txt").write_bytes(b"words")
    (path / "metrics.jsonl").write_bytes(b"{}")
    (path / "_scratch").mkdir()
    (path / "_scratch" / "x").write_bytes(b"no part of it")
    files = artifact.hash_files(str(path), artifact.data_files(str(path)), volatile=["metrics.jsonl"])
    manifest = Manifest(stage="corpus", version=1, fingerprint="f", parents={}, config={"a": 1}, files=files)
    artifact.write_manifest(str(path), manifest)
    return manifest


def test_round_trip(tmp_path: Path) -> None:
    made = make(tmp_path / "x")
    assert artifact.read_manifest(str(tmp_path / "x")) == made
    assert [entry.path for entry in made.files] == ["a.arrow", "metrics.jsonl", "sub/b.txt"]
    assert artifact.verify(str(tmp_path / "x")).ok


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda p: (p / "a.arrow").write_bytes(b"rowz"), "a.arrow has sha256"),
        (lambda p: (p / "a.arrow").write_bytes(b"ro"), "a.arrow has 2 bytes, the manifest says 4"),
        (lambda p: (p / "sub" / "b.txt").unlink(), "sub/b.txt is missing"),
        (lambda p: (p / "new").write_bytes(b""), "new is not in the manifest"),
    ],
)
def test_verify_names_the_damage(tmp_path: Path, damage, expected: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "x")
    damage(tmp_path / "x")
    found = artifact.verify(str(tmp_path / "x"))
    assert not found.ok
    assert any(expected in error for error in found.errors), found.errors


def test_content_hash_leaves_out_what_holds_times(tmp_path: Path) -> None:
    first = make(tmp_path / "x").content_sha256
    (tmp_path / "x" / "metrics.jsonl").write_bytes(b'{"time": 1}')
    assert artifact.verify(str(tmp_path / "x")).content_sha256 == first
    (tmp_path / "x" / "a.arrow").write_bytes(b"other")
    assert artifact.verify(str(tmp_path / "x")).content_sha256 != first


def test_unfinished_and_damaged_manifests_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished artifact"):
        artifact.read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        artifact.read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match="format 99"):
        artifact.read_manifest(str(tmp_path))


def test_fingerprint_depends_on_everything_that_shapes_the_result() -> None:
    base = artifact.fingerprint("corpus", 1, {"a": 1, "b": 2}, {"x": "1"})
    assert artifact.fingerprint("corpus", 1, {"b": 2, "a": 1}, {"x": "1"}) == base
    others = [("vocab", 1, {"a": 1, "b": 2}, {"x": "1"}), ("corpus", 2, {"a": 1, "b": 2}, {"x": "1"}),
              ("corpus", 1, {"a": 1, "b": 3}, {"x": "1"}), ("corpus", 1, {"a": 1, "b": 2}, {"x": "2"})]  # fmt: skip
    assert len({artifact.fingerprint(*other) for other in others} | {base}) == 5
