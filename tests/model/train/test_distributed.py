"""The ranks of a training, seen from one process: what they exchange is made up."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.model.train import distributed
from cloze.model.train.distributed import (
    StopRequest,
    World,
    assign_owners,
    group_options,
    init_distributed,
)

CPU = torch.device("cpu")


class Others:
    """torch.distributed with a second rank that says `answers`, one after the other."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.groups: list[Any] = []

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
    ) -> Any:
        self.sent.append(tensor.tolist())
        self.groups.append(group)
        other = torch.tensor(self.answers.pop(0), dtype=tensor.dtype)
        least = op is not None and op == self.ReduceOp.MIN
        tensor.copy_(torch.minimum(tensor, other) if least else tensor + other)
        return self if async_op else None

    def wait(self) -> None: ...

    def all_gather_object(self, values: list[Any], value: Any, group: Any = None) -> None:
        self.groups.append(group)
        self.sent.append(value)
        values[:] = [self.answers.pop(0), value]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Others]:
    def made(*answers: Any) -> Others:
        fake = Others(*answers)
        monkeypatch.setattr(distributed, "distributed", fake)
        return fake

    return made


def test_one_rank_exchanges_nothing(others: Callable[..., Others]) -> None:
    fake, alone = others(), World(0, 1, CPU)
    assert alone.all_reduce_sum([1, 2]) == [1, 2]
    assert alone.all_reduce_sum([0.5], torch.float64) == [0.5]
    assert alone.all_reduce_min(3) == 3
    assert alone.all_reduce_tensor(torch.tensor([4])).tolist() == [4]
    assert alone.gathered("a") == ["a"]
    assert alone.decide_on_rank_zero(lambda: 7) == 7
    assert fake.sent == []
    assert alone.is_rank_zero
    assert not World(1, 2, CPU).is_rank_zero


def test_two_ranks_add_up_over_the_group_of_control(others: Callable[..., Others]) -> None:
    fake = others([10, 20], [0.25], 2, [1.0], "b")
    world = World(1, 2, CPU, control="control", saving="saving")
    assert world.all_reduce_sum([2**53, 2]) == [2**53 + 10, 22]
    assert world.all_reduce_sum([0.5], torch.float64) == [0.75]
    assert world.all_reduce_min(3) == 2
    assert world.all_reduce_tensor(torch.tensor([4.0])).tolist() == [5.0]
    assert world.gathered("a", "saving") == ["b", "a"]
    assert fake.groups == ["control"] * 4 + ["saving"]
    assert world.timeline is not World(1, 2, CPU).timeline


def test_rank_zero_decides_and_says_that_it_lives(
    others: Callable[..., Others], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "ALIVE_SECONDS", 0.05)
    fake, busy = others(*[[0, 0, 0]] * 50), threading.Event()
    threading.Timer(0.2, busy.set).start()

    def decide() -> int:
        busy.wait(10)
        assert threading.current_thread().name == "decide_0"
        return 9

    assert World(0, 2, CPU).decide_on_rank_zero(decide) == 9
    assert fake.sent[-1] == [1, 0, 9]
    assert 1 <= len(fake.sent[:-1]) <= 6
    assert all(sent == [0, 0, 0] for sent in fake.sent[:-1])


def test_all_ranks_fail_as_rank_zero_does(others: Callable[..., Others]) -> None:
    def fail() -> int:
        raise DataError("it is damaged; use another")

    fake = others([0, 0, 0], "")
    with pytest.raises(DataError, match="it is damaged; use another"):
        World(0, 2, CPU, control="c").decide_on_rank_zero(fail)
    assert fake.sent[0] == [1, 1, 0]
    assert fake.groups == ["c", "c"]
    told = fake.sent[1]
    others([0, 0, 0], [1, 1, 0], told)
    with pytest.raises(DataError) as refused:
        World(1, 2, CPU).decide_on_rank_zero(fail)
    assert str(refused.value) == "it is damaged; use another"
    fake = others([0, 0, 0], [0, 0, 0], [1, 0, 9])
    assert World(1, 2, CPU).decide_on_rank_zero(fail) == 9
    assert fake.sent == [[0, 0, 0]] * 3


