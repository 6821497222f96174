"""Slots: shared by the processes of a machine, freed by the kernel when their holder dies, given in
the order of asking.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.graph import stages
from cloze.flows.graph.schedule import resource_request
from cloze.flows.machine import slots
from cloze.flows.machine.slots import MachineResources, ResourceRequest

ONE_GPU = MachineResources(cores=("0", "1", "2", "3"), gpus=("0",))
HOLDER = """
    import sys, time
    from cloze.flows.machine import slots
    with slots.acquire(slots.ResourceRequest(gpus=1, cpus=2), slots.MachineResources(cores=("0", "1", "2", "3"), gpus=("0",)), "other", "pretrain@1", lambda: False, lambda: None):
        print("has it", flush=True)
        time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))


@contextlib.contextmanager
def taken(
    wanted: ResourceRequest,
    machine: MachineResources = ONE_GPU,
    node: str = "finetune",
    stop: bool = False,
) -> Iterator[tuple[str, ...]]:
    with slots.acquire(wanted, machine, "mine", node, lambda: stop, lambda: None) as gpu_ids:
        yield gpu_ids


@contextlib.contextmanager
def another_process() -> Iterator[subprocess.Popen[str]]:
    """One that holds the only GPU and two cores."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "has it\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_processes_never_share_a_gpu_and_a_killed_one_lets_go() -> None:
    got = threading.Event()

    def take() -> None:
        with taken(ResourceRequest(gpus=1)):
            got.set()

    with another_process() as other:
        assert {(one.slot, one.pid, one.run, one.node) for one in slots.holders()} == {
            (slot, other.pid, "other", "pretrain@1") for slot in ("gpu-0", "cpu-0", "cpu-1")
        }
        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(3 * slots.POLL_SECONDS)
        assert not got.is_set()
        os.kill(other.pid, signal.SIGKILL)
        assert got.wait(10)
        thread.join()
    assert slots.holders() == []


def test_what_is_free_beside_another_is_given() -> None:
    with another_process(), taken(ResourceRequest(cpus=2)) as gpu_ids:
        assert gpu_ids == ()
        mine = {one.slot for one in slots.holders() if one.pid == os.getpid()}
        assert mine == {"cpu-2", "cpu-3"}


def test_all_or_none_and_given_back_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), taken(ResourceRequest(gpus=1, cpus=4)) as gpu_ids:
        assert gpu_ids == ("0",)
        raise ZeroDivisionError
    with taken(ResourceRequest(cpus=4)):
        assert len(slots.holders()) == 4


def test_who_waits_can_be_stopped_and_waiting_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PATIENCE_SECONDS", 0.0)
    told: list[int] = []
    second = slots.acquire(
        ResourceRequest(gpus=1), ONE_GPU, "mine", "b", lambda: len(told) > 0, lambda: told.append(1)
    )
    with taken(ResourceRequest(gpus=1)), pytest.raises(KeyboardInterrupt), second:
        raise AssertionError("two have it")
    assert told == [1]


def test_who_wants_many_is_not_passed_by_those_who_want_few() -> None:
    """One core is free, and the first in the queue wants two: whoever comes after it waits behind
    it.
    """
    machine, order = MachineResources(cores=("0", "1"), gpus=()), []

    def take(name: str, count: int) -> None:
        with taken(ResourceRequest(cpus=count), machine, name):
            order.append(name)

    with taken(ResourceRequest(cpus=1), machine):
        many = threading.Thread(target=take, args=("many", 2))
        many.start()
        queue = slots.directory() / "cpu-queue"
        wait_for(lambda: queue.exists() and _is_locked(queue))
        few = threading.Thread(target=take, args=("few", 1))
        few.start()
        time.sleep(3 * slots.POLL_SECONDS)
        assert order == []
    many.join(10)
    few.join(10)
    assert order == ["many", "few"]


def test_who_waits_for_cores_keeps_no_gpu_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "HELD_SECONDS", 0.2)
    got, let_go = threading.Event(), threading.Event()

    def train() -> None:
        with taken(ResourceRequest(gpus=1, cpus=2), node="train"):
            got.set()
            let_go.wait(60)

    with taken(ResourceRequest(cpus=ONE_GPU.cpus), node="corpus"):
        thread = threading.Thread(target=train)
        thread.start()
        wait_for(lambda: any(each.node == "train" for each in slots.holders()), 60)
        with taken(ResourceRequest(gpus=1), node="finetune"):  # while the cores are taken
            assert not got.is_set()
    assert got.wait(60)
    assert {each.slot[:3] for each in slots.holders() if each.node == "train"} == {"gpu", "cpu"}
    let_go.set()
    thread.join()
    assert not slots.holders()


def _is_locked(path: Path) -> bool:
    import fcntl

    with path.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("stage", "execution", "machine", "wanted"),
    [
        ("corpus", {"workers": 3}, ONE_GPU, ResourceRequest(cpus=3)),
        ("corpus", {"workers": 9}, ONE_GPU, ResourceRequest(cpus=4)),
        ("report", {}, ONE_GPU, ResourceRequest(cpus=1)),
        ("pretrain", {}, ONE_GPU, ResourceRequest(gpus=1, cpus=1)),
        ("pretrain", {"processes": 8}, ONE_GPU, ResourceRequest(gpus=1, cpus=4)),
        (
            "pretrain",
            {"processes": 2},
            MachineResources(cores=tuple(map(str, range(16))), gpus=("0", "1", "2")),
            ResourceRequest(gpus=2, cpus=2),
        ),
        (
            "evaluate",
            {"processes": 2},
            MachineResources(cores=tuple(map(str, range(16))), gpus=("0", "1", "2")),
            ResourceRequest(gpus=1, cpus=1),
        ),
        (
            "pretrain",
            {"gpu_ids": ["2"]},
            MachineResources(cores=tuple(map(str, range(16))), gpus=("0", "1", "2")),
            ResourceRequest(gpus=1, cpus=1, gpu_ids=("2",)),
        ),
        ("pretrain", {"device": "cpu"}, ONE_GPU, ResourceRequest(cpus=4)),
        ("pretrain", {"device": "cpu", "resources": {"cpus": 2}}, ONE_GPU, ResourceRequest(cpus=2)),
        ("pretrain", {"device": "cpu", "threads": 1}, ONE_GPU, ResourceRequest(cpus=1)),
        (
            "pretrain",
            {"device": "cpu", "threads": 1, "processes": 3},
            ONE_GPU,
            ResourceRequest(cpus=3),
        ),
        (
            "evaluate",
            {"device": "cpu", "threads": 1, "processes": 3},
            ONE_GPU,
            ResourceRequest(cpus=1),
        ),
        ("pretrain", {"device": "cpu", "threads": 9}, ONE_GPU, ResourceRequest(cpus=4)),
        ("pretrain", {}, MachineResources(cores=("0", "1"), gpus=()), ResourceRequest(cpus=2)),
        ("pretrain", {"oversubscribe": True}, ONE_GPU, ResourceRequest()),
        *(
            (stage, {}, ONE_GPU, ResourceRequest(cpus=4))
            for stage in ("merge", "export", "import", "fill-mask")
        ),
        *(
            (stage, {}, ONE_GPU, ResourceRequest(gpus=1, cpus=1))
            for stage in ("finetune", "evaluate", "perplexity", "score", "vectors")
        ),
    ],
)
def test_a_node_takes_what_its_stage_computes_on(
    stage: str, execution: dict[str, object], machine: MachineResources, wanted: ResourceRequest
) -> None:
    assert (
        resource_request(stages.stage(stage), Execution.model_validate(execution), machine)
        == wanted
    )


def test_the_machine_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_CPUS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert slots.machine() == MachineResources(cores=("0", "1", "2"), gpus=("1", "3"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert slots.machine().gpus == ()


GPUS = {"0": "GPU-0a1b2c3d-0000", "1": "GPU-4e5f6a7b-1111"}


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for `nvidia-smi`."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    lines = "\n".join(f"GPU {number}: NVIDIA H200 (UUID: {uuid})" for number, uuid in GPUS.items())
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize("name", ["GPU-4e5f6a7b-1111", "GPU-4e5f"])
def test_a_gpu_is_one_slot_by_number_and_by_uuid(
    two_gpus: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one shell has CUDA_VISIBLE_DEVICES=GPU-…, and another one numbers, or none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    monkeypatch.setattr(slots, "PATIENCE_SECONDS", 0.0)
    by_uuid = slots.machine()
    assert by_uuid.gpus == (name,)
    told: list[int] = []
    waits = slots.acquire(
        ResourceRequest(gpus=1), by_uuid, "mine", "b", lambda: len(told) > 0, lambda: told.append(1)
    )
    with (
        taken(ResourceRequest(gpus=1, gpu_ids=("1",)), ONE_GPU),
        pytest.raises(KeyboardInterrupt),
        waits,
    ):
        raise AssertionError("two have it")
    with taken(ResourceRequest(gpus=1), by_uuid) as gpu_ids:
        assert gpu_ids == (name,)  # as CUDA was told
        assert [one.slot for one in slots.holders()] == ["gpu-1"]


def test_a_slot_that_another_user_made_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux with fs.protected_regular refuses O_CREAT for another user's file in a sticky directory
    that all may write to.
    """
    with taken(ResourceRequest(cpus=4)):
        pass
    if os.geteuid() == 0:
        for path in slots.directory().iterdir():
            os.chown(path, 65534, 65534)
    opened = os.open

    def protected(path: Path, flags: int, *mode: int) -> int:
        if Path(path).parent == slots.directory() and flags & os.O_CREAT and Path(path).exists():
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", protected)
    with taken(ResourceRequest(cpus=4)):
        assert len(slots.holders()) == 4


def test_a_full_disk_of_the_slots_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock counts; only the holder's name is missing."""
    import errno

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with taken(ResourceRequest(gpus=1)):  # the files are there
        pass
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "ftruncate", full)
    with taken(ResourceRequest(gpus=1, cpus=2)) as gpus:
        assert gpus == ("0",)
        assert slots._locked(contextlib.ExitStack(), "gpu-0") is None


@pytest.mark.parametrize("kind", ["a file", "no such directory"])
def test_slots_that_cannot_be_kept_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "file"
    place.write_text("")
    directory = place if kind == "a file" else place / "slots"
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(directory))
    with pytest.raises(UsageError, match="CLOZE_SLOTS_DIR"), taken(ResourceRequest(gpus=1)):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system, which only root may do")
def test_slots_on_a_file_system_that_is_really_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=50", "none", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        monkeypatch.setenv("CLOZE_SLOTS_DIR", str(place / "slots"))
        with taken(ResourceRequest(gpus=1)):
            pass
        with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        with taken(ResourceRequest(gpus=1, cpus=2)) as gpus:
            assert gpus == ("0",)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
