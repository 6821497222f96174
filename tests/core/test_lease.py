"""Builders of one artifact in a store, stopped, killed and cut off at any request: no two of them
ever write into it.

The machine runs `execute` itself in threads that stop before each request to a store with a clock
of its own. A check of the right to write and the request that follows it count as one step: a store
whose conditions are about one object can give no more.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import hypothesis.strategies as st
import pytest
from fsspec.spec import AbstractFileSystem
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cloze.core import storage
from cloze.core.artifacts import artifact, fence, lock
from cloze.core.config import StageConfig
from cloze.core.errors import ClozeError
from cloze.core.stages.execute import execute
from cloze.core.stages.stage import BuildContext, Stage, StageResult

FILES = 2


class Killed(BaseException):
    """The process of a contender is no more."""


class Gate:
    """A thread that runs a contender's program, one request at a time."""

    current = threading.local()

    def __init__(self, program: Callable[[], None]) -> None:
        self.killed = self.is_over = False
        self.outcome: BaseException | None = None
        self._go, self._here = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self._thread.start()
        assert self._here.acquire(timeout=30)

    def _run(self, program: Callable[[], None]) -> None:
        Gate.current.gate = self
        try:
            self.wait()
            program()
        except BaseException as error:
            self.outcome = error
        self.is_over = True
        self._here.release()

    def wait(self) -> None:
        """Stop here until the machine lets the thread go on."""
        if not self.killed:
            self._here.release()
            self._go.acquire()
        if self.killed:
            raise Killed

    def step(self) -> None:
        if not self.is_over:
            self._go.release()
            assert self._here.acquire(timeout=30)

    def kill(self) -> None:
        self.killed = True
        if not self.is_over:
            self._go.release()
            self._thread.join(30)


class Store(AbstractFileSystem):
    """A store in memory, strongly consistent as S3 and GCS are, with a clock that the
    machine sets.
    """

    protocol = "gated"
    files: ClassVar[dict[str, tuple[bytes, float]]] = {}
    now = 0.0
    is_conditional = True  # else it takes no notice of conditions

    @staticmethod
    def request() -> None:
        gate = getattr(Gate.current, "gate", None)
        if gate is not None and not getattr(Gate.current, "checking", False):
            gate.wait()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create":
            self.request()
            if Store.is_conditional and path in Store.files:
                raise FileExistsError(path)
        Store.files[path] = value, Store.now

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return io.BytesIO(self.cat_file(path))

    def cat_file(self, path: str, *_: Any, **__: Any) -> bytes:
        self.request()
        path = self._strip_protocol(path)
        if path not in Store.files:
            raise FileNotFoundError(path)
        return Store.files[path][0]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self.request()
        root = self._strip_protocol(path).rstrip("/") + "/"
        names = {
            root + name[len(root) :].split("/", 1)[0]
            for name in Store.files
            if name.startswith(root)
        }
        if not names:
            raise FileNotFoundError(path)
        if not detail:
            return sorted(names)
        kinds = {name: "file" if name in Store.files else "directory" for name in names}
        return [{"name": name, "type": kinds[name]} for name in sorted(names)]

    def find(self, path: str, *_: Any, **__: Any) -> dict[str, dict[str, Any]]:
        self.request()
        root = self._strip_protocol(path).rstrip("/") + "/"
        return {name: {"name": name} for name in sorted(Store.files) if name.startswith(root)}

    def exists(self, path: str, **_: Any) -> bool:
        self.request()
        path = self._strip_protocol(path)
        return path in Store.files or any(
            name.startswith(path.rstrip("/") + "/") for name in Store.files
        )

    def isdir(self, path: str) -> bool:
        return self.exists(path) and self._strip_protocol(path) not in Store.files

    def modified(self, path: str) -> datetime:
        self.request()
        path = self._strip_protocol(path)
        if path not in Store.files:
            raise FileNotFoundError(path)
        return datetime.fromtimestamp(Store.files[path][1], timezone.utc)

    def rm(self, path: str, recursive: bool = False, maxdepth: Any = None) -> None:
        path = self._strip_protocol(path)
        for name in [
            name for name in Store.files if name == path or name.startswith(path.rstrip("/") + "/")
        ]:
            del Store.files[name]

    def rm_file(self, path: str) -> None:
        Store.files.pop(self._strip_protocol(path), None)


class Config(StageConfig):
    owner: int = 0


def run(config: Config, build: BuildContext) -> StageResult:
    """Write files whose names are the same for all settings, and one whose name is not."""
    for name in (*(f"part-{number}" for number in range(FILES)), f"of-{config.owner}"):
        storage.write_bytes(build.file(name), f"{config.owner}".encode())
    return StageResult(rows=config.owner)


STAGE = Stage(name="toy", version=1, config=Config, run=run)


