"""Sources and artifacts on an S3-compatible server: nothing half-made is ever seen, and of several
builders one wins. (`test_same_bytes.py` has that the content is the same.)
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints, lock
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.pipeline.corpus.sources import Source, list_sources, source_fingerprints
from tests import warm
from tests.flows.test_cli import cloze
from tests.object_store import Store
from tests.pipeline.runners.units import within

BLOCK = b"x" * (1 << 20)


def test_a_file_is_whole_or_not_there(store: Store) -> None:
    path = store.path("art", "big.bin")

    class Cut(Exception):
        pass

    for blocks in (1, 60):  # within one request, and as an upload of several parts
        with pytest.raises(Cut), storage.atomic_output(path) as stream:
            for _ in range(blocks):
                stream.write(BLOCK)
            raise Cut
        assert not storage.exists(path)
        assert store.pending() == []  # nor is anything left that would be billed
    with storage.atomic_output(path) as stream:
        for _ in range(60):
            stream.write(BLOCK)
    assert storage.sha256(path)[1] == 60 * len(BLOCK)


@pytest.mark.soak
def test_a_killed_upload_is_never_seen(store: Store) -> None:
    path = store.path("art", "big.bin")
    script = (
        "import sys, time; from cloze.core import storage\n"
        f"with storage.atomic_output({path!r}) as stream:\n"
        "    for _ in range(60): stream.write(b'x' * (1 << 20))\n"
        "    print('begun', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [warm.python(), "-c", script], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        assert store.pending() == ["art/big.bin"]
        warm.kill(writer)
    assert not storage.exists(path)
    assert storage.list_files(store.path("art")) == []


@pytest.mark.soak
def test_a_stage_killed_while_it_writes_goes_on(store: Store, library: Path, samples: Path) -> None:
    dump, out = store.upload(library, "dump"), store.path("made", "corpus")
    script = "import sys; from cloze.flows.cli import entry; sys.argv[0] = 'cloze'; entry()"
    command = [warm.python(), "-c", script, "corpus", "--source", f"books={dump}", "--out", out]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as stage_process:
        assert within(
            60, lambda: any(name.startswith("_scratch/read/") for name in storage.list_files(out))
        )
        warm.kill(stage_process)
    assert not artifact.is_artifact(out)
    again = cloze("corpus", "--source", f"books={dump}", "--out", out, "--json", cwd=samples)
    assert again.returncode == 0, again.stderr
    assert artifact.verify(out).ok


def test_one_builder_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.2)
    out = store.path("art")
    with lock.locked(out) as still_ours:
        still_ours()
        with (
            pytest.raises(
                UsageError, match=r"is being built by process \d+ on .*; wait for it or stop it"
            ),
            lock.locked(out),
        ):
            pass
        still_ours()
    assert storage.list_files(out) == []


RACE = """
import sys
from cloze.core.artifacts import lock
from cloze.core.errors import UsageError

lock.RENEW_SECONDS = lock.POLL_SECONDS = 0.05
lock.SURE_SECONDS = 0.0
print("ready", flush=True)
while path := sys.stdin.readline().strip():
    try:
        with lock.locked(path) as still_ours:
            print("held", flush=True)
            sys.stdin.readline()  # all others have answered
            still_ours()
    except UsageError as error:
        print(error, flush=True)
