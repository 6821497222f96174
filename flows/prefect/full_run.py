"""The full run as a Prefect flow: one task a stage, over the same functions that run without Prefect."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from flows.graph import plan
from flows.session import RunParameters, Session
from pipeline.core.execute import Result

ACTIVE: ContextVar[Session | None] = ContextVar("session", default=None)  # the command line's own, whose results it shows


@flow(name="cloze", flow_run_name="{config}", description=__doc__, persist_result=False, cache_result_in_memory=False)
def pretraining(
    config: str = "demo",
    overrides: dict[str, Any] | None = None,
    start_from: list[str] | None = None,
    only: list[str] | None = None,
    force: list[str] | None = None,
) -> list[dict[str, Any]]:
    """Raw text in, an evaluated encoder and a report out; what is there already is not made again.

    Args:
        config: a preset's name, or the path of a YAML file on the worker's machine.
        overrides: config values by dotted key, such as {"pretrain.steps": 200}, or nested.
        start_from: run this stage and all after it, whatever is there.
        only: run this stage alone; its inputs must be there.
        force: run these stages again, whatever is there.
    """
    parameters = RunParameters(
        config=config, overrides=overrides or {}, start_from=start_from or [], only=only or [], force=force or []
    )
    session = ACTIVE.get() or Session(parameters, run_id=flow_run.id)
    with session:
        for step in session.steps:
            in_task(step, session.attempt)
        session.begun.forget()
    return [plan.result_json(result) for result in session.results.values()]


def in_task(step: plan.Step, function: Callable[[plan.Step], Result]) -> None:
    """Call the function in a Prefect task that is named after the stage.

    Whether anything is to do is decided by the artifact's fingerprint inside, never by Prefect's cache, which cannot know
    that a directory was removed; so the task itself is not cached.
    """

    @task(name=step.name, task_run_name=f"{step.name}-{step.fingerprint[:12]}", cache_policy=NO_CACHE, persist_result=False)
    def stage(fingerprint: str, artifact: str, why: str) -> dict[str, Any]:
        del fingerprint, artifact, why  # shown in the UI
        return plan.result_json(function(step))

    stage(step.fingerprint, step.artifact, step.why or "nothing to do")


if __name__ == "__main__":
    pretraining()
