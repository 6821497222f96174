"""One Prefect server and one worker for all tests here, with deployments of toy graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.workers.process import ProcessWorker

from tests.operations.servers import Operations, prefect


@pytest.fixture(scope="package")  # an idle server computes, too
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operations]:
    """A server with the pool, the deployments `full-run/toys` and `full-run/one-at-a-time`, and a
    worker.
    """
    found = Operations(tmp_path_factory.mktemp("operations"))
    try:
        found.call(
            "/work_pools/",
            {
                "name": "cloze",
                "type": "process",
                "base_job_template": ProcessWorker.get_default_base_job_template(),
            },
        )
        prefect(
            found, "deploy", "--all", "--prefect-file", str(Path(__file__).parent / "toys.yaml")
        )
        found.worker()
        yield found
    finally:
        found.close()


@pytest.fixture
def toys(operations: Operations, request: pytest.FixtureRequest) -> Toys:
    """A config of a run of its own."""
    return Toys(operations.home / f"{request.node.name.replace('[', '-').rstrip(']')}.yaml")


class Toys:
    """A config file that a test writes. Attributes: run: the run's name; hold, fault: files that
    the toy training looks for.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, path.stem
        self.hold, self.fault = path.with_suffix(".hold"), path.with_suffix(".fault")

    def write(self, **sections: Any) -> str:
        """Letters, a training and a count, unless the sections say otherwise."""
        toy = {"launcher": "local"}  # what runs in the head's own process is in no job's package
        content = {"letters": {"size": 4, **toy}, "train": {}, "count": toy, **sections}
        self.path.write_text(yaml.safe_dump(content))
        return str(self.path)
