"""`cloze run`: all stages of a config that are not made yet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from flows.commands.common import emit
from flows.commands.run_options import parameters_of, run_options, show_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.session import Session
    from pipeline.core.execute import Result


PREFECT = click.option(
    "--prefect/--no-prefect",
    default=None,
    help="Run as a Prefect flow, if need be on a server of its own; or as plain functions."
    " Without either: as a flow where a Prefect server is known (PREFECT_API_URL, or that of `cloze ui`) and answers.",
)


@click.command()
@run_options
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@PREFECT
def run(as_json: bool, dry_run: bool, prefect: bool | None, **values: Any) -> None:
    """Run all stages of CONFIG (a YAML file or a preset such as demo); what is there already is not made again."""
    from flows.session import Session

    session = Session(parameters_of(**values))
    if dry_run:
        show_plan(session, as_json)
        return
    start(session, prefect=prefect, as_json=as_json)


def start(session: Session, *, prefect: bool | None, as_json: bool) -> None:
    """Run a session to its end, and tell what came of it.

    Args:
        prefect: whether as a Prefect flow; None: where a server is known and answers.
    """
    from flows.graph import plan
    from flows.session import run_plain
    from flows.views import terminal
    from flows.views.plan_tree import left_out_lines

    if session.nothing_to_do or not _with_prefect(session, prefect):
        results = run_plain(session)
        if all(result.cached for result in results.values()):
            session.screen.print("Nothing to do: every node is made.")
    else:
        results = run_with_prefect(session)
    results = {step.name: results[step.name] for step in session.steps if step.name in results}  # made in any order
    session.screen.print()
    session.screen.print(terminal.result_table(results, {step.name: step.node.section for step in session.steps}))
    for result in results.values():
        for table in result.manifest.summary.get("tables") or ():
            session.screen.print()
            session.screen.print(terminal.told_table(table))
            for note in table.get("notes") or ():
                session.screen.print(f"[dim]{escape(note)}[/]")
    for line in left_out_lines(session.config.left_out):
        session.screen.print(f"[yellow]left out:[/] {escape(line)}")
    for result in results.values():
        if result.manifest.summary.get("report"):
            session.screen.print(f"\nreport: {Path(result.artifact) / result.manifest.summary['report']}")
    if as_json:
        made = [{"node": name, **plan.result_json(result)} for name, result in results.items()]
        left_out = {"left_out": session.config.left_out} if session.config.left_out else {}
        emit({"run": session.config.name, "directory": str(session.directory), "stages": made, **left_out})


def _with_prefect(session: Session, wanted: bool | None) -> bool:
    """Whether the run is a Prefect flow; the server that `cloze ui` has started is put into the environment."""
    from flows.graph import addresses, plan

    if wanted is False:
        return False
    api = addresses.api(plan.runs_directory())
    if api is None:
        return wanted is True
    if wanted is None and not addresses.answers(api):
        session.screen.print(f"[yellow]Prefect at {api} does not answer;[/] going on without it")
        return False
    os.environ.setdefault("PREFECT_API_URL", api)
    return True


def run_with_prefect(session: Session) -> Mapping[str, Result]:
    """Run as a flow; where Prefect cannot be started or reached, say so and do what is left without it.

    What a stage raised is raised, whatever Prefect made of it; so is any other error than that of a missing server.
    """
    from flows.graph import schedule
    from flows.session import run_plain

    prepare_prefect()
    if "PREFECT_API_URL" not in os.environ:
        session.screen.print("[dim]starting a local Prefect server …[/]")
    try:
        from flows.prefect.terminal_run import run_flow

        run_flow(session)
    except Exception as error:
        if session.failures:
            raise schedule.told(session.failures) from None
        if not _is_unreachable(error):
            raise
        rest = session.rest()
        cause = " ".join(str(error).split())[:200]
        forced = [step.name for step in rest.steps if step.forced]
        told = f"; still forced: {', '.join(forced)}" if forced else ""
        session.screen.print(f"[yellow]Prefect cannot be reached ({cause});[/] going on without it{told}")
        return run_plain(rest)
    return session.results


def _is_unreachable(error: Exception) -> bool:
    """Whether the error says that Prefect is not installed, did not start, or does not answer."""
    kinds: tuple[type[Exception], ...] = (ImportError, OSError, RuntimeError)  # RuntimeError: its client's, of a failed start
    try:
        import httpx
        from prefect.exceptions import PrefectHTTPStatusError
    except ImportError:
        return isinstance(error, kinds)
    return isinstance(error, (*kinds, httpx.HTTPError, PrefectHTTPStatusError))


def prepare_prefect() -> None:
    """Settings that must stand in the environment before prefect is imported. The user's own win."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "90")
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")  # as deployed flows; see `flows.prefect.automations`
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the terminal has lines of its own
