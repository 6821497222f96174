"""When a builder trusts its lease in a store without asking the store."""

from __future__ import annotations

from types import SimpleNamespace

import fsspec
import pytest

from cloze.core import storage
from cloze.core.artifacts import lock
from cloze.core.errors import ClozeError
from tests.core.test_lease import Store


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of an empty store; nothing renews its leases."""
    fsspec.register_implementation("gated", Store, clobber=True)
    clock = SimpleNamespace(
        clock_gettime=lambda _: Store.now, CLOCK_MONOTONIC=1, sleep=lambda _: None
    )
    for owner, name, value in (
        (Store, "files", {}),
        (lock, "time", clock),
        (lock, "boot_id", lambda: ""),
        (lock.Lease, "keep", lambda self: None),
    ):
        monkeypatch.setattr(owner, name, value)
    return "gated://lately/out"


@pytest.mark.parametrize("is_conditional", [True, False])
def test_a_lease_written_lately_is_trusted_where_no_other_can_be_created(
    out: str, monkeypatch: pytest.MonkeyPatch, is_conditional: bool
) -> None:
    """A hundred checks ask a store with conditions nothing; a store without them, each time."""
    monkeypatch.setattr(Store, "is_conditional", is_conditional)
    asked: list[str] = []
    listed = storage.list_names

    def listing(path: str) -> list[str]:
        asked.append(path)
        return listed(path)

    monkeypatch.setattr(storage, "list_names", listing)
    with lock.locked(out) as check:
        asked.clear()
        for _ in range(100):
            check()
        assert len(asked) == (0 if is_conditional else 100)
        Store.now += lock.SURE_SECONDS + 1
        check()
        assert len(asked) == (1 if is_conditional else 101)


def test_a_renewal_that_comes_late_is_not_trusted(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its write another builder removes the lease and takes the lock."""
    write = storage.write_bytes

    def late(path: str, content: bytes) -> None:
        monkeypatch.setattr(storage, "write_bytes", write)
        Store.now += lock.LEASE_SECONDS + 1
        lock._take_lease(out)
        write(path, content)

    lease = lock._take_lease(out)
    monkeypatch.setattr(storage, "write_bytes", late)
    lease.renew()
    with pytest.raises(ClozeError, match="was taken over"):
        lock._check(out, lease)


def test_a_lease_of_a_machine_that_slept_is_not_trusted(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Linux sleeps, `time.monotonic` stands still, and the store's clock does not."""
    awake = {"monotonic": lambda: 1.0, "CLOCK_MONOTONIC": 1, "sleep": lambda _: None}
    asleep = SimpleNamespace(clock_gettime=lambda _: Store.now, **awake)
    monkeypatch.setattr(lock, "time", asleep)
    lease = lock._take_lease(out)
    was_sure = lease.is_sure
    Store.now += lock.LEASE_SECONDS + 1
    assert (was_sure, lease.is_sure) == (True, False)
    lock._take_lease(out)
    with pytest.raises(ClozeError, match="was taken over"):
        lock._check(out, lease)