class Contenders(RuleBasedStateMachine):
    """Two or three builders; the clock goes on as it likes, and so does each of them."""

    @initialize(owners=st.sampled_from([(1, 2), (1, 2, 1), (1, 1)]), forced=st.booleans())
    def begin(self, owners: tuple[int, ...], forced: bool) -> None:
        Store.files, Store.now = {}, 0.0
        self.out = "gated://store/art"
        numbers = itertools.count()
        lock.uuid = SimpleNamespace(  # type: ignore[assignment]
            uuid4=lambda: SimpleNamespace(
                hex=hashlib.sha256(f"{next(numbers)}".encode()).hexdigest()[:32]
            )
        )
        self.forced = forced
        self.leases: dict[int, lock.Lease] = {}
        self.checks: dict[int, Callable[[], None]] = {}
        self.renewals: dict[int, Gate] = {}
        self.gates: list[Gate] = []
        for number, owner in enumerate(owners):
            self.gates.append(Gate(lambda number=number, owner=owner: self.build(number, owner)))  # type: ignore[misc]

    def build(self, number: int, owner: int) -> None:
        Gate.current.number = number
        Gate.current.machine = self
        execute(STAGE, Config(owner=owner), {}, self.out, force=self.forced)

    def _alive(self) -> list[int]:
        return [number for number, gate in enumerate(self.gates) if not gate.is_over]

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), steps=st.sampled_from([1, 2, 3, 5, 8, 13, 21, 34, 55]))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        self._go_on(data, steps)

    def _go_on(self, data: st.DataObject, steps: int) -> None:
        gate = self.gates[data.draw(st.sampled_from(self._alive()))]
        for _ in range(steps):
            gate.step()
            self.at_most_one_may_write()
            self.a_finished_artifact_is_one_builders()

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """A request of a holder's renewing thread, which may be stopped between two, too."""
        number = data.draw(st.sampled_from(self._alive()))
        if number in self.leases:
            if number not in self.renewals or self.renewals[number].is_over:
                self.renewals[number] = Gate(self.leases[number].renew)
            self.renewals[number].step()

    @precondition(lambda self: len(self._alive()) > 1)
    @rule(data=st.data(), steps=st.integers(15, 60))
    def be_cut_off(self, data: st.DataObject, steps: int) -> None:
        """All are silent for longer than a lease lasts; one of them is the first who goes on."""
        Store.now += lock.LEASE_SECONDS + 1
        self._go_on(data, steps)

    @rule()
    def pass_time(self) -> None:
        Store.now += 1.0

    @precondition(lambda self: len(self._alive()) > 1)
    @rule(data=st.data(), chance=st.integers(0, 7))
    def kill(self, data: st.DataObject, chance: int) -> None:
        if chance:
            return
        number = data.draw(st.sampled_from(self._alive()))
        self.gates[number].kill()
        if number in self.renewals:
            self.renewals[number].kill()
        self.leases.pop(number, None)
        self.checks.pop(number, None)

    @invariant()
    def at_most_one_may_write(self) -> None:
        allowed = []
        for number, check in getattr(self, "checks", {}).items():
            try:
                check()
                allowed.append(number)
            except ClozeError:
                continue
        assert len(allowed) <= 1, allowed

    @invariant()
    def a_finished_artifact_is_one_builders(self) -> None:
        if artifact.MANIFEST in {name.rsplit("/", 1)[-1] for name in Store.files}:
            manifest = artifact.read_manifest(self.out)
            owner = manifest.config["owner"]
            assert {entry.path for entry in manifest.files} == {
                *(f"part-{number}" for number in range(FILES)),
                f"of-{owner}",
            }
            root = self.out.removeprefix("gated://") + "/"
            contents = {
                name: content for name, (content, _) in Store.files.items() if name.startswith(root)
            }
            assert {contents[root + entry.path] for entry in manifest.files} == {
                str(owner).encode()
            }

    @invariant()
    def nobody_fails_of_anything_else(self) -> None:
        for gate in getattr(self, "gates", ()):
            assert gate.outcome is None or isinstance(gate.outcome, (Killed, ClozeError)), repr(
                gate.outcome
            )

    def teardown(self) -> None:
        """Whatever was left behind, the next builder finishes."""
        for gate in (*getattr(self, "gates", ()), *getattr(self, "renewals", {}).values()):
            gate.kill()
        if not hasattr(self, "out"):
            return
        Store.now += lock.LEASE_SECONDS + 1
        made = execute(STAGE, Config(owner=3), {}, self.out, force=True)
        assert made.manifest.rows == 3
        assert artifact.verify(self.out).ok
        assert not [name for name in Store.files if "/_" in name]


def late_creation(machine: Contenders) -> None:
    """One builder finds no lease, and creates its own after another's, which it did not see."""
    machine.begin(owners=(1, 2), forced=True)
    for number, steps in ((1, 3), (0, 15), (1, 3)):
        for _ in range(steps):
            machine.gates[number].step()
            machine.at_most_one_may_write()
    machine.teardown()


@pytest.mark.parametrize("is_conditional", [True, False])
def test_no_sequence_of_stale_leases_and_kills_lets_two_write(
    monkeypatch: pytest.MonkeyPatch, is_conditional: bool
) -> None:
    monkeypatch.setattr(Store, "is_conditional", is_conditional)
    fsspec.register_implementation("gated", Store, clobber=True)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(fence, "FRESH_SECONDS", 0.0)  # a check counts for one change
    check_right = storage.check_right

    def checked(path: str) -> None:
        """Stop before the check, and not again before the change that it allows."""
        if getattr(Gate.current, "gate", None) is not None:
            Gate.current.gate.wait()
            Gate.current.checking = True
        try:
            check_right(path)
        finally:
            Gate.current.checking = False

    def keep(self: lock.Lease) -> None:
        """The machine renews, in place of a thread."""
        number = getattr(Gate.current, "number", None)
        if number is not None:
            machine: Contenders = Gate.current.machine
            machine.leases[number] = self
            machine.checks[number] = lambda: lock._check(machine.out, self)

    clock = SimpleNamespace(
        clock_gettime=lambda _: Store.now, CLOCK_MONOTONIC=1, sleep=lambda _: None
    )
    monkeypatch.setattr(lock, "time", clock)  # all clocks agree
    monkeypatch.setattr(lock, "uuid", lock.uuid)  # the machine makes tokens that it can repeat
    monkeypatch.setattr(storage, "check_right", checked)
    monkeypatch.setattr(lock.Lease, "keep", keep)
    monkeypatch.setattr(lock, "boot_id", lambda: "")  # else a killed owner counts as alive
    late_creation(Contenders())
    run_state_machine_as_test(
        Contenders,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
