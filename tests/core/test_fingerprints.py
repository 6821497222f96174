"""Fingerprints of inputs: content counts, whatever its place; files are read once; a store's tag
does where there is one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, claim, fingerprints
from cloze.core.errors import DataError


def test_a_files_fingerprint_is_the_sha256_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    assert (
        fingerprints.input_fingerprint(str(tmp_path / "a")) == hashlib.sha256(b"text").hexdigest()
    )


def test_a_directory_counts_with_names_and_contents_and_without_the_builders_files(
    tmp_path: Path,
) -> None:
    for place in ("one", "two"):
        (tmp_path / place / "sub").mkdir(parents=True)
        (tmp_path / place / "sub" / "a").write_text("text")
    (tmp_path / "two" / "_logs").mkdir()
    (tmp_path / "two" / "_logs" / "rank0.log").write_text("chatter")
    one, two = (fingerprints.input_fingerprint(str(tmp_path / place)) for place in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "sub" / "a").rename(tmp_path / "two" / "sub" / "b")
    assert fingerprints.input_fingerprint(str(tmp_path / "two")) != one
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is an empty directory"):
        fingerprints.input_fingerprint(str(tmp_path / "empty"))


def test_a_file_is_read_again_only_where_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("text")
    first = fingerprints.file_hashes([str(path)])
    with monkeypatch.context() as patch:
        patch.setattr(storage, "open_input", lambda path: pytest.fail(f"{path} was read"))
        assert fingerprints.file_hashes([str(path)]) == first
    path.write_text("more")
    os.utime(path, (1, 1))
    assert fingerprints.file_hashes([str(path)]) != first


def test_each_hash_is_remembered_before_the_next_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)

    read, whole = list[str](), storage.sha256

    def asked(path: str) -> tuple[str, int]:
        """Look into the memory from outside, as another process does, before each file is read."""
        time.sleep(1.5 * fingerprints.COMMIT_SECONDS)
        if read:
            database = tmp_path / "cache" / "cloze" / "file-hashes.sqlite"
            with contextlib.closing(
                sqlite3.connect(database, timeout=0, isolation_level=None)
            ) as other:
                assert other.execute("SELECT count(*) FROM hashes").fetchone() == (len(read),)
                # nobody else holds the database
                other.execute("DELETE FROM hashes WHERE path = 'nobody'")
        read.append(path)
        return whole(path)

    monkeypatch.setattr(storage, "sha256", asked)
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert len(fingerprints.file_hashes(paths)) == 3
    assert read == paths


def test_a_memory_that_another_program_locks_costs_no_waiting_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = [tmp_path / f"{number}" for number in range(20)]
    for name in names:
        name.write_text(name.name)
    monkeypatch.setattr(fingerprints, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(fingerprints, "WAIT_SECONDS", 0.3)
    fingerprints.file_hashes(map(str, names[:1]))
    refused = []

    class Noted(sqlite3.Connection):
        """Notes each time that it has waited in vain."""

        def executemany(self, *given: Any) -> sqlite3.Cursor:
            try:
                return super().executemany(*given)
            except sqlite3.OperationalError as error:
                refused.append(str(error))
                raise

    connect = functools.partial(sqlite3.connect, factory=Noted)
    monkeypatch.setattr(
        fingerprints, "sqlite3", SimpleNamespace(connect=connect, Error=sqlite3.Error)
    )
    database = tmp_path / "cache" / "cloze" / "file-hashes.sqlite"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(fingerprints.file_hashes(map(str, names))) == len(names)
    assert refused == ["database is locked"]


def test_a_store_without_tags_is_read() -> None:
    storage.write_bytes("memory://fingerprints/a", b"text")
    path = "memory://fingerprints/a"
    assert storage.etag(path) is None
    assert fingerprints.file_fingerprints([path]) == {path: hashlib.sha256(b"text").hexdigest()}


def test_a_store_without_tags_is_read_once_while_size_and_time_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = [f"memory://once/{number}" for number in range(3)]
    for path in paths:
        storage.write_bytes(path, path.encode())
    read, original = list[str](), storage.sha256
    monkeypatch.setattr(storage, "sha256", lambda path: (read.append(path), original(path))[1])
    hashes = [fingerprints.file_fingerprints(paths)]  # written just now: not remembered
    monkeypatch.setattr(fingerprints, "SURE_AGE", -1.0)
    hashes += [fingerprints.file_fingerprints(paths) for _ in range(2)]
    assert hashes[0] == hashes[1] == hashes[2]
    assert sorted(read) == sorted(2 * paths)
    storage.write_bytes(paths[0], b"more")
    assert fingerprints.file_fingerprints(paths)[paths[0]] == hashlib.sha256(b"more").hexdigest()
    assert read[6:] == paths[:1]


@pytest.mark.parametrize(
    ("info", "tag"),
    [
        ({"size": 3, "ETag": '"abc"', "LastModified": "today"}, "abc 3"),
        ({"size": 3, "etag": "CJ==", "md5Hash": "m", "crc32c": "c"}, "m 3"),
        ({"size": 3, "etag": 'W/"abc"'}, None),
        ({"size": 3, "ETag": None}, None),
    ],
)
def test_tags_of_stores(
    info: dict[str, object], tag: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As s3fs, gcsfs and fsspec's HTTP file system give them."""
    monkeypatch.setattr(storage, "stat", lambda path: info)
    assert storage.etag("s3://bucket/a") == tag


def finished(path: Path, fingerprint: str) -> Path:
    path.mkdir(parents=True)
    manifest = artifact.Manifest(
        stage="pretrain", version=1, fingerprint=fingerprint, parents={}, config={}, files=()
    )
    artifact.write_manifest(str(path), manifest)
    return path


