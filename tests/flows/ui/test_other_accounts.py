"""Other accounts cannot change what `cloze ui` records: clients send a login to the addresses there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.run import server_addresses
from cloze.flows.ui import command

NOTHING = dict.fromkeys(("prefect", "mlflow", "page"))


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("existed", [False, True])
def test_without_a_umask_nobody_else_may_write(
    existed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(command, "require_packages", lambda *_: None)
    directory = server_addresses.directory(command.runs_of_home())
    if existed:
        directory.mkdir(parents=True)

    def supervise(runs: Path, *_: Any) -> None:
        server_addresses.write(runs, {"state": "up"})
        (directory / "prefect.log").touch()

    monkeypatch.setattr(command, "_supervise", supervise)
    command.serve(NOTHING, as_json=False)
    found = [directory, *directory.iterdir()]
    assert len(found) == 3
    assert not [path.name for path in found if path.stat().st_mode & 0o002]
