"""Environment of flows: Prefect's settings, and the working directory of a deployed flow."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from datetime import datetime, timezone

from cloze.core import places
from cloze.core.errors import UsageError
from cloze.flows.data import DATA
from cloze.flows.run import source

PREFECT_YAML = DATA / "prefect.yaml"
HOME = "CLOZE_HOME"  # variable with the working directory of deployed flows


def prepare_prefect() -> None:
    """Set the variables that Prefect reads at import; the user's values take precedence."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "90")
    # seconds, as in `prefect.yaml`
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
    # Cloze prints its own messages
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def enter_home(directory: str) -> dict[str, str]:
    """Change to the working directory of a deployed flow; the pull step of all deployments.

    Args:
        directory: path stored by `cloze deploy`; the worker's `$CLOZE_HOME` takes precedence.

    Raises:
        UsageError: the directory does not exist on this machine. The flow run's log has the
            message.
    """
    directory = os.environ.get(HOME) or directory
    try:
        os.chdir(directory)
    except OSError as error:
        message = (
            f"the worker on {socket.gethostname()} cannot work in {directory} ({error.strerror});"
            f" create or mount that directory, or start the worker with {HOME} set to another one"
        )
        _log(message)
        raise UsageError(message) from error
    try:  # a retry imports what its run's last start had, as `cloze resume` does
        flow_run = os.environ.get("PREFECT__FLOW_RUN_ID", "")
        if taken := source.retake(flow_run, places.runs_directory()):
            _log(f"source: {taken}, as recorded", logging.INFO)
    except UsageError as error:
        _log(str(error))
        raise
    return {"directory": os.getcwd()}


def _log(message: str, level: int = logging.ERROR) -> None:
    """Write to the flow run's log; of an error, Prefect itself reports only the failed step."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import LogCreate

    with suppress(Exception), get_client(sync_client=True) as client:
        record = {
            "name": "prefect.flow_runs",
            "level": level,
            "message": message,
            "timestamp": datetime.now(timezone.utc),
            "flow_run_id": os.environ["PREFECT__FLOW_RUN_ID"],
        }
        client.create_logs([LogCreate.model_validate(record)])
