"""The command `help` and its topics."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import get_completion_class

from cloze.core.errors import UsageError, did_you_mean
from cloze.flows.commands.base.options import HELP_ALL, complete_from, emit, json_option


def _models() -> str:
    """Return a table of the model presets and their sizes."""
    presets = resolve_name("cloze.model.families.registry:presets")
    rows: list[tuple[str, ...]] = [("preset", "family", "layers", "width", "heads", "length")]
    for name, config in presets().items():
        sizes = (
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
        )
        rows.append((name, config.family, *map(str, sizes)))
    return _columns(rows)


def _tasks() -> str:
    tasks = resolve_name("cloze.model.tasks.table:TASKS")
    return _columns([("task", "kind"), *((name, task.kind) for name, task in tasks.items())])


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


CONFIG = """\
A run is a YAML file. Each section is a node: STAGE, or STAGE@LABEL if a stage occurs more than
once.

  name: demo                           name of the run; default: that of the file
  corpus: {sources: [{kind: wikipedia, path: DUMP.xml.bz2}]}
  dataset@512: {length: 512}           config fields of the stage
  pretrain: {dataset: dataset@512}     an input by role; default: the nearest earlier node
  finetune:
    matrix: {task: [sst2, mrpc], seed: [1, 2]}    one instance per combination
  run: {workers: 4, processes: 2}      execution options of all nodes; a section may have its own

`when: available` in a section leaves out nodes whose files do not exist; `when: never`, all.

`cloze run CONFIG --set SECTION.KEY=VALUE` overrides a field. `cloze help STAGE` has all keys."""

TARGETS = """\
status, logs, cancel, resume, lineage and verify take a TARGET:

  RUN           a run, by name (demo) or directory (runs/demo)
  RUN/NODE      a node of a run, such as demo/finetune@sst2-1; demo/finetune: all nodes of a stage
  DIRECTORY     the directory of an artifact or of a checkpoint, or its URL

Inputs of stages, such as --checkpoint, take RUN/NODE and directories.

--from, --only, --until and --force-node take the nodes of a config, or patterns such as
finetune@*."""

FILES = """\
A run's directory, runs/NAME:

  NODE-FINGERPRINT/   an artifact; the link NODE leads to the newest one
  _status/            status of each run, read by `cloze status`

An artifact:

  manifest.json       config, inputs, files with sha256, counters; written last
  _building.json      claim of the process that builds it
  _logs/              logs of its processes
  metrics.jsonl       metrics of a training
  checkpoints/        checkpoints of a training"""

ENVIRONMENT = """\
CLOZE_RUNS_DIR        directory of the runs (default: ./runs)
CLOZE_STORE           URL below which runs keep their artifacts, such as s3://bucket/runs;
                      records, locks and links stay in CLOZE_RUNS_DIR
CLOZE_HOME            working directory of deployed flows (default: that of `cloze deploy`)
CLOZE_SLOTS_DIR       directory of the locks on cores and GPUs
CLOZE_CPUS            cores that may be used on this host
CLOZE_HOST_ADDRESS    address under which other hosts reach this one
CLOZE_REGISTERED_MODEL  name of the registered model in MLflow (default: cloze)
CLOZE_NOTIFY          webhook URL, or TYPE/NAME of a Prefect block, for failed runs
CLOZE_FLINK_CLASSPATH, CLOZE_FLINK_JAVA_OPTS, CLOZE_FLINK_TIMEOUT
                      settings of the embedded Flink
CLOZE_POOL_SECRET     secret that Beam worker pools and their callers share
PREFECT_API_URL       API of the Prefect server
MLFLOW_TRACKING_URI   MLflow server for metrics
NO_COLOR              switches colours off"""

EXIT_CODES = """\
0  done
1  failed
2  wrong usage or config
3  bad input data
4  stopped on request, with a checkpoint saved"""

JSON = """\
Every command that reports a result has --json. Standard output is then one JSON object;
progress and warnings go to standard error.

  stages      artifact, stage, fingerprint, cached, seconds, and the stage's summary
  lists       an object with a plural key: runs, checks, artifacts, nodes, stages, logs
  inference   the answer; {"predictions": [...]} for several texts; JSON lines for files
  errors      {"error": {"type": "DataError", "message": "...", "exit_code": 3}}"""

COMPLETION = """\
Commands, options, runs and their nodes are completed by the shell, once its script is read:

  bash, zsh   eval "$(cloze help completion bash)"     in ~/.bashrc or ~/.zshrc (with zsh)
  fish        cloze help completion fish | source      in ~/.config/fish/config.fish"""
SHELLS = ("bash", "zsh", "fish")

TOPICS: dict[str, str | Callable[[], str]] = {
    "models": _models,
    "tasks": _tasks,
    "config": CONFIG,
    "targets": TARGETS,
    "files": FILES,
    "environment": ENVIRONMENT,
    "exit-codes": EXIT_CODES,
    "json": JSON,
    "completion": COMPLETION,
}


def _subjects(ctx: click.Context) -> list[str]:
    group = ctx.find_root().command
    return [*(group.list_commands(ctx) if isinstance(group, click.Group) else ()), *TOPICS]


@click.command("help")
@click.argument(
    "subject", required=False, metavar="[COMMAND|TOPIC]", shell_complete=complete_from(_subjects)
)
@click.argument("option", required=False, metavar="[OPTION]")
@json_option
@click.pass_context
def help_(ctx: click.Context, subject: str | None, option: str | None, as_json: bool) -> None:
    """Show help on a command, option or topic.

    All options of a COMMAND are shown, or those that contain OPTION. The topic completion takes
    bash, zsh or fish, and prints the script of that shell.
    """
    root = ctx.find_root()
    if subject is None:
        text = root.get_help()
    elif subject == "completion" and option is not None:
        completion = get_completion_class(option) if option in SHELLS else None
        if completion is None:
            raise UsageError(f"shell ({option}) has no completion; name one of {', '.join(SHELLS)}")
        click.echo(completion(root.command, {}, "cloze", "_CLOZE_COMPLETE").source())
        return
    elif subject in TOPICS:
        topic = TOPICS[subject]
        text = topic if isinstance(topic, str) else topic()
    else:
        command: Any = root.command
        subcommand = command.get_command(ctx, subject)
        if subcommand is None:
            near = did_you_mean(subject, _subjects(ctx), "`cloze --help` lists them")
            raise UsageError(f"no command or topic {subject!r}; {near}")
        context = click.Context(subcommand, info_name=subject, parent=root)
        context.meta[HELP_ALL] = option or ""
        text = subcommand.get_help(context)
    if as_json:
        emit({"help": text})
    else:
        click.echo_via_pager(f"{text}\n")
