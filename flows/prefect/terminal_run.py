"""A run from the terminal as a flow run: the command line's own session, whose results it shows."""

from __future__ import annotations

from prefect import tags

from flows.graph import schedule
from flows.prefect.automations import TAG
from flows.prefect.full_run import full_run
from flows.prefect.graph_run import ACTIVE
from flows.session import Session
from pipeline.core.errors import Stopped
from pipeline.core.secrets import masked


def run_flow(session: Session) -> None:
    """Run the session's nodes as the flow `full-run`.

    Raises:
        Exception: what nodes raised, several as `schedule.Failures`; what Prefect raised.
        Stopped: the flow run was cancelled, and a training saved a checkpoint.
        KeyboardInterrupt: it was cancelled, and nothing was saved.
    """
    parameters = session.parameters.model_dump(mode="json")
    token = ACTIVE.set(session)
    try:
        with tags(TAG):
            given = {**parameters, "overrides": masked(parameters["overrides"]), "retries": 0}  # as often as the config says
            state = full_run(**given, return_state=True)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise _saved(session) or KeyboardInterrupt() from None
    finally:
        ACTIVE.reset(token)
    if session.failures:
        raise schedule.told(session.failures)
    if not state.is_completed():
        raise RuntimeError(state.message or state.name)


def _saved(session: Session) -> BaseException | None:
    return next((error for error in session.failures.values() if isinstance(error, Stopped)), None)
