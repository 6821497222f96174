"""Stages as commands: click commands whose options are made from the stage on first use.

    MERGE = StageCommand("merge", stage="merge", arguments=("checkpoint",), help="Average …")

The table of commands lists names without importing a stage. A stage without its own command gets
`stage_command(name)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.help import STAGES, Place, places
from cloze.flows.commands.option_overrides import (
    INPUTS,
    JSON_HELP,
    GroupedCommand,
    GroupedOption,
    OptionOverride,
    emit,
)

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult
    from cloze.core.stages.stage import Stage

# prefixes of the Python parameter names
OF_CONFIG, OF_EXECUTION, OF_INPUTS = ("config__", "execution__", "input__")
# fields of Execution that data stages use
BEAM = frozenset(
    {
        "workers",
        "runner",
        "flink_master",
        "worker_pool",
        "beam_options",
        "dedup_in_memory_documents",
    }
)
# fields of Execution that only a run of several nodes uses
RUN_ONLY_FIELDS = frozenset({"cpus", "oversubscribe", "retries", "retry_seconds"})
OF_ANY_PROCESS = frozenset({"threads", "timeout_minutes"})
OF_ONE_GPU = OF_ANY_PROCESS | {"device", "gpu_ids"}


def execution_fields(stage: Stage) -> frozenset[str]:
    """Return the fields of `Execution` that affect a stage by itself."""
    from cloze.core.stages.execution import Execution

    if stage.worker is None:
        return frozenset()
    if stage.worker == "cloze.pipeline":
        return BEAM
    if not stage.parallel:
        return OF_ONE_GPU if stage.on_gpu else OF_ANY_PROCESS
    return frozenset(Execution.model_fields) - BEAM - RUN_ONLY_FIELDS - stage.unread


@dataclass(slots=True, kw_only=True)
class StageArguments:
    """Arguments of a stage's command, without defaults.

    Attributes:
        stage: name of the stage.
        config: values by field.
        inputs: paths by role.
        execution: execution settings by field.
        overrides: nested values of `--set`, applied over `config`.
        out: directory of the artifact.
        force: rebuild the artifact even if it is cached.
        as_json: print one JSON object.
        transient: delete the artifact at the end if `out` is not given.
    """

    stage: str
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    out: str | None = None
    force: bool = False
    as_json: bool = False
    transient: bool = False


class StageCommand(GroupedCommand):
    """Command of a stage. Its function takes `given`, and the parameters that it declares itself.

    Args:
        stage: name in the tables of stages.
        inputs: option and help text by role; other inputs have generic ones.
        arguments: input roles or config fields that are arguments instead of options.
        spelled: spelling of options by config field.
        demanding: `--out` and the stage's inputs are required; otherwise the command checks them.
        transient: without `--out`, delete the artifact after its metrics are printed.
        makes: the command builds an artifact; otherwise the options for that are absent.
        callback: function of the command; default: `run_stage`.
    """

    def __init__(
        self,
        name: str | None,
        *,
        stage: str,
        inputs: Mapping[str, tuple[str, str]] | None = None,
        arguments: tuple[str, ...] = (),
        spelled: Mapping[str, OptionOverride] | None = None,
        demanding: bool = True,
        transient: bool = False,
        makes: bool = True,
        **settings: Any,
    ) -> None:
        settings.setdefault("callback", run_stage)
        super().__init__(name, **settings)
        self.stage, self.inputs, self.spelled = stage, inputs or {}, spelled or {}
        self.arguments, self.demanding, self.transient, self.makes = (
            arguments,
            demanding,
            transient,
            makes,
        )
        self._complete = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._complete:
            self._complete = True
            self.params = [*self._options(), *self.params]
        return super().get_params(ctx)

    def _options(self) -> Iterator[click.Parameter]:
        from cloze.flows.commands.options import execution_options, field_options
        from cloze.flows.graph import stages

        stage = stages.stage(self.stage)
        for name in self.arguments:
            prefix = OF_INPUTS if name in stage.inputs else OF_CONFIG
            yield click.Argument([f"{prefix}{name}"], metavar=name.upper())
        yield from self._inputs(stage)
        placed = places(self.stage)
        if self.stage not in STAGES:  # plugin: all options are common
            placed |= {
                name: Place("Config", True)
                for name in stage.config.model_fields
                if name not in placed
            }
        yield from field_options(
            stage.config, OF_CONFIG, placed, self.spelled, lambda name: name not in self.arguments
        )
        if self.makes:
            yield from execution_options(
                OF_EXECUTION, self.stage, execution_fields(stage).__contains__
            )
            yield GroupedOption(
                ["-o", "--out", "out"],
                required=self.demanding and not self.transient,
                metavar="DIR",
                help="Directory of the artifact to write."
                + (" Default: the artifact is not kept." if self.transient else ""),
            )
        yield GroupedOption(
            ["--set", "overrides"],
            multiple=True,
            metavar="KEY=VALUE",
            callback=_overrides,
            help="Config field of the stage, by its name. Repeatable.",
        )
        if self.makes:
            yield GroupedOption(
                ["--force"],
                is_flag=True,
                help="Rebuild a finished artifact, and replace one with other settings. An "
                "interrupted build with the"
                " same settings still resumes.",
            )
        yield GroupedOption(["--json", "as_json"], is_flag=True, help=JSON_HELP)

    def _inputs(self, stage: Stage) -> Iterator[click.Parameter]:
        for name, wanted in stage.inputs.items():
            if name in self.arguments:
                continue
            flag, text = self.inputs.get(name, (f"--{name}", _input_help(name)))
            yield GroupedOption(
                [flag, f"{OF_INPUTS}{name}"],
                group=INPUTS,
                required=self.demanding and wanted.required,
                type=click.Path(),
                metavar="[NAME=]PATH" if wanted.multiple else "PATH",
                help=text,
                multiple=wanted.multiple,
            )

    def invoke(self, ctx: click.Context) -> Any:
        values = ctx.params

        def below(prefix: str) -> dict[str, Any]:
            """Remove and return the given parameters with this prefix."""
            found = {
                name.removeprefix(prefix): values.pop(name)
                for name in list(values)
                if name.startswith(prefix)
            }
            return {
                name: value for name, value in found.items() if value is not None and value != ()
            }

        inputs = _spread(below(OF_INPUTS))
        given = StageArguments(
            stage=self.stage, config=below(OF_CONFIG), inputs=inputs, execution=below(OF_EXECUTION)
        )
        given.transient = self.transient
        for name in ("overrides", "out", "force", "as_json"):
            if name in values:
                setattr(given, name, values.pop(name))
        ctx.params = {"given": given, **values}
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.help is None:
            from cloze.flows.graph import stages

            self.help = stages.stage(self.stage).config.__doc__
        super().format_help_text(ctx, formatter)


def _input_help(role: str) -> str:
    """Return the generic help text of an input."""
    if role == "checkpoint":
        return "Checkpoint directory, or an artifact that contains one."
    return f"{role.capitalize()} artifact."


def _spread(inputs: Mapping[str, str | tuple[str, ...]]) -> dict[str, str]:
    """Return paths by input key; several inputs of a role are named, by default by directory."""
    found: dict[str, str] = {}
    for role, given in inputs.items():
        if isinstance(given, str):
            found[role] = given
            continue
        from cloze.core.stages import stage

        whole = len(given) == 1 and os.path.exists(given[0])  # a path may contain an equals sign
        found |= (
            {role: given[0]}
            if whole
            else stage.assign_input_keys(
                role, given, lambda path: path.rstrip("/").rpartition("/")[2]
            )
        )
    return found


def _overrides(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """Parse the texts of `--set` into nested values."""
    del ctx, parameter
    if not values:
        return {}
    from cloze.flows.graph.overrides import parse

    return parse(values, "KEY=VALUE, such as seed=2")


def stage_command(name: str) -> click.Command:
    """Return the command of a stage that has none of its own."""
    return StageCommand(name, stage=name)


def run_stage(
    given: StageArguments, more: Callable[[BuildResult], dict[str, Any]] | None = None
) -> None:
    """Build one artifact and print the result.

    Args:
        given: the command's arguments.
        more: returns additional JSON values; called before a transient artifact is deleted.
    """
    if given.out is None and given.transient:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
            _make(replace(given, out=f"{directory}/{given.stage}"), more)
        return
    _make(replace(given, transient=False), more)


def _make(given: StageArguments, more: Callable[[BuildResult], dict[str, Any]] | None) -> None:
    from cloze.core.config import parse_config
    from cloze.core.errors import UsageError
    from cloze.core.stages.execute import join_execution
    from cloze.core.stages.execution import Execution
    from cloze.flows.graph import plan, stages
    from cloze.flows.graph.command import CommandConfig, records_directory
    from cloze.flows.graph.nodes import InputSource, Node
    from cloze.flows.graph.overrides import merge
    from cloze.flows.launch import host_setup
    from cloze.flows.run.session import RunParameters, RunSession
    from cloze.flows.views import terminal

    name, screen = given.stage, terminal.console()
    stage = stages.stage(name)
    config = parse_config(
        stage.config, merge(given.config, given.overrides, stage.config, name), name
    )
    how = parse_config(Execution, given.execution, "run")
    if given.out is None:
        raise click.UsageError("missing option --out; name the directory to write to")
    if stage.reads_all_nodes and not given.inputs:
        raise click.UsageError(
            f"{name} gathers the nodes of a run; run it there: cloze run CONFIG --only {name}"
        )
    foreign = host_setup.foreign_rank()
    if foreign is not None and given.force:
        raise UsageError(f"--force conflicts with torchrun; remove {given.out} instead")
    if foreign is not None and foreign[0] > 0:
        join_execution(stage, config, given.inputs, given.out, execution=how)
        return
    inputs = {role: InputSource(path=path) for role, path in given.inputs.items()}
    node = Node(
        name=name,
        stage=name,
        section=name,
        values={},
        config=config,
        execution=how,
        inputs=inputs,
        out=given.out,
    )
    parameters = RunParameters(config=given.out, force=[name] if given.force else [])
    runs = plan.runs_directory()
    with records_directory(runs, given.out, is_transient=given.transient) as directory:
        graph = CommandConfig(node=node, directory=directory, is_transient=given.transient)
        with screen.status(f"{name}: inputs are read …"):
            session = RunSession(parameters, screen, config=graph)
        with session:
            result = session.run_node(session.steps[0])
    told = more(result) if more else {}
    if given.as_json:
        content = {**plan.result_json(result), **told}
        if given.transient:
            del content["artifact"]
        emit(content)
