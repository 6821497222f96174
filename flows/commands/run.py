"""Commands `run` and `nightly`, options shared with `plan`, and the printed plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from rich.markup import escape

from cloze.flows.commands.option_overrides import emit, json_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloze.core.stages.execute import BuildResult
    from cloze.flows.nightly.result import NightlyResult
    from cloze.flows.run.session import RunParameters, RunSession


Command = TypeVar("Command", bound=Callable[..., Any])


def _overrides(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """Parse the texts of --set."""
    from cloze.flows.graph.overrides import parse

    del ctx, parameter
    return parse(values, "section.key=value, such as pretrain.steps=200", sections=True)


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    callback=_overrides,
    help="Override a config value. Repeatable.",
)


def run_options(command: Command) -> Command:
    """Add the argument CONFIG and the options that select nodes."""
    for decorate in (
        json_option,
        _node_option("--force-node", "force", "Rerun NODE, even if it is cached. Repeatable."),
        _node_option("--until", "until", "Run only NODE and the nodes that it needs. Repeatable."),
        _node_option("--only", "only", "Run only NODE; its inputs must be cached. Repeatable."),
        _node_option(
            "--from", "start_from", "Rerun NODE and all nodes that depend on it. Repeatable."
        ),
        set_option,
        click.argument("config", shell_complete=_complete_configs),
    ):
        command = decorate(command)
    return command


def _node_option(flag: str, name: str, text: str) -> Callable[[Command], Command]:
    return click.option(flag, name, multiple=True, metavar="NODE", help=text)


def _complete_configs(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete presets and YAML files."""
    from cloze.flows.graph.config import preset_names

    del ctx, parameter
    presets = [CompletionItem(name) for name in preset_names() if name.startswith(incomplete)]
    return [*presets, CompletionItem(incomplete, type="file")]


def parameters_of(**values: Any) -> RunParameters:
    """Return the parameters of a run, given the values of `run_options` without `--json`."""
    from cloze.flows.run.session import RunParameters

    nodes = {
        name: list(values.get(name) or ()) for name in ("force", "only", "until", "start_from")
    }
    return RunParameters.model_validate({**values, **nodes})


def show_plan(session: RunSession, as_json: bool) -> None:
    """Print which nodes would run, why, and at what cost."""
    from rich.console import Console

    from cloze.flows.graph import estimate
    from cloze.flows.run import status_file
    from cloze.flows.views import run_tables

    found, last = session.estimates, status_file.last_estimate_error(session.directory)
    together = estimate.parallel_seconds(session.steps, found)
    if as_json:
        nodes = [
            {
                "name": step.name, "stage": step.node.stage, "why": step.reason,
                "cached": step.cached, **found[step.name].as_json(),
                "inputs": step.inputs, "after": list(step.depends_on),
                "fingerprint": step.fingerprint, "artifact": step.artifact,
                "values": dict(step.node.values), "last_seconds": step.last_seconds,
            }
            for step in session.steps
        ]  # fmt: skip
        emit(
            {
                "run": session.config.name,
                "nodes": nodes,
                "seconds": together,
                "last": last,
                "left_out": session.config.left_out,
            }
        )
        return
    run_tables.show(
        Console(highlight=False), session.steps, found, together, last, session.config.left_out
    )


