"""Stages as commands: click commands whose options are made from the stage on first use.

    MERGE = StageCommand("merge", stage="merge", positional=("checkpoint",), help="Average …")

The table of commands lists names without importing a stage. A stage of a plugin, without a line
there, gets `StageCommand(name, stage=name)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from cloze.core.errors import UsageError
from cloze.core.places import runs_directory
from cloze.flows.commands.base.options import (
    INPUTS,
    JSON_HELP,
    STAGES,
    GroupedCommand,
    GroupedOption,
    OptionOverride,
    Placement,
    complete_targets,
    emit,
    placements,
)

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult
    from cloze.core.stages.stage import Stage

# prefixes of the Python parameter names
OF_CONFIG, OF_EXECUTION, OF_INPUTS = ("config__", "execution__", "input__")
# fields of Execution that only a run of several nodes uses
RUN_ONLY_FIELDS = frozenset({"oversubscribe", "retries", "retry_seconds"})
CHECKPOINT_HELP = "Checkpoint directory, or an artifact that contains one."
PROCESS_OPTIONS = frozenset({"threads", "timeout_minutes"})
SINGLE_GPU_OPTIONS = PROCESS_OPTIONS | {"device", "gpu_ids"}


def execution_fields(stage: Stage) -> frozenset[str]:
    """Return the fields of `Execution` that affect a stage by itself."""
    from cloze.core.stages.execution import BeamOptions

    if stage.worker is None:
        return frozenset()
    if stage.worker == "cloze.pipeline":
        unread = set() if stage.name == "corpus" else {"dedup_in_memory_documents"}
        return frozenset(BeamOptions.model_fields) - unread
    if not stage.parallel:
        return SINGLE_GPU_OPTIONS if stage.on_gpu else PROCESS_OPTIONS
    return parallel_fields() - stage.unread


def parallel_fields() -> frozenset[str]:
    """Return the fields of `Execution` that affect a stage of several processes by itself."""
    from cloze.core.stages.execution import BeamOptions, Execution

    return frozenset(Execution.model_fields) - set(BeamOptions.model_fields) - RUN_ONLY_FIELDS


@dataclass(slots=True, kw_only=True)
class StageArguments:
    """Arguments of a stage's command, without defaults."""

    stage: str
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)
    # nested values of `--set`, applied over `config`
    overrides: dict[str, Any] = field(default_factory=dict)
    out: str | None = None
    force: bool = False
    as_json: bool = False
    transient: bool = False  # delete the artifact at the end if `out` is not given


