"""What is changed in a store: the named objects and no others, whatever characters a name has."""

from __future__ import annotations

import json
import signal
import subprocess
import threading

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, checkpoints, lock
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.launch import cancel_requests
from tests.object_store import Store


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
