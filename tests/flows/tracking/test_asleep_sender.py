"""A sender of records that stands still holds up no run, and sends all once it goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from cloze.flows.tracking.run_logger import close_spool
from cloze.flows.tracking.spool import Spool
from cloze.flows.tracking.spool_state import connect
from tests.operations.stopping import Row, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def test_a_sender_that_is_asleep(tmp_path: Path) -> None:
    """Longer than the end of a run waits for it."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    spool = Spool(tmp_path / "spools", uri)
    run = spool.start_run("a")
    spool.start_sender()
    sender = spool._sender
    assert sender is not None
    until(lambda: spool.path.with_suffix(".sent").exists())
    sender.send_signal(signal.SIGSTOP)
    spool.metrics(run, {"loss": 1.0}, step=1)
    spool.end_run(run)
    began = time.monotonic()
    (told,) = close_spool(spool, 3.0)
    assert "sent with the next run at the latest" in told
    seconds = time.monotonic() - began
    sender.send_signal(signal.SIGCONT)
    until(lambda: not spool.path.exists())
    assert sender.wait(60) == 0
    client = connect(uri)
    (experiment,) = client.search_experiments(filter_string="name = 'cloze'")
    (found,) = client.search_runs([experiment.experiment_id])
    Row(
        "sender of records asleep", seconds, "–", "unchanged", found.info.status, "–",
        "goes on by itself; the run's last line says that records wait",
    ).keep()  # fmt: skip
    assert found.info.status == "FINISHED"
    assert found.data.metrics == {"loss": 1.0}
