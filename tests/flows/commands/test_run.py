"""`cloze run` under Prefect, where it cannot be reached, and where a stage fails; `status` and
`logs` of what was run.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core import places
from cloze.flows import cli
from cloze.flows.run import source, status_file
from tests import warm
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows import toy_run


@pytest.fixture
def run(toy_config: str, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, list[str], str]:
        """The exit code, the stages that ran, and what was said."""
        toy_run.RAN.clear()
        code = cli.main([*arguments])
        said = capsys.readouterr()
        return code, list(toy_run.RAN), said.out + said.err

    return call


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server's address where nobody listens, for Prefect that was imported before, too."""
    address = "http://127.0.0.1:9/api"
    monkeypatch.setenv("PREFECT_API_URL", address)
    from prefect import settings

    with settings.temporary_settings(
        {settings.PREFECT_API_URL: address, settings.PREFECT_CLIENT_MAX_RETRIES: 0}
    ):
        yield


def test_nothing_to_do_starts_no_server(run: Any) -> None:
    assert run("run", "toy.yaml", "--no-prefect")[:2] == (0, ["letters", "count"])
    code, ran, said = run("run", "toy.yaml")
    assert (code, ran, "Nothing to do" in said) == (0, [], True)


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("option", [("--force-node", "count"), ("--from", "count")])
def test_without_prefect_what_was_forced_is_forced(run: Any, option: tuple[str, str]) -> None:
    run("run", "toy.yaml", "--no-prefect")
    code, ran, said = run("run", "toy.yaml", "--prefect", *option)
    assert (code, ran) == (0, ["count"])
    assert "Prefect is unreachable" in said
    assert "still forced: count" in said


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_without_prefect_whatever_http_library_its_client_has(
    run: Any, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """The installed Prefect uses httpx; later ones use httpx2."""
    http = pytest.importorskip(library)

    def refuse(session: object) -> None:
        raise http.ConnectError("All connection attempts failed")

    monkeypatch.setattr("cloze.flows.prefect.graph_run.run_flow", refuse)
    code, ran, said = run("run", "toy.yaml", "--prefect")
    assert (code, ran) == (0, ["letters", "count"])
    assert "Prefect is unreachable" in said


SCRIPT = """
    import sys
    from cloze.flows.graph import stages
    from cloze.flows.tracking.spool import Spool
    from tests.flows import toy_run
    stages.TABLE.clear()
    stages.TABLE.update(toy_run.ROWS)
    Spool.start_sender = lambda spool: None
    from cloze.flows.cli import main
    from cloze.core.places import runs_directory
    from cloze.core.artifacts.lock import locked
    with locked(str(runs_directory() / "toy")):
        print("in use:", main(["run", "toy.yaml", "--prefect"]), *toy_run.RAN)
    code = main(["run", "toy.yaml", "--set", "count.fault=stop", "--prefect", *sys.argv[1:]])
    print(code, *toy_run.RAN)
    open("stop", "w").close()
    toy_run.RAN.clear()
    from cloze.flows.prefect.graph_run import full_run
    full_run(config="toy.yaml", overrides={"count.fault": "stop", "run.retry_seconds": 0.1}, force=["letters", "count"], retries=1)
    print(*toy_run.RAN)
"""


@pytest.mark.usefixtures("toy_config")
def test_under_prefect_a_stages_error_is_raised_and_a_retry_forces_nothing_twice(
    tmp_path: Path,
) -> None:
    """On a local server of its own. A stage's RuntimeError looks like those of Prefect's client
    that cannot start.
    """
    (tmp_path / "stop").touch()
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PYTHONPATH": import_path(REPOSITORY),
    }
    done = subprocess.run(
        [warm.python(), "-c", textwrap.dedent(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    lines = done.stdout.splitlines()
    assert "in use: 2" in lines, done.stderr
    assert "is being built by process" in done.stderr
    assert lines[-2:] == ["1 letters count", "letters count count"], done.stderr
    assert "the file that forbids it was there" in done.stderr
    assert "running without it" not in done.stderr
    record = status_file.read(tmp_path / "runs", "toy")
    noted = (tmp_path / "runs" / source.FLOW_RUNS / record["prefect"]).read_text()
    assert noted == record["source"]  # for a Retry


def test_a_date_as_a_name(run: Any) -> None:
    code, _, said = run("plan", "toy.yaml", "--set", "name=2024-01-01", "--json")
    assert (code, json.loads(said)["run"]) == (0, "2024-01-01")


def test_logs_of_a_path_a_run_and_a_stage(run: Any, tmp_path: Path) -> None:
    run("run", "toy.yaml", "--no-prefect")
    place = places.runs_directory() / "toy" / "letters"
    (place / "_logs").mkdir()
    (place / "_logs" / "rank0.log").write_text("one\ntwo\n")
    (place / "metrics.jsonl").write_text('{"step": 7, "time": 1.5, "loss": 6.25}\n{"step": 8, "ti')
    for what in (str(place), "toy", "toy/letters", "letters"):
        code, _, said = run("logs", what, "--lines", "1")
        assert (code, "two" in said, "one" in said) == (0, True, False)
    assert "step 7  loss 6.25" in run("logs", "letters")[2]
    code, _, said = run("logs", "leters")
    assert (code, "did you mean 'letters'" in said) == (3, True)
    code, _, said = run("status", "toy")
    assert (code, max(map(len, said.splitlines())) <= 80) == (0, True)
    assert place.resolve().name in said
