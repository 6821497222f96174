"""Manifests of many files: the list is a table beside them, which is read only where it is needed.

Both sides of the limit say the same about an artifact.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints, lineage
from cloze.core.artifacts.artifact import Manifest
from cloze.core.artifacts.file_table import TABLE, FileTable
from cloze.core.errors import DataError
from cloze.flows.run import retention
from cloze.model.data import shards

NAMES = ["a.arrow", "deep/b é.txt", "metrics.jsonl", "train-0.arrow"]


def make(path: Path, limit: int, patch: pytest.MonkeyPatch) -> Manifest:
    """Return the manifest as it is read of an artifact of four files."""
    patch.setattr(artifact, "MOST_LISTED", limit)
    for number, name in enumerate(NAMES):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x" * number)
    files = artifact.hash_files(
        str(path), artifact.data_files(str(path)), volatile=["metrics.jsonl"]
    )
    manifest = Manifest(
        stage="dataset", version=1, fingerprint="f", parents={}, config={}, files=files
    )
    artifact.write_manifest(str(path), manifest)
    return artifact.read_manifest(str(path))


@pytest.fixture(params=[len(NAMES), len(NAMES) - 1, 0], ids=["list", "table", "table of any"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make(tmp_path / "x", request.param, monkeypatch)
    assert (tmp_path / "x" / TABLE).exists() == (request.param < len(NAMES))
    return tmp_path / "x"


def test_both_forms_say_the_same(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, found = make(tmp_path / "y", 99, monkeypatch), artifact.read_manifest(str(made))
    assert [*found.files] == [*listed.files]
    assert (len(found.files), found.size) == (len(listed.files), listed.size) == (4, 6)
    assert found.content_sha256 == listed.content_sha256
    contents = lineage.input_contents({"corpus": str(made), "other": str(tmp_path / "y")})
    assert contents["corpus"] == contents["other"] == listed.content_sha256


def test_verify_of_both_forms_names_what_differs(made: Path) -> None:
    found = artifact.verify(str(made))
    assert (found.ok, found.files, found.bytes) == (True, 4, 6)
    assert found.content_sha256 == artifact.read_manifest(str(made)).content_sha256
    (made / "a.arrow").unlink()
    (made / "deep" / "b é.txt").write_bytes(b"y")
    (made / "new").write_bytes(b"")
    assert [error.partition(" has ")[0] for error in artifact.verify(str(made)).errors] == [
        "a.arrow is missing",
        "new is not in the manifest",
        "deep/b é.txt",
    ]


def test_readers_of_the_files_take_both_forms(made: Path, tmp_path: Path) -> None:
    manifest = artifact.read_manifest(str(made))
    assert shards.verify(str(made)) == 2
    assert retention._foreign(made, manifest) == []
    for entry in manifest.files:
        fingerprints.link_unchanged(str(made), entry, str(tmp_path / "linked" / entry.path))
    assert artifact.data_files(str(tmp_path / "linked")) == sorted(NAMES)
    (made / "mine").write_bytes(b"")
    assert retention._foreign(made, manifest) == ["mine, a file of someone else's"]


def test_a_manifest_of_a_table_is_small_and_is_opened_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make(tmp_path / "x", 0, monkeypatch)
    many = tuple(replace(next(iter(manifest.files)), path=f"{n:06d}") for n in range(4_000))
    artifact.write_manifest(str(tmp_path / "x"), replace(manifest, files=many))
    assert (tmp_path / "x" / "manifest.json").stat().st_size < 2000
    read, read_at_once = list[str](), storage.read_at_once

    def counted(path: str) -> bytes:
        read.append(path)
        return read_at_once(path)

    monkeypatch.setattr(storage, "read_at_once", counted)
    found = artifact.read_manifest(str(tmp_path / "x"))
    assert (len(found.files), found.size, bool(found.content_sha256)) == (4_000, 0, True)
    assert fingerprints.input_fingerprint(str(tmp_path / "x")) == "f"
    assert not any(path.endswith(TABLE) for path in read)
    assert tuple(found.files) == many
    assert sum(path.endswith(TABLE) for path in read) == 1


@pytest.mark.parametrize(
    ("damage", "state"), [(Path.unlink, "is missing"), (lambda p: p.write_bytes(b"ARROW1"), "sha")]
)
def test_a_lost_or_damaged_table_is_named(  # type: ignore[no-untyped-def]
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage, state: str
) -> None:
    make(tmp_path / "x", 0, monkeypatch)
    damage(tmp_path / "x" / TABLE)
    found = artifact.read_manifest(str(tmp_path / "x"))
    with pytest.raises(DataError, match=rf"x/manifest\.arrow .*{state}"):
        artifact.verify(str(tmp_path / "x"))
    assert len(found.files) == 4


def test_a_manifest_that_was_read_is_written_in_either_form(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = artifact.read_manifest(str(made))
    for limit in (0, 99):
        monkeypatch.setattr(artifact, "MOST_LISTED", limit)
        artifact.write_manifest(str(made), artifact.read_manifest(str(made)))
        again = artifact.read_manifest(str(made))
        assert isinstance(again.files, FileTable) == (limit == 0)
        assert [*again.files] == [*found.files]
        assert artifact.verify(str(made)).ok


def test_manifests_of_before_are_read(tmp_path: Path) -> None:
    files = [{"path": "a", "size": 1, "sha256": "0" * 64, "data": True}]
    old = {"stage": "corpus", "version": 3, "fingerprint": "f", "parents": {}, "config": {}}
    text = json.dumps({**old, "files": files, "format": 1, "content_sha256": "of the writer"})
    (tmp_path / "manifest.json").write_text(text)
    found = artifact.read_manifest(str(tmp_path))
    assert not isinstance(found.files, FileTable)
    assert found.content_sha256 == artifact.content_sha256(found.files)