def test_a_part_of_an_artifact_goes_by_the_artifacts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is there or not: a plan knows it before, and a cached result after it was pruned.
    No byte is read.
    """
    run = finished(tmp_path / "runs" / "pretrain-ab", "ab12")
    part = run / "checkpoints" / "step-00008000"
    assert fingerprints.input_fingerprint(str(part)) == "ab12/checkpoints/step-00008000"
    (part / "tokenizer").mkdir(parents=True)
    (part / "tokenizer" / "vocab.txt").write_text("a")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "sha256", lambda path: pytest.fail(f"{path} was read"))
        assert fingerprints.input_fingerprint(f"{part}/") == "ab12/checkpoints/step-00008000"
        assert (
            fingerprints.input_fingerprint(str(part / "tokenizer"))
            == "ab12/checkpoints/step-00008000/tokenizer"
        )
        (tmp_path / "runs" / "pretrain").symlink_to("pretrain-ab")
        monkeypatch.chdir(tmp_path / "runs" / "pretrain" / "checkpoints")
        assert fingerprints.input_fingerprint("step-00008000") == "ab12/checkpoints/step-00008000"
        assert (
            fingerprints.input_fingerprint("../checkpoints/step-00008000")
            == "ab12/checkpoints/step-00008000"
        )
    assert fingerprints.input_fingerprint(str(run)) == "ab12"
    assert (
        fingerprints.artifact_fingerprint_of("ab12/checkpoints/step-00008000")
        == "ab12"
        == fingerprints.artifact_fingerprint_of("ab12")
    )
    assert fingerprints.subpath_of("ab12/checkpoints/step-00008000") == "checkpoints/step-00008000"
    assert fingerprints.subpath_of("ab12") == ""


def test_a_part_of_an_unfinished_artifact_has_the_name_it_will_have(tmp_path: Path) -> None:
    run = tmp_path / "pretrain-cd"
    claim.claim_directory(str(run), claim.Claim("pretrain", "cd34"), force=False)
    assert (
        fingerprints.input_fingerprint(str(run / "checkpoints" / "step-00000100"))
        == "cd34/checkpoints/step-00000100"
    )
    finished(tmp_path / "other", "ef").joinpath(claim.BUILDING).write_text("{}")
    assert fingerprints.input_fingerprint(str(tmp_path / "other" / "a")) == "ef/a"


def test_what_lies_elsewhere_counts_by_its_bytes(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "ab12")
    (tmp_path / "copy" / "deep").mkdir(parents=True)
    (tmp_path / "copy" / "deep" / "a").write_text("text")
    (run / "_scratch").mkdir()
    (run / "_scratch" / "a").write_text("text")
    (run / "1" / "2" / "3").mkdir(parents=True)
    (run / "1" / "2" / "3" / "a").write_text("text")
    for path in ("copy/deep/a", "run/_scratch/a", "run/1/2/3/a"):
        assert (
            fingerprints.input_fingerprint(str(tmp_path / path))
            == hashlib.sha256(b"text").hexdigest()
        )
    with pytest.raises(DataError, match="does not exist"):
        fingerprints.input_fingerprint(str(tmp_path / "nowhere" / "checkpoints" / "step-00000001"))
    storage.write_bytes("memory://parts/a", b"text")
    assert fingerprints.input_fingerprint("memory://parts/a") == hashlib.sha256(b"text").hexdigest()


def test_files_of_a_store_are_seen_by_their_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a file that is replaced while a stage reads it is found, with or without tags."""
    paths = ["memory://seen/a", "memory://seen/b"]
    tags = dict.fromkeys(paths, "1 4")
    for has_tags in (True, False):
        for path in paths:
            storage.write_bytes(path, b"text")
        monkeypatch.setattr(storage, "etag", lambda path, on=has_tags: tags[path] if on else None)
        with fingerprints.watching() as before:
            first = fingerprints.file_fingerprints(paths)
        assert {path: seen.fingerprint for path, seen in before.items()} == first
        assert [seen.stamp for seen in before.values()] == [None, None]
        tags["memory://seen/b"] = "2 5"
        storage.write_bytes("memory://seen/b", b"other")
        with fingerprints.watching(before) as now:
            fingerprints.file_fingerprints(paths)
        assert fingerprints.difference(before, before) is None
        assert fingerprints.difference(before, now) == ("memory://seen/b changed while it was read")


def test_a_difference_names_the_first_file_and_its_sizes() -> None:
    def seen(**files: tuple[int | None, str]) -> dict[str, fingerprints.Seen]:
        return {
            name: fingerprints.Seen(None if size is None else (size, 0), sha256)
            for name, (size, sha256) in files.items()
        }

    before = seen(a=(1000, "x"), b=(2000, "y"), c=(None, "z"))
    assert fingerprints.difference(before, before) is None
    for now, says in (
        (seen(a=(1000, "x"), b=(2500, "w"), c=(5, "v")), "b changed while it was read (2,000 bytes before, 2,500 now)"),
        (seen(a=(1000, "w"), b=(2000, "y"), c=(5, "z")), "a changed while it was read"),
        (seen(a=(1000, "x"), b=(2000, "y"), c=(5, "v")), "c changed while it was read"),
        ({**before, **seen(e=(1, "e"), d=(1, "d"))}, "d was added while its directory was read"),
        (seen(c=(None, "z")), "a was removed while its directory was read"),
    ):  # fmt: skip
        assert fingerprints.difference(before, now) == says


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fingerprints.file_hashes([str(tmp_path / "none")])
    assert str(caught.value) == (
        f"{tmp_path}/none cannot be read (No such file or directory); check the path"
    )
