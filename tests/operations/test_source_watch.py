"""On a real server: a source that grows starts one run; missed nights are asked for by the form."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from cloze.core import storage
from cloze.core.errors import ClozeError
from cloze.core.processes import wait_until
from cloze.flows.graph import config as configs
from cloze.flows.prefect import source_watch
from cloze.flows.prefect.automations import RUN_GROWN
from cloze.flows.prefect.client import connected
from tests.operations.servers import Operations, cloze, until

pytestmark = pytest.mark.timeout(900)


@pytest.mark.soak  # a Prefect server
def test_a_source_that_grows_starts_one_run_and_the_nights_are_the_servers(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = cloze(operations, "deploy")
    assert deployed.returncode == 0, deployed.stderr
    assert RUN_GROWN in deployed.stdout
    books = operations.home / "watched"
    books.mkdir()
    (books / "a.txt").write_text("It was the best of times.\n" * 40)
    path = operations.home / "watched.yaml"
    sources = [{"kind": "books", "path": str(books)}]
    path.write_text(yaml.safe_dump({"name": "watched", "corpus": {"sources": sources}}))
    values: dict[str, Any] = {"config": str(path), "overrides": {"corpus.heldout_fraction": 0.1}}

    watch = "source-watch/source-watch"
    first = operations.end(operations.trigger(watch, **values, every=60))
    assert (first["type"], first["message"]) == (
        "COMPLETED",
        "watches 1 file, 1.04 kB; looks again every 60 min, by the schedule watch-watched",
    )
    deployment = operations.call(f"/deployments/name/{watch}")
    (schedule,) = deployment["schedules"]
    assert schedule["parameters"] == {**values, "every": 60}

    monkeypatch.setenv("CLOZE_RUNS_DIR", str(operations.runs))
    monkeypatch.setattr(source_watch.compare, "__defaults__", (lambda seconds: None,))
    full_run = operations.call("/deployments/name/full-run/full-run")["id"]

    def look() -> str:
        with connected(operations.api) as client:
            loaded = configs.load(str(path))
            return str(source_watch.look_once(client, loaded, values).message)

    def started() -> list[dict[str, Any]]:
        body = {"deployments": {"id": {"any_": [full_run]}}}
        found = operations.call("/flow_runs/filter", body)
        return [each for each in found if each["parameters"].get("config") == str(path)]

    os.utime(books / "a.txt", (0, 0))
    assert look().startswith("unchanged")
    (books / "b.txt").write_text("It was the worst of times.\n" * 40)
    with monkeypatch.context() as context:  # a kill after the event: the next look sends it again
        context.setattr(storage, "write_bytes", lambda *_: 1 / 0)
        with pytest.raises(ClozeError, match="ZeroDivisionError"):
            look()
    assert look().startswith("grown from 1 file, 1.04 kB to 2 files")
    (run,) = until(started)
    assert run["parameters"]["overrides"] == {"corpus.heldout_fraction": 0.1}
    assert run["created_by"]["display_value"] == RUN_GROWN
    assert look().startswith("unchanged")
    assert not wait_until(lambda: len(started()) > 1, 3.0)
    operations.delete(f"/flow_runs/{run['id']}")
    operations.delete(f"/deployments/{deployment['id']}/schedules/{schedule['id']}")

    night = operations.end(operations.trigger("nightly-evaluation/nightly-evaluation", since="2d"))
    assert night["type"] == "COMPLETED", night["message"]
    assert "(30 3 * * * UTC in Prefect): 0 to make up" in night["message"]