class StageCommand(GroupedCommand):
    """Command of a stage; its function has the parameter `arguments` and those that it declares.

    Args:
        inputs: option and help text by role; other inputs have generic ones.
        positional: input roles or config fields that are arguments instead of options.
        spelled: spelling of options by config field.
        checks_required: `--out` and required inputs are checked here; otherwise by the command.
        transient: without `--out`, delete the artifact after its metrics are printed.
        has_artifact: the command builds an artifact; otherwise the options for that are absent.
        callback: function of the command; default: `run_stage`.
    """

    def __init__(
        self,
        name: str | None,
        *,
        stage: str,
        inputs: Mapping[str, tuple[str, str]] | None = None,
        positional: tuple[str, ...] = (),
        spelled: Mapping[str, OptionOverride] | None = None,
        checks_required: bool = True,
        transient: bool = False,
        has_artifact: bool = True,
        **settings: Any,
    ) -> None:
        settings.setdefault("callback", run_stage)
        super().__init__(name, **settings)
        self.stage, self.inputs, self.spelled = stage, inputs or {}, spelled or {}
        self.positional, self.checks_required = positional, checks_required
        self.transient, self.has_artifact = transient, has_artifact

    def all_params(self) -> list[click.Parameter]:
        return [*self._options(), *self.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Also take the first argument as an option, as other commands call it: `--checkpoint`."""
        flag = f"--{self.positional[0]}" if self.positional else ""
        for place, text in enumerate(args):
            name, is_joined, value = text.partition("=")
            if flag and name == flag:
                values = [value] if is_joined else args[place + 1 : place + 2]
                args = [*values, *args[:place], *args[place + 1 + (not is_joined) :]]
                break
        return super().parse_args(ctx, args)

    def _options(self) -> Iterator[click.Parameter]:
        from cloze.flows.commands.base.field_options import execution_options, field_options
        from cloze.flows.graph import stages

        stage = stages.stage(self.stage)
        for name in self.positional:
            is_input = name in stage.inputs
            yield click.Argument(
                [f"{OF_INPUTS if is_input else OF_CONFIG}{name}"],
                metavar=name.upper(),
                shell_complete=complete_targets if is_input else None,
            )
        yield from self._input_options(stage)
        placed = placements(self.stage)
        if self.stage not in STAGES:  # plugin: all options are common
            for name in stage.config.model_fields:
                placed.setdefault(name, Placement("Config", True))
        yield from field_options(
            stage.config, OF_CONFIG, placed, self.spelled, lambda name: name not in self.positional
        )
        if self.has_artifact:
            yield from execution_options(
                OF_EXECUTION, self.stage, execution_fields(stage).__contains__
            )
            yield GroupedOption(
                ["-o", "--out", "out"],
                required=self.checks_required and not self.transient,
                metavar="DIR",
                help="Directory of the artifact to write."
                + (" Default: the artifact is not kept." if self.transient else ""),
            )
        yield GroupedOption(
            ["--set", "overrides"],
            multiple=True,
            metavar="KEY=VALUE",
            callback=parse_overrides,
            help="Config field of the stage, by its name; run.KEY is how it runs. Repeatable.",
        )
        if self.has_artifact:
            yield GroupedOption(
                ["--force"],
                is_flag=True,
                help="Rebuild a finished artifact, and replace one with other settings. An"
                " interrupted build with the same settings still resumes.",
            )
        yield GroupedOption(["--json", "as_json"], is_flag=True, help=JSON_HELP)

    def _input_options(self, stage: Stage) -> Iterator[click.Parameter]:
        for role, spec in stage.inputs.items():
            if role in self.positional:
                continue
            usual = CHECKPOINT_HELP if role == "checkpoint" else f"{role.capitalize()} artifact."
            own = (spec.option or f"--{role}", spec.help or usual)
            flag, text = self.inputs.get(role, own)
            yield GroupedOption(
                [flag, f"{OF_INPUTS}{role}"],
                group=INPUTS,
                required=self.checks_required and spec.required,
                type=click.Path(),
                metavar="[NAME=]PATH" if spec.multiple else "PATH",
                help=text,
                multiple=spec.multiple,
                shell_complete=complete_targets,
            )

    def invoke(self, ctx: click.Context) -> Any:
        arguments = StageArguments(
            stage=self.stage,
            config=pop_prefixed(ctx.params, OF_CONFIG),
            inputs=_input_paths(pop_prefixed(ctx.params, OF_INPUTS)),
            execution=pop_prefixed(ctx.params, OF_EXECUTION),
            transient=self.transient,
        )
        for name in ("overrides", "out", "force", "as_json"):
            if name in ctx.params:
                setattr(arguments, name, ctx.params.pop(name))
        ctx.params["arguments"] = arguments
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.help is None:
            from cloze.flows.graph import stages

            self.help = stages.stage(self.stage).config.__doc__
        super().format_help_text(ctx, formatter)


def pop_prefixed(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the parameters with this prefix and return those that are given, without it."""
    popped = {name: values.pop(name) for name in list(values) if name.startswith(prefix)}
    return {
        name.removeprefix(prefix): value
        for name, value in popped.items()
        if value is not None and value != ()
    }


def _input_paths(inputs: Mapping[str, str | tuple[str, ...]]) -> dict[str, str]:
    """Return paths by input key; several inputs of a role are named, by default by directory."""
    from cloze.core.stages.stage import assign_input_keys
    from cloze.flows.run.targets import resolve_path

    paths: dict[str, str] = {}
    for role, value in inputs.items():
        if isinstance(value, str):
            paths[role] = value
        elif len(value) == 1 and os.path.exists(value[0]):  # a path may contain an equals sign
            paths[role] = value[0]
        else:
            paths |= assign_input_keys(
                role, value, lambda path: path.rstrip("/").rpartition("/")[2]
            )
    # the directory of an import may be a repository of a Hub
    return {
        role: path if role == "directory" else resolve_path(path) for role, path in paths.items()
    }


def parse_overrides(
    ctx: click.Context,
    parameter: click.Parameter,
    values: tuple[str, ...],
    example: str = "KEY=VALUE, such as seed=2",
    sections: bool = False,
) -> dict[str, Any]:
    """Parse the texts of `--set` into nested values."""
    del ctx, parameter
    if not values:
        return {}
    from cloze.flows.graph.overrides import parse

    return parse(values, example, sections)


def run_stage(
    arguments: StageArguments, more: Callable[[BuildResult], dict[str, Any]] | None = None
) -> None:
    """Build one artifact and print the result.

    `more`: returns additional JSON values; called before a transient artifact is deleted.
    """
    if arguments.out is None and arguments.transient:
        import tempfile

        run = {**arguments.execution, **(arguments.overrides.get("run") or {})}
        # where a job on another host sees it
        shared = None if run.get("launcher", "local") == "local" else runs_directory().absolute()
        os.makedirs(shared or ".", exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cloze-", dir=shared) as directory:
            _build(replace(arguments, out=f"{directory}/{arguments.stage}"), more)
    else:
        _build(replace(arguments, transient=False), more)


def _build(arguments: StageArguments, more: Callable[[BuildResult], dict[str, Any]] | None) -> None:
    from cloze.core.config import parse_config
    from cloze.core.stages.execute import join_execution
    from cloze.core.stages.execution import Execution
    from cloze.flows.graph import plan, stages
    from cloze.flows.graph.command import CommandConfig, records_directory
    from cloze.flows.graph.nodes import InputSource, Node
    from cloze.flows.graph.overrides import merge
    from cloze.flows.launch import host_setup
    from cloze.flows.run.session import RunParameters, RunSession
    from cloze.flows.views import terminal

    name, out, screen = arguments.stage, arguments.out, terminal.console()
    stage = stages.executable(name)
    overrides = dict(arguments.overrides)
    run = overrides.pop("run", {})  # as in a section of a config
    if not isinstance(run, Mapping):
        raise UsageError(f"--set run ({run!r}) is no value; write run.KEY=VALUE, as run.threads=2")
    run = merge(arguments.execution, run, None, "run")
    values = merge(arguments.config, overrides, stage.config, name)
    config = parse_config(stage.config, values, name)
    execution = parse_config(Execution, run, "run")
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    if stage.reads_all_nodes and not arguments.inputs:
        raise click.UsageError(
            f"{name} gathers the nodes of a run; use `cloze run CONFIG --only {name}`"
        )
    foreign = host_setup.foreign_rank()
    if foreign is not None and arguments.force:
        raise UsageError(f"--force does not work under torchrun; remove {out} instead")
    if foreign is not None and foreign[0] > 0:
        join_execution(stage, config, arguments.inputs, out, execution=execution)
        return
    node = Node(
        name=name,
        stage=name,
        section=name,
        values={},
        config=config,
        execution=execution,
        inputs={role: InputSource(path=path) for role, path in arguments.inputs.items()},
        out=out,
    )
    parameters = RunParameters(config=out, force=[name] if arguments.force else [])
    runs, is_transient = runs_directory(), arguments.transient
    with records_directory(runs, out, is_transient=is_transient) as directory:
        command = CommandConfig(node=node, directory=directory, is_transient=is_transient)
        with screen.status(f"{name}: reading inputs …"):
            session = RunSession(parameters, screen, config=command)
        with session:
            result = session.run_node(session.steps[0])
    extra = more(result) if more else {}
    if arguments.as_json:
        content = {**plan.result_json(result), **extra}
        emit(without_deleted(content, result.artifact) if is_transient else content)


def without_deleted(content: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return the content without the paths of a directory that ends with the command."""
    return {key: value for key, value in content.items() if not str(value).startswith(directory)}
