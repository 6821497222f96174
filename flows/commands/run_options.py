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
    return _options(command, required=True)


def plan_options(command: Command) -> Command:
    """The same, of a verb that can also do without a run's config."""
    return _options(command, required=False)


def _options(command: Command, *, required: bool) -> Command:
    for decorate in (
        json_option,
        click.option("--force", multiple=True, metavar="NODE", help="Run NODE again, whatever is there."),
        click.option("--until", multiple=True, metavar="NODE", help="Run NODE and what it needs, and nothing else."),
        click.option("--only", multiple=True, metavar="NODE", help="Run NODE alone; its inputs must be there."),
        click.option(
            "--from", "start_from", multiple=True, metavar="NODE", help="Run NODE and all that needs it, whatever is there."
        ),
        set_option,
        click.argument("config", required=required),
    ):
        command = decorate(command)
    return command


def parameters_of(**values: Any) -> RunParameters:
    """Args: values: of `run_options`, without `--json`."""
    from flows.session import RunParameters

    nodes = {name: list(values.get(name) or ()) for name in ("force", "only", "until", "start_from")}
    return RunParameters.model_validate({**values, **nodes})


def show_plan(session: Session, as_json: bool) -> None:
    """What would run, why, and what it will take."""
    from rich.console import Console

    from flows.graph import estimate
    from flows.views import plan_tree

    found, last = session.estimates, estimate.last_time(session.directory)
    together = estimate.together(session.steps, found)
    if as_json:
        nodes = [
            {
                "name": step.name, "stage": step.node.stage, "why": step.why, "cached": step.cached, **found[step.name].as_json(),
                "inputs": step.inputs, "after": list(step.after), "fingerprint": step.fingerprint, "artifact": step.artifact,
                "values": dict(step.node.values), "last_seconds": step.last_seconds,
            }
            for step in session.steps
        ]  # fmt: skip
        emit(
            {"run": session.config.name, "nodes": nodes, "seconds": together, "last": last, "left_out": session.config.left_out}
        )
        return
    plan_tree.show(Console(highlight=False), session.steps, found, together, last, session.config.left_out)
