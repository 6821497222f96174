"""When a source has grown: on a disk and in a store, whatever is written, touched or removed.

The looks are those of the flow; the waiting for a rest is a function in which uploads go on.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
import yaml
from prefect.server.events.actions import RunDeployment
from prefect.server.events.schemas.events import ReceivedEvent

from cloze.core import accounts, storage
from cloze.core.errors import DataError, UsageError
from cloze.flows.graph import config as configs
from cloze.flows.prefect import automations, source_watch
from cloze.flows.prefect.source_watch import MOST_SECONDS, REST_SECONDS, compare
from cloze.pipeline.corpus.config import CorpusConfig
from tests.object_store import Store

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen.\n" * 20


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory or a prefix with one book."""
    at = str(tmp_path / "books")
    if request.param == "store":
        store: Store = request.getfixturevalue("store")
        at = store.path("books")
    write(at, "a.txt")
    return at


def write(place: str, name: str, text: str = TEXT) -> None:
    storage.write_bytes(storage.join(place, name), text.encode())


def corpora(place: str, *more: dict[str, str]) -> list[CorpusConfig]:
    sources = [{"kind": "books", "path": place}, *more]
    return [CorpusConfig.model_validate({"sources": sources})]


def look(at: list[CorpusConfig], before: Any, sleep: Any = None) -> tuple[dict[str, Any], str]:
    now, told, has_grown = compare(at, before, sleep or no_rest)
    assert has_grown == ("a run starts" in told)
    return now, told


def no_rest(seconds: float) -> None:
    raise AssertionError("there was nothing to wait for")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda at: None, "unchanged"),
        (lambda at: write(at, "b.txt"), "grown"),
        (lambda at: write(at, "deep/er/b.txt"), "grown"),
        (lambda at: write(at, "a.txt", TEXT + TEXT), "grown"),
        (lambda at: write(at, "a.txt", TEXT.upper()), "changed"),
        (lambda at: write(at, "a.txt", TEXT[:-80]), "shrunk"),
        (lambda at: write(at, "a.txt"), "unchanged"),  # the same bytes, another time
        (lambda at: write(at, "notes.pdf"), "unchanged"),  # nothing that the reader reads
        (lambda at: write(at, "_tmp-b.txt"), "unchanged"),
        (lambda at: write(at, "b c é.txt"), "grown"),
    ],
)
def test_a_look_says_what_has_changed(place: str, change: Callable[[str], None], word: str) -> None:
    before, told = look(corpora(place), None, no_rest)
    assert told.startswith("watches 1 file, ")
    change(place)
    now, told = look(corpora(place), before, lambda seconds: None)
    assert told.startswith(word)
    assert ("a run starts" in told) == (word in ("grown", "changed"))
    assert (now["fingerprint"] == before["fingerprint"]) == (word == "unchanged")
    assert look(corpora(place), now, no_rest)[1].startswith("unchanged")


def test_a_touched_or_copied_file_starts_nothing(place: str) -> None:
    before, _ = look(corpora(place), None)
    for moment in (0, 1e9, 4e9):
        if storage.is_local(place):
            os.utime(storage.join(place, "a.txt"), (moment, moment))
        else:
            write(place, "a.txt")  # another time of change in the store
        assert look(corpora(place), before, no_rest)[1].startswith("unchanged")


def test_ten_uploads_in_a_minute_are_one_growth(place: str) -> None:
    before, _ = look(corpora(place), None)
    uploads, waits = iter(range(10)), []
    write(place, "first.txt")

    def upload(seconds: float) -> None:
        waits.append(seconds)
        for number in [*uploads][:1] if len(waits) > 5 else [next(uploads), next(uploads)]:
            write(place, f"{number}.txt")

    now, told = look(corpora(place), before, upload)
    assert now["files"] == 12
    assert told.startswith("grown from 1 file")
    assert set(waits) == {REST_SECONDS}
    assert look(corpora(place), now, no_rest)[1].startswith("unchanged")


def test_a_source_that_never_rests_starts_a_run_after_an_hour_and_says_so(place: str) -> None:
    before, _ = look(corpora(place), None)
    write(place, "b.txt")
    waits: list[float] = []

    def upload(seconds: float) -> None:
        waits.append(seconds)
        write(place, "b.txt", TEXT + "More. " * len(waits))

    _, told = look(corpora(place), before, upload)
    assert sum(waits) == MOST_SECONDS
    assert told.endswith("a run starts; still growing after 60 min")


def test_a_source_that_disappears_is_named_and_may_come_back(place: str) -> None:
    before, _ = look(corpora(place), None)
    storage.remove(place)
    gone, told = look(corpora(place), before, no_rest)
    assert told.startswith("gone: ")
    assert place in told
    assert (gone["fingerprint"], gone["files"]) == (before["fingerprint"], 1)
    assert look(corpora(place), gone, no_rest)[0] == gone
    write(place, "a.txt")
    back, told = look(corpora(place), gone, no_rest)
    assert told.startswith("unchanged and back: 1 file")
    assert back["gone"] == ""
    storage.remove(place)
    with pytest.raises(DataError, match="does not exist"):
        look(corpora(place), None)


