"""The order of making: independent nodes beside each other, a failed one stops what needs it and
nothing else, all failures are told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from cloze.core.config import StageConfig
from cloze.core.errors import DataError, StoppedError, UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.graph.nodes import Node
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.graph.schedule import Frontier, NodeFailures, run_graph


def step(name: str, *after: str) -> PlannedNode:
    node = Node(
        name=name,
        stage="toy",
        section=name,
        values={},
        config=StageConfig(),
        execution=Execution(),
        inputs={},
    )
    return PlannedNode(
        node=node,
        inputs={},
        depends_on=after,
        fingerprint=name,
        artifact=name,
        cached=False,
        reason="new",
    )


GRAPH = [
    step("a"),
    step("b", "a"),
    step("c", "a"),
    step("d", "b"),
    step("e", "c"),
    step("f", "d", "e"),
]


class Run:
    """What was made, in order, and what was told."""

    def __init__(self, **faults: BaseException) -> None:
        self.made: list[str] = []
        self.skipped: dict[str, str] = {}
        self.stopped = 0
        self.faults = faults

    def make(self, step: PlannedNode) -> None:
        if step.name in self.faults:
            raise self.faults[step.name]
        self.made.append(step.name)

    def __call__(
        self, steps: list[PlannedNode], make: Callable[[PlannedNode], object] | None = None
    ) -> None:
        def stop() -> None:
            self.stopped += 1

        def skip(step: PlannedNode, cause: str) -> None:
            self.skipped[step.name] = cause

        run_graph(steps, make or self.make, skipped=skip, stop=stop)


def test_each_is_made_after_what_it_needs() -> None:
    run = Run()
    run(GRAPH)
    assert sorted(run.made) == ["a", "b", "c", "d", "e", "f"]
    for one in GRAPH:
        assert all(run.made.index(parent) < run.made.index(one.name) for parent in one.depends_on)


def test_a_failed_node_stops_what_needs_it_and_nothing_else() -> None:
    run = Run(b=DataError("shard 3 is cut short"))
    with pytest.raises(DataError, match="shard 3 is cut short"):
        run(GRAPH)
    assert sorted(run.made) == ["a", "c", "e"]
    assert run.skipped == {"d": "b", "f": "b"}
    assert run.stopped == 0


def test_all_failures_are_told_with_their_exit_code() -> None:
    run = Run(b=DataError("one"), c=DataError("two"))
    with pytest.raises(NodeFailures, match="2 nodes failed: ") as caught:
        run(GRAPH)
    assert {name: str(error) for name, error in caught.value.errors.items()} == {
        "b": "one",
        "c": "two",
    }
    assert caught.value.exit_code == DataError.exit_code
    assert "b: one" in str(caught.value)
    assert "c: two" in str(caught.value)
    with pytest.raises(NodeFailures) as mixed:
        Run(b=DataError("one"), c=UsageError("two"))(GRAPH)
    assert mixed.value.exit_code == 1


def test_independent_nodes_are_made_beside_each_other() -> None:
    both = threading.Barrier(2, timeout=20)  # broken, if they came one after the other
    Run()([step("a"), step("b")], lambda _: both.wait())


def test_a_slow_node_does_not_hold_up_others() -> None:
    """`d` needs `b` alone, and is made while `c` is still at work."""
    made, slow = [], threading.Event()

    def make(step: PlannedNode) -> None:
        if step.name == "c":
            assert slow.wait(20)
        made.append(step.name)
        if step.name == "d":
            slow.set()

    Run()(GRAPH, make)
    assert made.index("d") < made.index("c")


def test_an_interruption_asks_the_running_ones_to_end_and_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, ended = threading.Event(), []

    def make(step: PlannedNode) -> None:
        assert stop.wait(20)
        time.sleep(0.1)
        ended.append(step.name)
        raise StoppedError("stopped at step 7, checkpoint saved")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cloze.flows.graph.schedule.wait", _once(interrupted))
    with pytest.raises(StoppedError, match="checkpoint saved"):
        run_graph([step("a"), step("b", "a")], make, skipped=lambda *_: None, stop=stop.set)
    assert ended == ["a"], "what had not begun is never made"


def _once(first: Callable[..., None]) -> Callable[..., object]:
    """A `wait` that is interrupted the first time."""
    from concurrent.futures import wait

    calls: list[int] = []

    def waited(*values: object, **named: object) -> object:
        calls.append(1)
        return first() if len(calls) == 1 else wait(*values, **named)  # type: ignore[arg-type]

    return waited


def started(frontier: Frontier) -> list[str]:
    return [frontier.waiting.pop(each.name).name for each in frontier.ready()]


def test_a_frontier_gives_each_node_once_and_drops_what_follows_a_failure() -> None:
    frontier = Frontier(GRAPH)
    assert started(frontier) == ["a"]
    assert started(frontier) == [], "it runs"
    frontier.done("a")
    assert started(frontier) == ["b", "c"]
    assert [each.name for each in frontier.failed("b")] == ["d", "f"]
    frontier.done("c")
    assert started(frontier) == ["e"]
    assert not frontier.waiting


def test_a_frontier_sees_what_gets_done_meanwhile_and_needs_no_node_of_another_graph() -> None:
    frontier = Frontier(GRAPH[1:])
    order = []
    for each in frontier.ready():
        order.append(frontier.waiting.pop(each.name).name)
        frontier.done(each.name)
    assert order == ["b", "c", "d", "e", "f"]
