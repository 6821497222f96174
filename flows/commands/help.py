"""Headings of `--help` by stage, the commands `help` and `completion`, and the help topics.

A star marks the fields that plain `--help` shows, about twenty; `--help-all` shows all. A field
without a row is under "Other" in `--help-all`, and a test then demands a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from cloze.core.errors import UsageError, did_you_mean
from cloze.core.options import import_object
from cloze.flows.commands.option_overrides import HELP_ALL, emit, json_option


class Place(NamedTuple):
    """Heading of an option; `common`: shown by plain `--help`."""

    group: str
    common: bool


ON_ONE_DEVICE = {"Processes and device": "*device *gpu_ids threads", "Failures": "timeout_minutes"}

EXECUTION = {
    "Logging and evaluation": "profile_steps",
    "Checkpoints": "*checkpoint_every checkpoint_minutes keep_checkpoints",
    "Memory and speed": "engine zero offload *micro_batch activation_checkpointing compile",
    "Processes and hosts": "*processes *launcher *hostfile nodes remote_python"
    " ssh_options"
    " slurm_options kubernetes_options device gpu_ids threads",
    "Failures": "restarts min_nodes min_processes timeout_minutes grace_seconds hang_seconds",
    "Beam": "*workers *runner flink_master worker_pool beam_options dedup_in_memory_documents",
}

STAGES: dict[str, Mapping[str, str]] = {
    "corpus": {
        "Sources": "*sources *on_error *licences max_rejected_share maximum_document_bytes",
        "Size and mixture": "*max_words *mixture mixture_by mixture_temperature mixture_epochs",
        "Language": "*language *keep_languages language_probability",
        "Quality rules": "*preset web_sources *minimum_characters *minimum_words"
        " maximum_characters minimum_letters"
        " gopher_quality gopher_repetition c4 c4_end_marks boilerplate drop_repeated_lines"
        " drop_repeated_paragraphs",
        "Quality filter": "*quality_filter quality_filter_loss quality_filter_sources",
        "Deduplication": "*dedup dedup_similarity dedup_bands dedup_rows dedup_ngram",
        "Personal data": "*mask_personal_data personal_data_allowed",
        "Blocked words": "*blocked_words blocked_words_unit blocked_words_allowed",
        "Decontamination": "*decontaminate decontaminate_words decontaminate_minimum_words"
        " decontaminate_unit",
        "Text cleaning": "normalize_unicode remove_controls collapse_whitespace repair_unicode",
        "Source formats": "extractor blank_line_documents"
        " dropped_sections kept_sections"
        " disambiguation_templates tables infobox math other_wikis",
        "Output": "*heldout_fraction *keep_rejected shard_bytes",
    },
    "filter": {"Documents": "*good *bad *language", "Model": "*kind bits"},
    "vectors": {
        "Vectors": "*pooling *max_length *windows",
        "Memory and speed": "*precision *micro_batch engine",
    },
    "semdedup": {"Deduplication": "*similarity *center clusters rounds"},
    "vocab": {
        "Training": "*kind *size *lowercase strip_accents min_frequency limit_alphabet"
        " sample_bytes",
        "Start from another tokenizer": "*import_path *extend_path *add *words_file",
    },
    "dataset": {
        "Rows": "*recipe *length *length_bins *lowercase short_seq_prob *seed",
        "Masking": "*masking *mask_rate *mask_copies mask_rounding max_predictions mask_share"
        " random_share random_from max_ngram span_p max_span",
        "Pairing and packing": "*pairing random_next_prob swap_prob single_segment_prob packing",
        "Output": "*shards id_type compression",
    },
    "pretrain": {
        "Model and objective": "*model *objectives causal_share final_mask_rate"
        " dynamic_masking output_bias *seed",
        "Duration": "*steps *tokens *max_time",
        "Batch": "*global_batch initial_batch batch_ramp_steps length_group",
        "Mixture of datasets": "mixture mixture_by mixture_temperature",
        "Optimizer": "*learning_rate *optimizer embedding_lr_multiplier hidden_lr_multiplier"
        " betas eps weight_decay grad_clip ema",
        "Learning-rate schedule": "*schedule *warmup_steps warmup_share decay_share power"
        " min_lr_ratio schedule_steps",
        "Logging and evaluation": "*evaluate_every heldout_rows log_every",
        "Checkpoints": "milestones milestone_every keep_for_merge",
        "Memory and speed": "*precision tf32 grad_reduce_dtype",
        "Failures": "max_skipped",
    },
    "merge": {"Checkpoints": "*last *steps *decay", **ON_ONE_DEVICE},
    "finetune": {
        "Task and data": "*task *data *max_length *limit_per_class class_weights"
        " task_sampling_power",
        "Model": "dropout pooling frozen lstm_size lstm_layers bilstm",
        "Optimization": "*epochs *global_batch *learning_rate *warmup_share optimizer layer_decay"
        " embedding_lr_multiplier weight_decay"
        " grad_clip *seed",
        "Selection and baselines": "*patience *select_checkpoint *baselines from_scratch model",
        "Memory and speed": "*precision",
    },
    "evaluate": {
        "Task and data": "*task *data *split *resamples seed",
        "Memory and speed": "*precision",
        **ON_ONE_DEVICE,
    },
    "perplexity": {"Rows": "*rows *batch_size", "Memory and speed": "*precision", **ON_ONE_DEVICE},
    "score": {
        "Pairs": "*data *columns *limit",
        "Scoring": "*mask *normalize resamples seed",
        "Memory and speed": "*precision",
        **ON_ONE_DEVICE,
    },
    "import": {"Model": "*family *positions *trust_pickle", **ON_ONE_DEVICE},
    "export": {**ON_ONE_DEVICE},
    "report": {"Contents": "*masked *top_k"},
}


def places(stage: str, more: Mapping[str, str] = EXECUTION) -> dict[str, Place]:
    """Return the place of each field of a stage and of `more`, in the order of `--help`."""
    found: dict[str, Place] = {}
    for table in (STAGES.get(stage, {}), more):
        for group, names in table.items():
            for name in names.split():
                found.setdefault(name.removeprefix("*"), Place(group, name.startswith("*")))
    return found


def _models() -> str:
    """Return a table of the model presets and their sizes."""
    presets = import_object("cloze.model.families.registry:presets")
    rows: list[tuple[str, ...]] = [("preset", "family", "layers", "width", "heads", "length")]
    for name, config in presets().items():
        sizes = (
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
        )
        rows.append((name, config.family, *(str(size) for size in sizes)))
    return _columns(rows)


def _tasks() -> str:
    tasks = import_object("cloze.model.tasks.table:TASKS")
    return _columns([("task", "kind"), *((name, task.kind) for name, task in tasks.items())])


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
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

`cloze run CONFIG --set SECTION.KEY=VALUE` overrides a field. docs/reference has all keys."""

