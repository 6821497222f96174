"""What is changed in a store: the named objects and no others, whatever characters a name has."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, checkpoints, claim, fingerprints, lineage, lock
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.launch import cancel_requests
from tests.object_store import Answer, Store


def write(store: Store, **contents: str) -> None:
    for name, content in contents.items():
        storage.write_bytes(store.path(name), content.encode())


@pytest.mark.parametrize("name", ["lr[1]", "lr?", "lr*"])
def test_a_path_with_wildcards_names_only_itself(store: Store, name: str) -> None:
    write(store, **{"exp/lr1/a": "other", f"exp/{name}/a": "own", f"exp/{name}/b/c": "own"})
    artifact.link_file(store.path("exp", name, "a"), store.path("linked", "a"))
    assert storage.list_files(store.path("linked")) == ["a"]
    assert storage.read_text(store.path("linked", "a")) == "own"
    storage.remove(store.path("exp", name, "a"))
    assert storage.list_files(store.path("exp")) == sorted(["lr1/a", f"{name}/b/c"])
    storage.move(store.path("exp", name), store.path("moved"))
    assert storage.list_files(store.path("exp")) == ["lr1/a"]
    write(store, **{f"exp/{name}/a": "own"})
    storage.remove(store.path("exp", name))
    assert storage.list_files(store.path("exp")) == ["lr1/a"]
    assert storage.list_files(store.path("moved")) == ["b/c"]


def test_a_moved_directory_replaces_the_target(store: Store) -> None:
    write(store, **{"a/x": "new", "a/deep/y": "new", "b/x": "earlier", "b/old": "earlier"})
    storage.list_files(store.path())  # listings answer for a while
    storage.move(store.path("a"), store.path("b"))
    assert storage.list_names(store.path()) == ["b"]
    assert storage.list_files(store.path("b")) == ["deep/y", "x"]
    assert storage.read_text(store.path("b", "x")) == "new"
    assert storage.stat(store.path("b", "x"))["size"] == len("new")


def test_a_damaged_checkpoint_is_set_aside(store: Store) -> None:
    steps = "run/checkpoints"
    write(store, **{f"{steps}/step-00000010/checkpoint.json": "{}"})
    for content in ("damaged", "damaged again"):  # its step may be saved again
        newest = f"{steps}/step-00000020"
        write(
            store, **{f"{newest}/training/state.json": content, f"{newest}/checkpoint.json": "{}"}
        )
        checkpoints.quarantine(store.path(newest))
        complete = checkpoints.complete_steps(store.path("run"))
        assert complete == [store.path(steps, "step-00000010")]
        quarantined = store.path(steps, "_damaged-step-00000020", "training/state.json")
        assert storage.read_text(quarantined) == content


def test_only_a_living_builder_of_this_boot_is_killed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease outlives its builder, whose process id may by then be that of another process."""
    patience = 0.5 - Execution().min_grace_seconds
    monkeypatch.setattr(cancel_requests, "PATIENCE_SECONDS", patience)
    monkeypatch.setitem(cancel_requests.POLL_SECONDS, False, 0.1)
    path, messages = store.path("run"), list[str]()
    with subprocess.Popen(["sleep", "100"]) as process:
        facts = {**lock.Lease("", 1.0).facts, "pid": process.pid}
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        facts["start"] = stat.rpartition(")")[2].split()[19]  # of the sleeper, not of this process
        facts["holder"] = f"process {process.pid} on {facts['host']}"
        try:
            write(store, **{"run/_lock/00000001": json.dumps({**facts, "boot": "an earlier one"})})
            with pytest.raises(DataError, match="is still held by process"):
                cancel_requests.cancel(path, messages.append)
            with monkeypatch.context() as patch:
                patch.setattr(lock, "LEASE_SECONDS", -1.0)
                with pytest.raises(UsageError, match="no process is building"):
                    cancel_requests.cancel(path, messages.append)
            assert process.poll() is None
            write(store, **{"run/_lock/00000001": json.dumps(facts)})
            threading.Thread(target=process.wait).start()  # else it stays as a zombie
            assert cancel_requests.cancel(path, messages.append)["state"] == "cancelled"
        finally:
            process.kill()
        assert process.returncode == -signal.SIGKILL


