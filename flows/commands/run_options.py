"""What `cloze run` and `cloze plan` share: their options, and the parameters that these come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flows.commands.common import emit, json_option

if TYPE_CHECKING:
    from flows.session import RunParameters, Session

Command = TypeVar("Command", bound=Callable[..., Any])


def _overrides(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """`--set`: the border at which texts become values."""
    from flows.graph.overrides import parse

    del ctx, parameter
    return parse(values, "section.key=value, such as pretrain.steps=200", sections=True)


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    callback=_overrides,
    help="Override a config value.",
)


def run_options(command: Command) -> Command:
    """The options that say what a run consists of."""
    for decorate in (
        json_option,
        click.option("--force", multiple=True, metavar="NODE", help="Run NODE again, whatever is there."),
        click.option("--only", multiple=True, metavar="NODE", help="Run NODE alone; its inputs must be there."),
        click.option(
            "--from", "start_from", multiple=True, metavar="NODE", help="Run NODE and all that needs it, whatever is there."
        ),
        set_option,
        click.argument("config"),
    ):
        command = decorate(command)
    return command


def parameters_of(**values: Any) -> RunParameters:
    """Args: values: of `run_options`, without `--json`."""
    from flows.session import RunParameters

    nodes = {name: list(values[name]) for name in ("force", "only", "start_from")}
    return RunParameters.model_validate({**values, **nodes})


def show_plan(session: Session, as_json: bool) -> None:
    """What would run, and why, and how long it took the last time."""
    from rich.console import Console

    from flows.views import terminal
    from pipeline.core.humanize import duration

    if as_json:
        nodes = [
            {
                "name": step.name, "stage": step.node.stage, "why": step.why, "cached": step.cached, "seconds": step.last_seconds,
                "inputs": step.inputs, "after": list(step.after), "fingerprint": step.fingerprint, "artifact": step.artifact,
            }
            for step in session.steps
        ]  # fmt: skip
        emit({"run": session.config.name, "nodes": nodes})
        return
    out = Console(highlight=False)
    out.print(terminal.plan_table(session.steps))
    todo = [step for step in session.steps if not step.cached]
    known = [step.last_seconds for step in todo if step.last_seconds is not None]
    if not todo:
        out.print("\nNothing to do.")
    elif len(known) == len(todo):
        out.print(f"\n{len(todo)} of {len(session.steps)} nodes would run; the last time they took {duration(sum(known))}.")
    else:
        out.print(f"\n{len(todo)} of {len(session.steps)} nodes would run.")