TARGETS = """\
cancel, logs and resume take a TARGET:

  RUN           a run by name, such as demo
  RUN/NODE      a node of a run, such as demo/finetune@sst2-1 (logs)
  DIRECTORY     the directory of an artifact

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
CLOZE_HOME            directory of Cloze's data and samples
CLOZE_SLOTS_DIR       directory of the locks on cores and GPUs
CLOZE_CPUS            cores that may be used on this host
CLOZE_HOST_ADDRESS    address under which other hosts reach this one
CLOZE_REGISTERED_MODEL  name of the registered model in MLflow (default: cloze)
CLOZE_NOTIFY          webhook URL, or TYPE/NAME of a Prefect block, for failed runs
CLOZE_FLINK_CLASSPATH, CLOZE_FLINK_JAVA_OPTS, CLOZE_FLINK_TIMEOUT
                      settings of the embedded Flink
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
Every command has --json. Standard output then holds one JSON object; progress and warnings go to
standard error.

  stages      artifact, stage, fingerprint, cached, seconds, and the stage's summary
  lists       an object with a plural key: runs, checks, artifacts, nodes, stages, logs
  inference   the answer; {"predictions": [...]} for several texts; JSON lines for files
  errors      {"error": {"type": "DataError", "message": "...", "exit_code": 3}}"""

TOPICS: dict[str, str | Callable[[], str]] = {
    "models": _models,
    "tasks": _tasks,
    "config": CONFIG,
    "targets": TARGETS,
    "files": FILES,
    "environment": ENVIRONMENT,
    "exit-codes": EXIT_CODES,
    "json": JSON,
}


def _subjects(ctx: click.Context) -> list[str]:
    group = ctx.find_root().command
    return [*(group.list_commands(ctx) if isinstance(group, click.Group) else ()), *TOPICS]


def _complete(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    del parameter
    return [CompletionItem(name) for name in _subjects(ctx) if name.startswith(incomplete)]


@click.command("help")
@click.argument("subject", required=False, metavar="[COMMAND|TOPIC]", shell_complete=_complete)
@click.argument("option", required=False, metavar="[OPTION]")
@json_option
@click.pass_context
def help_(ctx: click.Context, subject: str | None, option: str | None, as_json: bool) -> None:
    """Show help on a command, option or topic.

    All options of a COMMAND are shown, or those that contain OPTION.
    """
    root = ctx.find_root()
    if subject is None:
        text = root.get_help()
    elif subject in TOPICS:
        topic = TOPICS[subject]
        text = topic if isinstance(topic, str) else topic()
    else:
        command: Any = root.command
        found = command.get_command(ctx, subject)
        if found is None:
            raise UsageError(
                f"no command or topic {subject!r}; {did_you_mean(subject, _subjects(ctx))}"
            )
        inner = click.Context(found, info_name=subject, parent=root)
        inner.meta[HELP_ALL] = option or ""
        text = found.get_help(inner)
    if as_json:
        emit({"help": text})
    else:
        click.echo_via_pager(f"{text}\n")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion script of bash, zsh or fish.

    For bash and zsh: eval "$(cloze completion bash)". For fish: cloze completion fish | source.
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "cloze", "_CLOZE_COMPLETE").source()
    if as_json:
        emit({"completion": script})
    else:
        click.echo(script)