"""


def test_of_processes_that_begin_at_once_one_wins_and_keeps_the_lock(store: Store) -> None:
    """Many times: what the store lets through is decided by one conditional request."""
    racers = [
        subprocess.Popen(
            [warm.python(), "-c", RACE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        assert [racer.stdout.readline() for racer in racers if racer.stdout] == ["ready\n"] * 3
        pids = [warm.real(racer.pid) for racer in racers]
        for number in range(6):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{store.path(f'art-{number}')}\n")
                racer.stdin.flush()
            answers = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
            assert answers.count("held") == 1, answers
            winner = racers[answers.index("held")]
            losers = [answer for answer in answers if answer != "held"]
            named = f"is being built by process {pids[answers.index('held')]} on "
            assert all(named in answer for answer in losers), answers
            assert winner.stdin is not None
            winner.stdin.write("\n")
            winner.stdin.flush()
    finally:
        for racer in racers:
            racer.communicate()
    created = [request for request in store.server.requests if request.status == 412]
    assert created  # some races were decided by the condition


def test_several_at_once_and_one_wins(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.2)
    held, refused = [], []

    def build() -> None:
        try:
            with lock.locked(store.path("art")):
                held.append(1)
                assert within(60, lambda: len(refused) == 3)
        except UsageError:
            refused.append(1)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 3)


def test_of_two_who_wait_for_a_dead_builder_one_takes_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that takes over is slow to remove the dead lock, and the other waits meanwhile."""
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.2)
    out = store.path("art")
    script = (
        f"import os; from cloze.core.artifacts import lock\nwith lock.locked({out!r}): "
        f"os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([warm.python(), "-c", script]).returncode == -9
    remove, inside, most, answers = storage.remove_file, 0, 0, list[str]()
    paused, waited_for, refused = threading.Event(), threading.Event(), threading.Event()

    def slow_remove(path: str) -> None:
        if threading.current_thread().name == "slower" and not paused.is_set():
            paused.set()
            assert waited_for.wait(60)
        remove(path)

    def poll(seconds: float) -> None:
        waited_for.set()
        time.sleep(seconds)

    def build() -> None:
        nonlocal inside, most
        try:
            with lock.locked(out):
                inside += 1
                most = max(most, inside)
                assert refused.wait(60)
                inside -= 1
            answers.append("held")
        except UsageError:
            answers.append("refused")
            refused.set()

    clock = SimpleNamespace(
        clock_gettime=time.clock_gettime, CLOCK_MONOTONIC=time.CLOCK_MONOTONIC, sleep=poll
    )
    monkeypatch.setattr(lock, "time", clock)
    monkeypatch.setattr(storage, "remove_file", slow_remove)
    threads = [threading.Thread(target=build, name=name) for name in ("slower", "faster")]
    threads[0].start()
    assert paused.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert (most, sorted(answers)) == (1, ["held", "refused"])


def test_a_dead_builders_lock_is_taken_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    out = store.path("art")
    path = store.path("art", lock.LOCK, "00000007")
    dead = {
        "token": "t",
        "holder": "process 1 on elsewhere",
        "count": 3,
        "host": "elsewhere",
        "pid": 1,
        "boot": "other",
    }
    storage.write_bytes(path, json.dumps(dead).encode())
    moved = 0.0

    def sleep(_: float) -> None:
        nonlocal moved
        moved += 8

    with monkeypatch.context() as patch:  # a clock of the store that goes on where a builder waits
        clock = SimpleNamespace(
            clock_gettime=time.clock_gettime, CLOCK_MONOTONIC=time.CLOCK_MONOTONIC, sleep=sleep
        )
        patch.setattr(lock, "time", clock)
        patch.setattr(storage, "mtime", lambda path: moved if lock.PROBE in path else 0.0)
        with lock.locked(out):
            assert moved == 32  # the first that is more than `LEASE_SECONDS`
    monkeypatch.setattr(lock, "SURE_SECONDS", 0.0)
    script = (
        f"import os; from cloze.core.artifacts import lock\nwith lock.locked({out!r}): "
        f"os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([warm.python(), "-c", script]).returncode == -9
    with lock.locked(out) as still_ours:  # a process of this machine that is no more: at once
        storage.write_bytes(path, json.dumps(dead).encode())
        with pytest.raises(ClozeError, match="was taken over by process 1 on elsewhere"):
            still_ours()


def test_sources_are_known_by_the_stores_tag_and_not_downloaded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dump").mkdir()
    for name in ("one.txt", "two.txt"):
        (tmp_path / "dump" / name).write_text(f"Some prose of {name}.\n")
    first, moved = (
        store.upload(tmp_path / "dump", "dump"),
        store.upload(tmp_path / "dump", "moved"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(storage, "open_input", lambda path: pytest.fail(f"{path} was read"))
        before = fingerprints.input_fingerprint(first)
        one = fingerprints.input_fingerprint(f"{first}/one.txt")
        assert fingerprints.input_fingerprint(moved) == before  # it is the content that counts
        source = Source(kind="books", path=first)
        both = list_sources([source, Source(kind="books", path=moved)])
        assert source_fingerprints(list_sources([source]).slices) == source_fingerprints(
            both.slices
        )
    (tmp_path / "dump" / "one.txt").write_text("Other words of one.txt\n")
    store.upload(tmp_path / "dump", "dump")
    assert fingerprints.input_fingerprint(first) != before
    assert fingerprints.input_fingerprint(f"{first}/one.txt") != one


def test_what_cannot_be_reached_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"s3://bucket-.*/none does not exist"):
        storage.read_text(store.path("none"))
    with pytest.raises(
        UsageError,
        match=r"s3://no-such-bucket/x cannot be written \(The specified bucket does not exist\)",
    ):
        storage.write_bytes("s3://no-such-bucket/x", b"")
    with pytest.raises(
        UsageError,
        match=r"wasb2://x/y: Protocol not known: wasb2; use a local path, s3://, gs:// or hf://",
    ):
        storage.exists("wasb2://x/y")
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(
        ClozeError,
        match=(
            r"cannot be reached \(Could not connect .*127.0.0.1:9.*; check the store's address "
            r"\(AWS_ENDPOINT_URL\)"
        ),
    ):
        storage.exists(store.path("x"))