def manifest(**fields: Any) -> artifact.Manifest:
    defaults = {"stage": "toy", "version": 1, "fingerprint": "f", "parents": {}, "config": {}}
    return artifact.Manifest(**{**defaults, "files": (), **fields})


def test_credentials_may_be_limited_to_a_prefix(store: Store) -> None:
    def fault(kind: str, key: str, number: int) -> Answer:
        return None if key.startswith("team/") else (403, "AccessDenied")

    write(store, **{"team/a.tsv": "x", "team/run/checkpoints/step-00000010/a": "x"})
    artifact.write_manifest(store.path("team", "run"), manifest(parents={"corpus": "elsewhere"}))
    store.server.fault = fault
    file, part = store.path("team", "a.tsv"), store.path("team", "run", "checkpoints", "last")
    assert fingerprints.input_fingerprint(file)
    assert lineage.containing_artifact(file) == file
    assert fingerprints.input_fingerprint(part) == "f/checkpoints/last"
    assert lineage.containing_artifact(part) == store.path("team", "run")
    assert list(lineage.finished_ancestors(part)) == [store.path("team", "run")]
    with pytest.raises(ClozeError, match="ask for the right"):
        fingerprints.input_fingerprint(store.path("other", "a.tsv"))


def test_an_artifact_may_be_a_whole_bucket(store: Store) -> None:
    artifact.write_manifest(store.path(), manifest())
    assert fingerprints.part_fingerprint(store.path("checkpoints", "last")) == "f/checkpoints/last"
    assert lineage.containing_artifact(store.path("checkpoints", "last")) == store.path()


def test_files_and_other_directories_of_a_bucket_are_not_asked_for(store: Store) -> None:
    artifact.write_manifest(store.path("raw", "run"), manifest(parents={"corpus": "missing"}))
    artifact.write_manifest(store.path("raw", "other"), manifest(fingerprint="o"))
    write(store, **{f"raw/{number}.txt": "x" for number in range(20)})
    write(store, **{f"crawl/{number}/a.txt": "x" for number in range(20)})
    store.server.requests.clear()
    assert list(lineage.finished_ancestors(store.path("raw", "run"))) == [store.path("raw", "run")]
    assert not [request.key for request in store.server.requests if ".txt" in request.key]
    assert not [request.key for request in store.server.requests if "crawl/" in request.key]
    assert lineage.NearbyArtifacts(store.path("raw", "run")).find("o") == store.path("raw", "other")


def test_a_folder_of_a_console_is_no_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 lists the empty object `out/` of such a folder; the server of the tests has none."""
    import s3fs

    listing = s3fs.S3FileSystem._iterdir

    async def with_folder(fs: Any, bucket: str, *arguments: Any, **more: Any) -> Any:
        folder = {"Key": "out/", "Size": 0, "size": 0, "type": "file"}
        fs._fill_info(folder, bucket)
        yield folder
        async for info in listing(fs, bucket, *arguments, **more):
            yield info

    monkeypatch.setattr(s3fs.S3FileSystem, "_iterdir", with_folder)
    claim.check_not_foreign(store.path("out"))
    write(store, **{"out/a": "x"})
    assert storage.list_files(store.path("out")) == ["a"]


def test_a_linked_file_is_not_read_again(store: Store) -> None:
    write(store, **{"old/a.arrow": "content", "new/other": "x"})
    (entry,) = artifact.hash_files(store.path("old"), ["a.arrow"])
    store.server.requests.clear()
    with storage.hashing_written(store.path("new/")) as written:
        fingerprints.link_unchanged(store.path("old"), entry, store.path("new", "b.arrow"))
        write(store, **{"new/c.arrow": "content"})
    assert written["b.arrow"] == written["c.arrow"] == (entry.sha256, entry.size)
    assert store.server.totals()["read"] == 0
    assert storage.sha256(store.path("new", "b.arrow"))[0] == entry.sha256
