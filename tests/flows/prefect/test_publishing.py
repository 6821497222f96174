"""The thread that publishes to Prefect: everything in order, a failure alone, and an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cloze.flows.prefect import publishing
from cloze.flows.prefect.publishing import ArtifactPublisher, artifact_key

FLOW_RUN, TASK_RUN = str(UUID(int=1)), str(UUID(int=2))


class Client:
    """A client that notes what it is sent; what is in `refused` fails."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refused: set[str] = set()

    def create_artifact(self, artifact: Any) -> Any:
        self.sent.append(artifact)
        if artifact.key in self.refused:
            raise RuntimeError("not now")
        return SimpleNamespace(id=str(UUID(int=len(self.sent))))

    def update_artifact(self, number: UUID, artifact: Any) -> None:
        self.sent.append((number, artifact))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    found = Client()

    @contextmanager
    def get_client(sync_client: bool) -> Iterator[Client]:
        assert sync_client
        yield found

    monkeypatch.setattr(publishing, "get_client", get_client)
    return found


def test_what_is_published_arrives_in_order_before_the_end_and_the_thread_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "redact", lambda text: text.replace("hf_key", "***"))
    client.refused.add("second")
    with ArtifactPublisher(FLOW_RUN) as publisher:
        publisher.markdown("First Page!", "a hf_key", "what it is", TASK_RUN)
        publisher.markdown("second", "b", "it fails")
        publisher.markdown("third", "c", "of the run")
        thread = publisher._thread
        assert (thread.name, thread.daemon) == ("prefect-publisher", True)
    assert not thread.is_alive()
    first, second, third = client.sent
    assert (first.key, first.type, first.data) == ("first-page", "markdown", "a ***")
    assert first.description == "what it is"
    assert (first.flow_run_id, first.task_run_id) == (UUID(int=1), UUID(int=2))
    assert (second.key, third.key, third.data, third.task_run_id) == ("second", "third", "c", None)


def test_where_no_server_answers_nothing_is_lost_but_the_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(sync_client: bool) -> None:
        raise OSError("no server")

    monkeypatch.setattr(publishing, "get_client", refuse)
    with ArtifactPublisher(FLOW_RUN) as publisher:
        publisher.markdown("a", "b", "c")
    assert not publisher._thread.is_alive()


def test_the_end_of_a_run_waits_for_a_server_only_so_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "LAST_SECONDS", 0.01)
    answered = threading.Event()
    with ArtifactPublisher(FLOW_RUN) as publisher:
        publisher.put(lambda client: answered.wait())
    assert publisher._thread.is_alive()
    answered.set()
    publisher._thread.join()


def test_a_bar_is_made_once_and_then_moved_to_its_newest_value(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = ArtifactPublisher(FLOW_RUN)  # its thread does not run yet
    bar = publisher.progress("Node@1", TASK_RUN, "pretrain@1")
    jobs: list[Any] = []
    monkeypatch.setattr(publisher, "put", jobs.append)
    bar.set(1.04, "step 1")
    bar.set(2.06, "step 2")
    assert len(jobs) == 1, "only the newest is sent"
    jobs.pop()(client)
    (made,) = client.sent
    assert (made.key, made.type, made.data) == ("node-1", "progress", 2.1)
    assert made.description == "pretrain@1: step 2"
    assert (made.flow_run_id, made.task_run_id) == (UUID(int=1), UUID(int=2))
    bar.set(3.0, "step 3")
    jobs.pop()(client)
    number, moved = client.sent[-1]
    assert (number, moved.data, moved.description) == (UUID(int=1), 3.0, "pretrain@1: step 3")
    assert jobs == []


def test_a_bar_that_could_not_be_made_is_made_with_the_next_value(client: Client) -> None:
    client.refused.add("a")
    with ArtifactPublisher(FLOW_RUN) as publisher:
        bar = publisher.progress("a", TASK_RUN, "a")
        bar.set(1.0, "x")
        done = threading.Event()
        publisher.put(lambda _: client.refused.clear())
        publisher.put(lambda _: done.set())
        assert done.wait(60)
        bar.set(2.0, "y")
    assert [(sent.key, sent.data) for sent in client.sent] == [("a", 1.0), ("a", 2.0)]


@pytest.mark.parametrize(
    ("name", "key"),
    [("pretrain@512", "pretrain-512"), ("--A  b__c--", "a-b-c"), ("é1", "1"), ("a-b", "a-b")],
)
def test_a_key_has_small_letters_digits_and_dashes(name: str, key: str) -> None:
    assert artifact_key(name) == key