PREFECT = click.option(
    "--prefect/--no-prefect",
    default=None,
    help="Run as a Prefect flow, on a temporary server if none is known, or as plain functions. "
    "Default: as a flow if"
    " the server of PREFECT_API_URL or `cloze ui` answers.",
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
def run(as_json: bool, dry_run: bool, prefect: bool | None, **values: Any) -> None:
    """Run all stages of a config or preset; reuse finished ones.

    CONFIG is a YAML file, or a preset such as demo.
    """
    from cloze.flows.run.session import RunSession

    session = RunSession(parameters_of(**values))
    if dry_run:
        show_plan(session, as_json)
        return
    start(session, prefect=prefect, as_json=as_json)


def start(session: RunSession, *, prefect: bool | None, as_json: bool) -> None:
    """Run a session to its end and print the results.

    Args:
        session: the planned run.
        prefect: run as a Prefect flow; None: only if a known server responds.
        as_json: print one JSON object on standard output.
    """
    from cloze.flows.graph import plan
    from cloze.flows.run.session import run_plain
    from cloze.flows.views import terminal
    from cloze.flows.views.run_tables import left_out_lines

    if session.nothing_to_do or not _with_prefect(session, prefect):
        results = run_plain(session)
        if all(result.cached for result in results.values()):
            session.screen.print("Nothing to do: every node is made.")
    else:
        results = run_with_prefect(session)
    results = {
        step.name: results[step.name] for step in session.steps if step.name in results
    }  # results arrive in any order
    session.screen.print()
    session.screen.print(
        terminal.result_table(results, {step.name: step.node.section for step in session.steps})
    )
    for result in results.values():
        for table in result.manifest.summary.get("tables") or ():
            session.screen.print()
            session.screen.print(terminal.summary_table(table))
            for note in table.get("notes") or ():
                session.screen.print(f"[dim]{escape(note)}[/]")
    for line in left_out_lines(session.config.left_out):
        session.screen.print(f"[yellow]left out:[/] {escape(line)}")
    for result in results.values():
        if result.manifest.summary.get("report"):
            session.screen.print(
                f"\nreport: {Path(result.artifact) / result.manifest.summary['report']}",
                markup=False,
            )
    if as_json:
        made = [{"node": name, **plan.result_json(result)} for name, result in results.items()]
        left_out = {"left_out": session.config.left_out} if session.config.left_out else {}
        emit(
            {
                "run": session.config.name,
                "directory": str(session.directory),
                "stages": made,
                **left_out,
            }
        )


def _with_prefect(session: RunSession, wanted: bool | None) -> bool:
    """Decide whether to run as a Prefect flow, and export the API of the server to use."""
    from cloze.flows.graph import plan
    from cloze.flows.run import server_addresses

    if wanted is False:
        return False
    api = server_addresses.api(plan.runs_directory())
    if api is None:
        return wanted is True
    if wanted is None and not server_addresses.answers(api):
        session.screen.print(f"[yellow]Prefect at {api} does not answer;[/] going on without it")
        return False
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
        if not _is_unreachable(error):
            raise
        rest = session.remaining()
        cause = " ".join(str(error).split())[:200]
        forced = [step.name for step in rest.steps if step.forced]
        told = f"; still forced: {', '.join(forced)}" if forced else ""
        session.screen.print(
            f"[yellow]Prefect cannot be reached ({escape(cause)});[/] going on without it{told}"
        )
        return run_plain(rest)
    return session.results


def _is_unreachable(error: Exception) -> bool:
    """Check whether Prefect is not installed, did not start, or does not respond.

    Prefect's HTTP client (httpx, in newer versions httpx2) is recognized by its base class name.
    """
    kinds = (ImportError, OSError, RuntimeError)  # RuntimeError: the client's, after a failed start
    return isinstance(error, kinds) or any(
        base.__name__ == "HTTPError" for base in type(error).__mro__
    )


@click.command()
@click.argument("config", default="night")
@set_option
@click.option(
    "--since",
    metavar="WHEN",
    help=(
        "Evaluate the checkpoints written since then: 2026-11-20, 36h or 7d. Default: since the "
        "last night."
    ),
)
@click.option(
    "-n", "--dry-run", "dry_run", is_flag=True, help="Print what would be evaluated, and exit."
)
@json_option
def nightly(
    config: str, overrides: dict[str, Any], since: str | None, dry_run: bool, as_json: bool
) -> None:
    """Evaluate new checkpoints against the champion.

    Also draws the trend page. CONFIG is a YAML file with a section night, or the config of any run.
    Default: the built-in suite.
    """
    from cloze.flows.graph.schedule import combine_errors
    from cloze.flows.nightly import nightly_run, suite

    wanted = suite.load(config, overrides)
    if dry_run:
        shown = nightly_run.preview(wanted, since)
        if as_json:
            emit(shown)
        else:
            _show_preview(shown)
        return
    outcome = nightly_run.nightly_run(wanted, since=since)
    _show(outcome)
    if as_json:
        emit(outcome.as_json())
    if outcome.errors:
        raise combine_errors(outcome.errors)


def _show_preview(preview: dict[str, Any]) -> None:
    from rich.console import Console

    from cloze.core.humanize import format_duration
    from cloze.flows.views import terminal

    out = Console(highlight=False)
    champion = preview["champion"]
    out.print(
        f"champion: {champion['run']} step {champion['step']:,}"
        if champion
        else "champion: none yet"
    )
    if not preview["new"]:
        out.print("No new checkpoints.")
        return
    table = terminal.table_of(("new checkpoint", "step", "what"), right=("step",))
    for found in preview["new"]:
        what = next(
            (word for word in ("chosen", "waiting") if found["key"] in preview[word]), "passed over"
        )
        table.add_row(
            found["run"],
            f"{found['step']:,}",
            {"chosen": "evaluate", "waiting": "wait for the next night"}.get(what, what),
        )
    out.print(table)
    todo = [node for node in preview["nodes"] if not node["cached"]]
    known = [node["seconds"] for node in todo if node["seconds"] is not None]
    took = (
        f"; the last time they took {format_duration(sum(known))}"
        if todo and len(known) == len(todo)
        else ""
    )
    out.print(f"\n{len(todo)} of {len(preview['nodes'])} nodes would run{took}.")


def _show(outcome: NightlyResult) -> None:
    from rich.console import Console
    from rich.markup import escape

    from cloze.core.humanize import format_number
    from cloze.flows.views import terminal

    out = Console(stderr=True, highlight=False)
    if outcome.evaluated:
        tasks = list(
            dict.fromkeys(task for result in outcome.evaluated for task in result["scores"])
        )
        out.print()
        table = terminal.table_of(
            ("checkpoint", "step", *tasks, "perplexity"), right=("step", *tasks, "perplexity")
        )
        for result in outcome.evaluated:
            scores = [result["scores"].get(task) for task in tasks]
            shown = [
                f"{100 * score['mean']:.1f} ± {100 * score['deviation']:.1f}" if score else "–"
                for score in scores
            ]
            perplexity = (
                "–" if result["perplexity"] is None else format_number(result["perplexity"])
            )
            table.add_row(result["run"], f"{result['step']:,}", *shown, perplexity)
        out.print(table)
        out.print()
    out.print(f"{escape(outcome.message)}.", soft_wrap=True)
    if outcome.decision:
        out.print(escape(outcome.decision.why), soft_wrap=True)
    if outcome.champion:
        out.print(f"champion: {escape(outcome.champion.describe)}")
    if outcome.trend:
        out.print(f"trend: {outcome.trend}", soft_wrap=True, markup=False)
