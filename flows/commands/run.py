"""`cloze run` and `cloze plan`: the whole DAG."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import json_option, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.graph.run import RunParameters, Session
    from pipeline.core.execute import Result

run_options = (
    click.argument("config"),
    click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a config value."),
    click.option("--from", "start_from", metavar="STAGE", help="Run STAGE and all after it, whatever is there."),
    click.option("--only", metavar="STAGE", help="Run STAGE alone; its inputs must be there."),
    click.option("--force", multiple=True, metavar="STAGE", help="Run STAGE again, whatever is there."),
    json_option,
)


def _parameters(
    config: str, settings: tuple[str, ...], start_from: str | None, only: str | None, force: tuple[str, ...]
) -> RunParameters:
    import yaml

    from flows.graph import config as configs
    from flows.graph import stages
    from flows.graph.run import RunParameters
    from pipeline.core.errors import UsageError, did_you_mean

    for name in (start_from, only, *force):
        if name is not None and name not in stages.TABLE:
            raise UsageError(f"unknown stage {name!r}; {did_you_mean(name, stages.TABLE)}")
    for setting in settings:
        configs.apply_override({}, setting)  # tells of a malformed one in the user's own words
    overrides: dict[str, Any] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        overrides[key.strip()] = yaml.safe_load(text)
    return RunParameters.model_validate(
        {"config": config, "overrides": overrides, "start_from": start_from, "only": only, "force": list(force)}
    )


@click.command()
@options(*run_options)
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("--prefect/--no-prefect", default=True, show_default=True, help="Run as a Prefect flow, or as plain functions.")
def run(
    config: str,
    settings: tuple[str, ...],
    start_from: str | None,
    only: str | None,
    force: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    prefect: bool,
) -> None:
    """Run the DAG of CONFIG (a YAML file or a preset such as demo); what is there already is not made again."""
    from flows.cli import emit
    from flows.graph import plan
    from flows.graph.run import Session
    from flows.views import terminal

    parameters = _parameters(config, settings, start_from, only, force)
    session = Session(parameters)
    if dry_run:
        _show_plan(session, as_json)
        return
    if session.nothing_to_do:
        from flows.graph import stages
        from pipeline.core.execute import execute

        results: Sequence[Result] = [
            execute(stages.stage(step.name), step.config, step.inputs, step.artifact) for step in session.steps
        ]
        session.screen.print("Nothing to do: every stage is made.")
    elif prefect:
        results = _run_with_prefect(parameters, session)
    else:
        from flows.graph.run import run_plain

        results = run_plain(session)
    session.screen.print()
    session.screen.print(terminal.result_table(results))
    for result in results:
        if result.manifest.summary.get("report"):
            session.screen.print(f"\nreport: {Path(result.artifact) / result.manifest.summary['report']}")
    if as_json:
        emit(
            {"run": session.config.name, "directory": str(session.directory), "stages": [plan.result_json(r) for r in results]}
        )


def _run_with_prefect(parameters: RunParameters, session: Session) -> Sequence[Result]:
    """Run as a flow; where Prefect cannot be had, say so and run the same functions without it."""
    from flows.graph.run import run_plain
    from pipeline.core.errors import ClozeError

    prepare_prefect()
    if "PREFECT_API_URL" not in os.environ:
        session.screen.print("[dim]starting a local Prefect server …[/]")
    try:
        from flows.prefect.full_run import ACTIVE, pretraining

        ACTIVE.set(session)
        pretraining(**parameters.model_dump())
    except (ClozeError, KeyboardInterrupt):
        raise
    except Exception as error:
        from flows.graph.run import Session

        cause = " ".join(str(error).split())[:200]
        session.screen.print(f"[yellow]Prefect failed ({type(error).__name__}: {cause});[/] going on without it")
        rest = Session(parameters.model_copy(update={"start_from": None, "force": []}))
        return run_plain(rest)
    return session.results


def prepare_prefect() -> None:
    """Settings that must stand in the environment before prefect is imported. The user's own win."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "90")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")


@click.command()
@options(*run_options)
def plan(
    config: str, settings: tuple[str, ...], start_from: str | None, only: str | None, force: tuple[str, ...], as_json: bool
) -> None:
    """Show what a run of CONFIG would do, and why."""
    from flows.graph.run import Session

    _show_plan(Session(_parameters(config, settings, start_from, only, force)), as_json)


def _show_plan(session: Session, as_json: bool) -> None:
    from rich.console import Console

    from flows.cli import emit
    from flows.views import terminal
    from pipeline.core.humanize import duration

    if as_json:
        steps = [
            {
                "stage": step.name, "run": not step.cached, "why": step.why, "fingerprint": step.fingerprint,
                "artifact": step.artifact, "last_seconds": step.last_seconds,
            }
            for step in session.steps
        ]  # fmt: skip
        emit({"run": session.config.name, "steps": steps})
        return
    out = Console(highlight=False)
    out.print(terminal.plan_table(session.steps))
    todo = [step for step in session.steps if not step.cached]
    known = [step.last_seconds for step in todo if step.last_seconds is not None]
    if not todo:
        out.print("\nNothing to do.")
    elif len(known) == len(todo):
        out.print(f"\n{len(todo)} of {len(session.steps)} stages would run; the last time they took {duration(sum(known))}.")
    else:
        out.print(f"\n{len(todo)} of {len(session.steps)} stages would run.")