def test_each_of_several_sources_counts(place: str, tmp_path: Path) -> None:
    other = {"kind": "jsonl", "path": str(tmp_path / "more.jsonl")}
    (tmp_path / "more.jsonl").write_text('{"text": "One."}\n')
    before, _ = look(corpora(place, other), None)
    (tmp_path / "more.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    now, told = look(corpora(place, other), before, lambda seconds: None)
    assert told.startswith("grown from 2 files")
    (tmp_path / "more.jsonl").unlink()
    assert look(corpora(place, other), now, no_rest)[1].startswith("gone: ")


class Server:
    """Takes events; `is_away`: refuses them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_away = False

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(id=uuid5(NAMESPACE_URL, name))

    def request(self, method: str, path: str, *, json: Any) -> None:
        assert (method, path) == ("POST", "/events")
        if self.is_away:
            raise ConnectionError("away")
        self.events += json


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], Any]:
    """Looks once at a config in a file, as the flow does outside a deployment."""
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(source_watch, "deployment", SimpleNamespace(id=None))
    monkeypatch.setattr(source_watch.compare, "__defaults__", (lambda seconds: None,))
    write(str(tmp_path / "books"), "a.txt")
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({"name": "team.own", "corpus": {"sources": [
            {"kind": "books", "path": "books"}]}})
    )  # fmt: skip
    values = {"config": str(tmp_path / "own.yaml"), "overrides": {"corpus.heldout_fraction": 0.1}}

    def once(server: Server) -> Any:
        config = configs.load(str(values["config"]))
        return source_watch.look_once(server, config, values)  # type: ignore[arg-type]

    return once


def test_an_event_has_the_fingerprint_and_the_form(watched: Any, tmp_path: Path) -> None:
    server = Server()
    assert watched(server).message.startswith("watches 1 file")
    assert server.events == []
    write(str(tmp_path / "books"), "b.txt")
    state = watched(server)
    assert state.name == "Completed"
    (event,) = server.events
    kept = json.loads((tmp_path / "runs" / ".watch" / "team.own.json").read_text())
    assert event["payload"]["fingerprint"] == kept["fingerprint"]
    assert event["payload"]["overrides"] == {"corpus.heldout_fraction": 0.1}
    assert event["event"] == "cloze.source.grown"
    watched(server)
    assert len(server.events) == 1


def test_an_event_that_was_not_taken_is_sent_by_the_next_look(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    watched(server)
    write(str(tmp_path / "books"), "b.txt")
    server.is_away = True
    with pytest.raises(ConnectionError):
        watched(server)
    server.is_away = False
    with monkeypatch.context() as context:  # a kill after the event, before the record
        context.setattr(storage, "write_bytes", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            watched(server)
    watched(server)
    assert len({event["id"] for event in server.events}) == 1  # the server counts it once


def test_a_source_that_is_gone_fails_one_look(watched: Any, tmp_path: Path) -> None:
    server = Server()
    watched(server)
    storage.remove(str(tmp_path / "books"))
    assert [watched(server).name for _ in range(3)] == ["Failed", "Completed", "Completed"]
    assert server.events == []


def test_two_looks_at_once_are_one(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    watched(server)
    write(str(tmp_path / "books"), "b.txt")
    met: list[str] = []

    def meanwhile(seconds: float) -> None:
        met.append(watched(server).message)

    monkeypatch.setattr(source_watch.compare, "__defaults__", (meanwhile,))
    watched(server)
    assert len(server.events) == 1
    assert met == ["another look at these sources is in progress"]


def test_a_config_without_a_corpus_is_refused(watched: Any, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("pretrain: {dataset: /nowhere}\n")
    with pytest.raises(UsageError, match="no corpus, so there is no source to watch"):
        watched(Server())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fingerprint": 3}', "null"])
def test_a_damaged_record_is_a_first_look(watched: Any, tmp_path: Path, content: str) -> None:
    server = Server()
    watched(server)
    (tmp_path / "runs" / ".watch" / "team.own.json").write_text(content)
    write(str(tmp_path / "books"), "b.txt")
    assert watched(server).message.startswith("watches 2 files")


@pytest.mark.parametrize("project", [None, "nlp", "team.b-2"])
def test_the_run_that_starts_is_one_of_the_sources_project(
    project: str | None, watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All projects of a server share the automation; its server finds the event's deployment."""
    if project:
        monkeypatch.setenv(accounts.PROJECT, project)
    server = Server()
    watched(server)
    write(str(tmp_path / "books"), "b.txt")
    watched(server)
    event = ReceivedEvent.model_validate(server.events[0])
    (action,) = automations._run_when_grown().actions
    served = RunDeployment.model_validate(action.model_dump(mode="json"))
    found = asyncio.run(served.deployment_id_to_use(SimpleNamespace(triggering_event=event)))  # type: ignore[arg-type]
    name = f"full-run/{project}:full-run" if project else "full-run/full-run"
    assert found == uuid5(NAMESPACE_URL, name)


def test_the_record_of_a_shared_directory_is_the_groups(watched: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o2775)
    before = os.umask(0o077)
    watched(Server())
    os.umask(before)
    made = list((tmp_path / "runs").rglob("*"))
    assert [path for path in made if path.suffix == ".json"]
    assert not [path for path in made if path.stat().st_mode & 0o060 != 0o060]