def test_a_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(distributed.processes, "available_cpus", lambda: range(6))
    monkeypatch.setenv(distributed.TOKEN, "t")
    world = init_distributed(Execution(device="cpu"), "/runs/x")
    assert (world.rank, world.size, world.device, world.control, world.saving) == (
        0,
        1,
        CPU,
        None,
        None,
    )
    assert (world.fence.path, world.fence.token) == ("/runs/x", "t")
    assert init_distributed(Execution(device="cpu", threads=3)).fence.token == ""
    assert threads == [6, 3]


def test_a_rank_takes_its_share_of_the_cores_and_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(distributed.TOKEN, raising=False)
    said: list[Any] = []
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: said.append(("threads", number)))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: said.append(name))
    monkeypatch.setattr(torch.cuda, "set_device", said.append)
    monkeypatch.setattr(distributed, "resolve_device", lambda name, rank: gpu if rank == 1 else CPU)
    monkeypatch.setattr(distributed, "TimeBreakdown", lambda device: device)
    monkeypatch.setattr(distributed.processes, "available_cpus", lambda: range(9))
    monkeypatch.setattr(distributed.atexit, "register", said.append)
    fake: Any = Others("token")
    fake.is_initialized = lambda: False
    fake.init_process_group = lambda **how: said.append(how)
    fake.new_group = lambda **how: said.append(how) or how["timeout"]
    fake.all_gather_object = lambda values, value, group: values.__setitem__(0, "first's token")
    monkeypatch.setattr(distributed, "distributed", fake)
    world = init_distributed(Execution(), "/runs/x")
    ten, long = datetime.timedelta(minutes=10), datetime.timedelta(hours=2)
    nccl = {"backend": "nccl", "timeout": ten, "device_id": gpu}
    assert said == [
        gpu, "high", ("threads", 4), {"rank": 3, "world_size": 4, **nccl}, distributed._leave,
        {"backend": "gloo", "timeout": ten}, {"backend": "gloo", "timeout": long},
    ]  # fmt: skip
    assert (world.control, world.saving, world.fence.token) == (ten, long, "first's token")
    assert group_options(gpu) == nccl
    assert group_options(CPU) == {"backend": "gloo", "timeout": ten}
    fake.is_initialized = lambda: True
    fake.get_world_size = lambda: 2
    with pytest.raises(UsageError) as refused:
        init_distributed(Execution())
    assert str(refused.value) == "WORLD_SIZE (4) is not that of the running process group (2)"


def test_a_group_of_this_process_alone_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    fake: Any = Others()
    fake.is_initialized = lambda: bool(made)
    fake.init_process_group = lambda **how: made.append(how)
    monkeypatch.setattr(distributed, "distributed", fake)
    distributed.single_process_group(CPU)
    distributed.single_process_group(CPU)
    (how,) = made
    assert isinstance(how.pop("store"), torch._C._distributed_c10d.HashStore)
    assert how == {"rank": 0, "world_size": 1, **group_options(CPU)}


def test_the_group_is_left_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(time, "sleep", done.append)
    fake: Any = Others()
    fake.is_initialized = lambda: len(done) < 3
    fake.destroy_process_group = lambda: done.append("left")
    monkeypatch.setattr(distributed, "distributed", fake)
    distributed._leave()
    distributed._leave()
    assert done == [0.1, "left", 0.1]


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """A program that a shell starts in the background ignores SIGINT."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, kept)


@pytest.mark.usefixtures("hears_interrupts")
def test_a_stop_is_asked_for_and_a_second_interrupt_ends_at_once() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest.installed() as request:
        assert not request.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.requested
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    with StopRequest.installed() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.requested
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_no_signal_is_caught_in_another_thread() -> None:
    seen: list[Any] = []

    def install() -> None:
        with StopRequest.installed() as request:
            seen.append((request.requested, dict(request._before)))

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert seen == [(False, {})]


def test_owners_by_hand() -> None:
    assert assign_owners({"a": 5, "b": 3, "c": 3, "d": 2, "e": 1}, 2) == {
        "a": 0,
        "b": 1,
        "c": 1,
        "d": 0,
        "e": 1,
    }
    assert list(assign_owners({"b": 1, "a": 1}, 1)) == ["a", "b"]
    assert assign_owners({}, 3) == {}


@given(st.dictionaries(st.integers(0, 50), st.integers(0, 1000), max_size=20), st.integers(1, 5))
def test_no_rank_has_much_more_than_another(sizes: dict[int, int], ranks: int) -> None:
    owners = assign_owners(sizes, ranks)
    loads = [sum(sizes[name] for name in sizes if owners[name] == rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)
