"""A stage as a verb: a click command whose options are made from the stage when they are first asked for.

    @click.command(cls=StageCommand, stage="pretrain", inputs={...}, spelled={...})
    def pretrain(given: Given) -> None:
        run_stage(given)

The table of verbs lists them without importing a stage. A stage without a module here gets `stage_command(name)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from flows.commands.common import emit
from flows.commands.spelling import CONFIG, EXECUTION, GENERAL, GROUPS, INPUTS, GroupedOption, Spelled

if TYPE_CHECKING:
    from flows.views.live import StageDisplay
    from pipeline.core.config import StageConfig
    from pipeline.core.execute import Result
    from pipeline.core.execution import Execution
    from pipeline.core.reporting import Reporter
    from pipeline.core.stage import Stage

OF_CONFIG, OF_EXECUTION, OF_INPUTS = "config__", "execution__", "input__"  # prefixes of the parameters' names in Python
PASSED_ON = {  # options for others, one a time
    "beam_options": Spelled("--beam-option", settings={"metavar": "--NAME=VALUE"}),
    "slurm_options": Spelled("--slurm-option", settings={"metavar": "--NAME=VALUE"}),
    "kubernetes_options": Spelled("--kubernetes-option", settings={"metavar": "NAME=VALUE"}),
}
BEAM = frozenset(
    {"workers", "runner", "flink_master", "worker_pool", "beam_options", "driver_references"}
)  # what of Execution data stages use
OF_RUNS = frozenset({"cpus", "share", "retries", "retry_seconds"})  # and what only a run of several nodes does


@dataclass(slots=True, kw_only=True)
class Given:
    """What the user asked of a stage's verb: options that were given, and nothing else.

    Attributes:
        config: values by field; `overrides`, those of `--set`, nested, go on top.
        inputs: paths by the input's name.
        out: the artifact's directory.
        transient: whether the artifact is thrown away where no directory is named.
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


