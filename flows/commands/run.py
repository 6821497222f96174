"""Commands `run` and `plan`, their options, and the printed plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from cloze.core import storage
from cloze.core.places import runs_directory
from cloze.flows.commands.base.options import Command, complete_from, emit, json_option
from cloze.flows.commands.base.stage_command import parse_overrides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloze.core.stages.execute import BuildResult
    from cloze.flows.run.session import RunSession


def _preset_names(ctx: click.Context) -> list[str]:
    from cloze.flows.graph.config import preset_names

    del ctx
    return preset_names()


complete_config = complete_from(_preset_names, "file")  # presets and YAML files


def _node_names(ctx: click.Context) -> list[str]:
    """Return the nodes and sections of the config on the command line."""
    from cloze.flows.graph import config as configs

    nodes = configs.load(ctx.params["config"], ctx.params.get("overrides")).nodes
    return sorted({*nodes, *(node.section for node in nodes.values())})


_EXAMPLE = "section.key=value, such as pretrain.steps=200"
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    callback=partial(parse_overrides, example=_EXAMPLE, sections=True),
    help="Override a config value. Repeatable.",
)


def run_options(command: Command) -> Command:
    """Add the argument CONFIG and the options that select nodes."""
    for decorate in (
        json_option,
        _node_option(
            "--force-node",
            "force",
            "Rerun NODE, even if it is cached; the nodes that read it only if its content differs. "
            "Repeatable.",
        ),
        _node_option("--until", "until", "Run only NODE and the nodes that it needs. Repeatable."),
        _node_option("--only", "only", "Run only NODE; its inputs must be cached. Repeatable."),
        _node_option(
            "--from", "start_from", "Rerun NODE and all nodes that depend on it. Repeatable."
        ),
        set_option,
        click.argument("config", shell_complete=complete_config),
    ):
        command = decorate(command)
    return command


def _node_option(flag: str, name: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        flag,
        name,
        multiple=True,
        metavar="NODE",
        help=text,
        shell_complete=complete_from(_node_names),
    )


def plan_run(options: Mapping[str, Any]) -> RunSession:
    """Plan a run, given the values of `run_options` without `--json`."""
    from cloze.flows.run.session import RunParameters, RunSession

    return RunSession(RunParameters.model_validate(options))


PREFECT = click.option(
    "--prefect/--no-prefect",
    default=None,
    help="Run as a Prefect flow, on a temporary server if none is known, or as plain functions."
    " Default: as a flow if the server of PREFECT_API_URL or `cloze ui` answers.",
)


@click.command()
@run_options
@click.option(
    "-n",
    "--dry-run",
    "dry_run",
    is_flag=True,
    help="Print the plan and exit, as `cloze plan` does.",
)
@PREFECT
def run(as_json: bool, dry_run: bool, prefect: bool | None, **options: Any) -> None:
    """Run all stages of a config or preset; reuse finished ones.

    CONFIG is a YAML file, or a preset such as demo.
    """
    session = plan_run(options)
    if dry_run:
        show_plan(session, as_json)
    else:
        start(session, prefect=prefect, as_json=as_json)


@click.command()
@run_options
def plan(as_json: bool, **options: Any) -> None:
    """Show which stages would run, why, and at what cost.

    CONFIG is a YAML file, or a preset such as demo.
    """
    show_plan(plan_run(options), as_json)


def show_plan(session: RunSession, as_json: bool) -> None:
    """Print which nodes would run, why, and at what cost."""
    from cloze.flows.graph import estimate
    from cloze.flows.views import run_tables, terminal

    estimates, left_out = session.estimates, session.config.left_out
    total = estimate.parallel_seconds(session.steps, estimates)
    if not as_json:
        run_tables.show(terminal.output(), session.steps, estimates, total, left_out)
        return
    nodes = [
        {
            "name": step.name, "stage": step.node.stage, "why": step.reason,
            "cached": step.cached, **asdict(estimates[step.name]),
            "launcher": step.node.execution.launcher,
            "resources": estimate.resources(step, estimates[step.name]).model_dump(),
            "inputs": step.inputs, "after": list(step.depends_on),
            "fingerprint": step.fingerprint, "artifact": step.artifact,
            "values": dict(step.node.values), "last_seconds": step.last_seconds,
        }
        for step in session.steps
    ]  # fmt: skip
    name = session.config.name
    emit({"run": name, "nodes": nodes, "seconds": total, "left_out": left_out})


def start(session: RunSession, *, prefect: bool | None, as_json: bool) -> None:
    """Run a session to its end and print the results.

    `prefect`: run as a Prefect flow; None: only if a known server responds.
    """
    from cloze.flows.graph.plan import result_json
    from cloze.flows.run.session import run_plain

    if session.nothing_to_do or not _with_prefect(session, prefect):
        results = run_plain(session)
        if all(result.cached for result in results.values()):
            session.screen.print("Nothing to do: all nodes are cached.")
    else:
        results = run_with_prefect(session)
    # in the plan's order
    results = {step.name: results[step.name] for step in session.steps if step.name in results}
    _show_results(session, results)
    if as_json:
        rows = [{"node": name, **result_json(result)} for name, result in results.items()]
        left_out = {"left_out": session.config.left_out} if session.config.left_out else {}
        content = {"run": session.config.name, "directory": str(session.config.directory)}
        emit({**content, "stages": rows, **left_out})


def _show_results(session: RunSession, results: Mapping[str, BuildResult]) -> None:
    """Print the table of results, the tables in their summaries, and the paths of reports."""
    from cloze.flows.views import terminal
    from cloze.flows.views.run_tables import left_out_lines

    screen, summaries = session.screen, [result.manifest.summary for result in results.values()]
    sections = {step.name: step.node.section for step in session.steps}
    screen.print()
    screen.print(terminal.result_table(results, sections))
    for table in (table for summary in summaries for table in summary.get("tables") or ()):
        screen.print()
        screen.print(*terminal.summary_tables(table, screen.width))
        for note in table.get("notes") or ():
            screen.print(f"[dim]{escape(note)}[/]")
    for line in left_out_lines(session.config.left_out):
        screen.print(f"[yellow]left out:[/] {escape(line)}")
    for result, summary in zip(results.values(), summaries, strict=True):
        if summary.get("report"):
            path = storage.join(result.artifact, summary["report"])
            screen.print(f"\nreport: {path}", markup=False, soft_wrap=True)


def _with_prefect(session: RunSession, requested: bool | None) -> bool:
    """Decide whether to run as a Prefect flow, and export the API of the server to use."""
    from cloze.flows.run import server_addresses

    if requested is False:
        return False
    api = server_addresses.api(runs_directory())
    if api is None:
        session.explain("Prefect: no server is known (PREFECT_API_URL, `cloze ui`)")
        return requested is True
    if requested is None and not server_addresses.answers(f"{api}/health"):
        session.screen.print(f"[yellow]Prefect at {api} does not answer;[/] running without it")
        return False
    session.explain(f"Prefect: running as a flow on {api}")
    os.environ.setdefault("PREFECT_API_URL", api)
    return True


def run_with_prefect(session: RunSession) -> Mapping[str, BuildResult]:
    """Run as a Prefect flow; if Prefect is unreachable, print that and run the rest without it.

    Errors of stages are raised as they are, and so is any error that is not about the server.
    """
    from cloze.flows.graph import schedule
    from cloze.flows.prefect.environment import prepare_prefect
    from cloze.flows.run.session import run_plain

    prepare_prefect()
    if "PREFECT_API_URL" not in os.environ:
        session.screen.print("[dim]starting a local Prefect server …[/]")
    try:
        from cloze.flows.prefect.graph_run import run_flow

        run_flow(session)
    except Exception as error:
        if session.failures:
            raise schedule.combine_errors(session.failures) from None
        # Prefect is not installed, did not start, or does not answer. Its HTTP client (httpx, in
        # newer versions httpx2) is known by its base class; RuntimeError: after a failed start.
        bases = [base.__name__ for base in type(error).__mro__]
        if not isinstance(error, (ImportError, OSError, RuntimeError)) and "HTTPError" not in bases:
            raise
        remaining = session.remaining()
        cause = " ".join(str(error).split())[:200]
        forced = [step.name for step in remaining.steps if step.forced]
        note = f"; still forced: {', '.join(forced)}" if forced else ""
        session.screen.print(
            f"[yellow]Prefect is unreachable ({escape(cause)});[/] continuing without it{note}"
        )
        return run_plain(remaining)
    return session.results
