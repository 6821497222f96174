"""What the verbs share: options, config from options, running one stage with display and `--json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pipeline.core.execute import Result

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of standard output.")
runner_options = (
    click.option("--workers", type=click.IntRange(min=1), help="Beam workers that share the work."),
    click.option("--runner", help="local, flink, or another Beam runner's name, such as SparkRunner (docs/engines.md)."),
    click.option("--flink-master", metavar="HOST:PORT", help="A Flink cluster's REST address; without it, Flink is embedded."),
    click.option("--worker-pool", metavar="HOST:PORT", help="Where each task manager finds its worker pool (localhost:50000)."),
    click.option("--beam-option", "beam_options", multiple=True, metavar="--NAME=VALUE", help="Passed to Beam as it is."),
)
RUNNER_NAMES = ("workers", "runner", "flink_master", "worker_pool", "beam_options")  # of `runner_options`


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several click options as one decorator, in the order given."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def stage_options(command: Command) -> Command:
    """`--out`, `--set`, `--force` and `--json`: what every stage's verb takes."""
    return options(
        click.option("--out", required=True, metavar="DIR", help="The artifact's directory."),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other config field of the stage."),
        click.option("--force", is_flag=True, help="Make it again, whatever is there."),
        json_option,
    )(command)


def given(**values: Any) -> dict[str, Any]:
    """The options that were given: those that are not None and no empty tuple."""
    return {key: value for key, value in values.items() if value is not None and value != ()}


def run_stage(
    name: str,
    values: Mapping[str, Any],
    inputs: Mapping[str, str | None],
    execution: Mapping[str, Any],
    *,
    out: str,
    settings: tuple[str, ...],
    force: bool,
    as_json: bool,
    more: Callable[[Result], dict[str, Any]] | None = None,
    **runner: Any,
) -> None:
    """Make one artifact as the user asked, and tell what came of it.

    Args:
        more: tells more of the result, and gives it as JSON.
        runner: those `runner_options` that a verb just passes on.
    """
    from flows.cli import emit
    from flows.graph import config as configs
    from flows.graph import plan, stages
    from flows.views import terminal
    from pipeline.core.config import parse_config
    from pipeline.core.execute import execute, join_execution
    from pipeline.core.execution import Execution

    stage = stages.stage(name)
    merged = {name: dict(values)}
    for setting in settings:
        configs.apply_override(merged, f"{name}.{setting}")
    screen = terminal.console()
    config = parse_config(stage.config, merged[name], name)
    how = parse_config(Execution, {**execution, **given(**runner)}, "run")
    paths = {key: path for key, path in inputs.items() if path is not None}
    with terminal.StageDisplay(name, screen) as display:
        if how.node_rank > 0:
            join_execution(stage, config, paths, out, execution=how, report=display)
            return
        result = execute(stage, config, paths, out, execution=how, force=force, report=display)
    screen.print(terminal.done_line(result) + f"  [dim]{result.artifact}[/]")
    told = more(result) if more else {}
    if as_json:
        emit({**plan.result_json(result), **told})