class StageCommand(click.Command):
    """The verb of a stage. Its function takes `given`, and the options and arguments that it declares itself.

    Args:
        stage: a name in the tables of stages.
        inputs: how inputs are spelled, by name: (option, help); without help the general one; None: the verb has its own.
        spelled: how fields are spelled, by name.
        out: the option that names the artifact's directory.
        demanding: whether `out` and the stage's inputs must be given; else the verb looks after that.
        transient: whether the artifact is thrown away, once its figures are told, where `out` is not given.
    """

    def __init__(
        self,
        *arguments: Any,
        stage: str,
        inputs: Mapping[str, tuple[str, str] | None] | None = None,
        spelled: Mapping[str, Spelled] | None = None,
        out: str = "--out",
        demanding: bool = True,
        transient: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.stage, self.inputs, self.spelled, self.out, self.demanding = stage, inputs or {}, spelled or {}, out, demanding
        self.transient = transient
        self._complete = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._complete:
            self.params += self._options()
            self._complete = True
        return super().get_params(ctx)

    def _options(self) -> Iterator[click.Parameter]:
        from flows.commands.options import field_options
        from flows.graph import stages
        from pipeline.core.execution import Execution

        stage = stages.stage(self.stage)
        yield from self._inputs(stage)
        yield from field_options(stage.config, OF_CONFIG, CONFIG, self.spelled)
        if stage.worker is not None:
            beam = stage.worker == "pipeline"
            wanted = BEAM if beam else Execution.model_fields.keys() - BEAM - OF_RUNS
            yield from field_options(Execution, OF_EXECUTION, EXECUTION, PASSED_ON, wanted.__contains__)
        told = "The directory of what is made" + ("; without it only figures are told." if self.transient else ".")
        yield GroupedOption([self.out, "out"], required=self.demanding and not self.transient, metavar="DIR", help=told)
        yield GroupedOption(
            ["--set", "overrides"],
            multiple=True,
            metavar="KEY=VALUE",
            callback=_overrides,
            help="Any config field of the stage.",
        )
        yield GroupedOption(["--force"], is_flag=True, help="Make it again, whatever is there.")
        yield GroupedOption(
            ["--json", "as_json"], is_flag=True, help="Print one JSON object as the last line of standard output."
        )

    def _inputs(self, stage: Stage) -> Iterator[click.Parameter]:
        for name, wanted in stage.inputs.items():
            spelled = self.inputs.get(name, (f"--{name}", f"What stage {name} made."))
            if spelled is not None:
                flag, told = spelled
                required = self.demanding and wanted.required
                metavar = "[NAME=]PATH" if wanted.several else "PATH"
                yield GroupedOption(
                    [flag, f"{OF_INPUTS}{name}"],
                    group=INPUTS,
                    required=required,
                    metavar=metavar,
                    help=told,
                    multiple=wanted.several,
                )

    def invoke(self, ctx: click.Context) -> Any:
        values = ctx.params

        def below(prefix: str) -> dict[str, Any]:
            """The parameters with this prefix that were given."""
            found = {name.removeprefix(prefix): values.pop(name) for name in list(values) if name.startswith(prefix)}
            return {name: value for name, value in found.items() if value is not None and value != ()}

        inputs = _spread(below(OF_INPUTS))
        given = Given(stage=self.stage, config=below(OF_CONFIG), inputs=inputs, execution=below(OF_EXECUTION))
        given.transient = self.transient
        for name in ("overrides", "out", "force", "as_json"):
            setattr(given, name, values.pop(name))
        ctx.params = {"given": given, **values}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                rows[getattr(parameter, "group", GENERAL)].append(record)
        for group, records in rows.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def get_short_help_str(self, limit: int = 45) -> str:
        return super().get_short_help_str(limit) or f"The stage {self.stage} by itself."

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.help is None:
            from flows.graph import stages

            self.help = stages.stage(self.stage).config.__doc__
        super().format_help_text(ctx, formatter)


def _spread(inputs: Mapping[str, str | tuple[str, ...]]) -> dict[str, str]:
    """Inputs by key, those of roles that take several under their names: a directory's own, where none is given."""
    found: dict[str, str] = {}
    for role, given in inputs.items():
        if isinstance(given, str):
            found[role] = given
            continue
        from pipeline.core import roles

        whole = len(given) == 1 and os.path.exists(given[0])  # a path may hold an equals sign
        found |= {role: given[0]} if whole else roles.spread(role, given, lambda path: path.rstrip("/").rpartition("/")[2])
    return found


def _overrides(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """`--set`: the border at which texts become values."""
    del ctx, parameter
    if not values:
        return {}
    from flows.graph.overrides import parse

    return parse(values, "KEY=VALUE, such as seed=2")


def stage_command(name: str) -> click.Command:
    """The verb of a stage that has no module of its own."""

    def verb(given: Given) -> None:
        run_stage(given)

    return StageCommand(name, callback=verb, stage=name)


def run_stage(given: Given, more: Callable[[Result], dict[str, Any]] | None = None) -> None:
    """Make one artifact as the user asked, and tell what came of it.

    Args:
        more: tells more of the result, and gives it as JSON; a transient artifact is still there.
    """
    if given.out is None and given.transient:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
            _make(replace(given, out=f"{directory}/{given.stage}"), more)
        return
    _make(replace(given, transient=False), more)


def _make(given: Given, more: Callable[[Result], dict[str, Any]] | None) -> None:
    from flows.graph import plan, stages
    from flows.graph.demand import demand
    from flows.graph.overrides import merge
    from flows.launchers import slots, torchrun
    from flows.views import terminal
    from flows.views.live import StageDisplay
    from pipeline.core.config import parse_config
    from pipeline.core.execute import join_execution
    from pipeline.core.execution import Execution

    name, screen = given.stage, terminal.console()
    stage = stages.stage(name)
    config = parse_config(stage.config, merge(given.config, given.overrides, stage.config, name), name)
    how = parse_config(Execution, given.execution, "run")
    if given.out is None:
        raise click.UsageError("missing option --out; name the directory to write to")
    there = slots.machine()
    wanted = replace(demand(name, how, there), cpus=0)  # whoever types a verb means now; only GPUs are never shared unasked
    with (
        StageDisplay(name, screen) as display,
        slots.taken(
            wanted, there, given.out, name, display.stop_asked, lambda: screen.print(f"{name} waits for a GPU …")
        ) as gpus,
    ):
        how = how.model_copy(update={"devices": gpus} if gpus else {})
        if how.node_rank > 0 or torchrun.joins(how):
            join_execution(stage, config, given.inputs, given.out, execution=how, report=display)
            return
        result = _recorded(given, stage, config, how, display)
    screen.print(terminal.done_line(result) + ("" if given.transient else f"  [dim]{result.artifact}[/]"))
    told = more(result) if more else {}
    if given.as_json:
        content = {**plan.result_json(result), **told}
        if given.transient:
            del content["artifact"]
        emit(content)


def _recorded(given: Given, stage: Stage, config: StageConfig, how: Execution, display: StageDisplay) -> Result:
    """Make the artifact; MLflow gets its figures where the environment names a server, for a verb leaves nothing beside its artifact unasked."""
    from flows.tracking.spool import URI
    from pipeline.core.execute import execute

    out = given.out
    assert out is not None

    def make(report: Reporter) -> Result:
        return execute(stage, config, given.inputs, out, execution=how, force=given.force, report=report)

    if not os.environ.get(URI) or given.transient:
        return make(display)
    from rich.markup import escape

    from flows.graph import plan
    from flows.tracking.node import NodeFacts
    from flows.tracking.verb import recorded
    from pipeline.core import fingerprints

    facts = NodeFacts(
        name=stage.name,
        stage=stage.name,
        section=stage.name,
        config=config,
        fingerprint=stage.fingerprint(
            config, {name: fingerprints.input_fingerprint(path) for name, path in given.inputs.items()}
        ),
        artifact=out,
        inputs=given.inputs,
        world_size=how.processes * how.nodes if stage.parallel else 1,
    )
    return recorded(
        make, facts, plan.runs_directory(), display, lambda told: display.screen.print(f"[yellow]{escape(told)}[/]")
    )
