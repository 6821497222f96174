"""Commands that plan, train, convert and evaluate models: `plan-training`, `pretrain` and so on."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.field_options import Count, FiniteRange, NameOf
from cloze.flows.commands.base.options import (
    Command,
    GroupedCommand,
    GroupedOption,
    OptionOverride,
    emit,
    json_option,
    split_commas,
    weights,
)
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from rich.console import Console

    from cloze.core.stages.execute import BuildResult

CORPUS = ("--corpus", "Corpus artifact, for tasks that are built from one.")

PRETRAIN = StageCommand(
    "pretrain",
    stage="pretrain",
    help="Pretrain an encoder on one or more datasets.\n\nResumes from the newest checkpoint in"
    " --out.",
    inputs={
        "dataset": (
            "--dataset",
            "Dataset artifact. Repeat to mix several: --dataset wiki=A --dataset books=B."
            " Repeatable.",
        ),
        "checkpoint": (
            "--checkpoint",
            "Initialize the weights from this checkpoint, with a new optimizer state.",
        ),
        "continue": (
            "--continue",
            "Continue this pretraining as a new phase, with its optimizer state and step count.",
        ),
        "teacher": (
            "--teacher",
            "Teacher for distillation: a checkpoint or a Hugging Face directory.",
        ),
    },
    spelled={
        "model": OptionOverride(
            "--model", str, {"type": NameOf("cloze.model.families.registry:presets", "PRESET")}
        ),
        "size": OptionOverride("--size", int, {"type": Count(min=1), "metavar": "N"}),
        "mixture": OptionOverride(
            "--mixture", weights, {"multiple": True, "metavar": "NAME=WEIGHT"}
        ),
        "objectives": OptionOverride(
            "--objective",
            lambda texts: list(split_commas(texts)),
            {"metavar": "NAME", "multiple": True},
        ),
        "max_time": OptionOverride("--max-time", settings={"metavar": "DURATION"}),
    },
)

MERGE = StageCommand(
    "merge",
    stage="merge",
    positional=("checkpoint",),
    help="Average the last checkpoints of a pretraining.\n\nCHECKPOINT is the artifact of a"
    " pretraining.",
)

FINETUNE = StageCommand(
    "finetune",
    stage="finetune",
    help="Fine-tune a pretrained encoder on a task, and score it.",
    inputs={
        "checkpoint": (
            "--checkpoint",
            "Pretrained or fine-tuned checkpoint to start from; the head of a fine-tuned one is"
            " dropped.",
        ),
        "corpus": CORPUS,
        "vocab": (
            "--tokenizer",
            "Tokenizer, for a model with random weights (--from-scratch without --checkpoint).",
        ),
        "teacher": (
            "--teacher",
            "Fine-tuned checkpoint of the same task and vocabulary, to learn its answers, too.",
        ),
    },
)


PERPLEXITY = StageCommand(
    "perplexity", stage="perplexity", help="Compute a checkpoint's loss on held-out rows."
)

LIKELIHOOD = StageCommand(
    "likelihood",
    stage="likelihood",
    positional=("checkpoint",),
    help="Compute a checkpoint's bits per byte of held-out texts.\n\nUnlike the perplexity, it"
    " compares models with different vocabularies.",
    inputs={"corpus": ("--corpus", "Corpus artifact, whose held-out sentences are sampled.")},
)


@click.command(
    cls=StageCommand,
    stage="evaluate",
    inputs={
        "checkpoint": (
            "--checkpoint",
            "Fine-tuned checkpoint, or its artifact; several are an ensemble. Repeatable.",
        ),
        "corpus": CORPUS,
    },
    transient=True,
)
@click.option(
    "--predictions",
    cls=GroupedOption,
    metavar="FILE",
    help="Also write the predictions to this file, in the task's official format.",
)
def evaluate(arguments: StageArguments, predictions: str | None) -> None:
    """Score a fine-tuned checkpoint on labelled data."""

    def copy_predictions(result: BuildResult) -> dict[str, Any]:
        from cloze.core import storage

        if predictions is None:
            return {}
        path = storage.join(result.artifact, str(result.manifest.summary["predictions"]))
        with storage.open_input(path) as handle:
            storage.write_bytes(predictions, handle.read())
        return {"predictions": predictions}

    run_stage(arguments, copy_predictions)


@click.command(
    "score-pairs",
    cls=StageCommand,
    stage="score",
    positional=("checkpoint", "data"),
    transient=True,
)
def score_pairs(arguments: StageArguments) -> None:
    """Score minimal pairs, such as those of BLiMP.

    The score is the share of pairs whose good sentence has the higher probability. DATA is a
    .jsonl, .tsv or .csv file, or a directory of them.
    """
    run_stage(arguments, None if arguments.as_json else _show_phenomena)


def _show_phenomena(result: BuildResult) -> dict[str, Any]:
    """Print the accuracy of each phenomenon, lowest first."""
    from cloze.flows.views import terminal

    table = terminal.table_of(("accuracy", "phenomenon"), right=("accuracy",))
    by_phenomenon = result.manifest.summary["metrics"]["by_phenomenon"]
    for name, value in sorted(by_phenomenon.items(), key=lambda item: float(item[1])):
        table.add_row(f"{100 * value:.1f}", terminal.ellipsized(name))
    terminal.output().print(table)
    return {}


PLANNER = "cloze.model.train.plan.training_plan:plan_training"
WIDEST = 100


def _option(
    flag: str, text: str, kind: Any = str, metavar: str = "N", **settings: Any
) -> Callable[[Command], Command]:
    return click.option(flag, cls=GroupedOption, type=kind, help=text, metavar=metavar, **settings)


@click.command("plan-training", cls=GroupedCommand)
@click.argument("model", type=NameOf("cloze.model.families.registry:presets", "PRESET"))
@_option(
    "--tokens", "Tokens to train on, without padding, such as 300e9.", Count(min=1), required=True
)
@_option(
    "--gpus", "Number of GPUs. Default: this machine's CPU, or 1 with --gpu-type.", Count(min=1)
)
@_option("--gpu-type", "GPU model, such as h100 or a100-80.", metavar="NAME")
@_option("--length", "Tokens per row. Default: 512, at most what the model reads.", Count(min=1))
@_option("--global-batch", "Sequences per optimizer step. Default: the paper's.", Count(min=1))
@_option("--vocab-size", "Vocabulary size. Default: the paper's.", Count(min=1))
@_option(
    "--mfu",
    "Model FLOP utilization, as a share of the GPU's peak. Default: 0.4.",
    FiniteRange(min=0, min_open=True),
    metavar="X",
)
@json_option
def plan_training(as_json: bool, **values: Any) -> None:
    """Estimate the memory and hours of a pretraining.

    PRESET is a model preset, or a size such as 17m. The plan prints each of its assumptions.
    """
    from pkgutil import resolve_name

    from cloze.flows.machine import slots
    from cloze.flows.views import terminal

    plan = resolve_name(PLANNER)(slots.machine().cpus, **values)
    if as_json:
        emit(plan)
    else:
        show(terminal.output(), plan)


def show(out: Console, plan: Mapping[str, Any]) -> None:
    """Print a training plan in at most 100 columns."""
    from rich.markup import escape

    from cloze.core.humanize import format_bytes, format_count, format_duration
    from cloze.flows.views.terminal import table_of

    hardware, recommended = plan["hardware"], plan["chosen"]
    gpus = f"{hardware['gpus']:,}" if hardware["gpus"] else "this machine's"
    size = f"{format_count(plan['parameters'])} parameters"
    out.print(f"[bold]{escape(plan['model'])}[/], {size}, on {gpus} {hardware['name']}")
    rows = f"{plan['global_batch']:,} sequences of {plan['length']:,} tokens"
    out.print(f"{plan['steps']:,} steps of {rows}: {format_count(plan['tokens'])} tokens\n")
    columns = ["ZeRO", "recomputed", "rows x passes", "memory", "hours", "GPU-hours"]
    table = table_of(columns, right=columns, title="largest micro-batch that fits, by ZeRO stage")
    for alternative in plan["ways"]:
        cells = [
            str(alternative["zero"]),
            "yes" if alternative["activation_checkpointing"] else "no",
            f"{alternative['micro_batch']:,} x {alternative['accumulation']:,}",
            format_bytes(alternative["memory"]["total"]),
            _hours(alternative["hours"]),
            _hours(alternative["gpu_hours"]),
        ]
        is_recommended = all(alternative[name] == recommended[name] for name in alternative)
        table.add_row(*(f"[bold]{cell}[/]" for cell in cells) if is_recommended else cells)
    out.print(table)
    time = f"{format_duration(3600 * recommended['hours'])} at {recommended['mfu']:.0%} of the peak"
    out.print(f"\n{time}; a checkpoint takes {format_bytes(plan['checkpoint_bytes'])}.\n")
    width = min(out.width, WIDEST)
    # keep an option and its value on one line
    options = re.sub(" (?!--)", "\N{NO-BREAK SPACE}", recommended["command"])
    lines = textwrap.wrap(options, width - 10, break_on_hyphens=False)
    command = " \\\n        ".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    out.print(f"    {command}\n", soft_wrap=True, markup=False)
    for mark, name in (("careful: ", "warnings"), ("- ", "assumptions")):
        for sentence in plan[name]:
            out.print(textwrap.fill(mark + sentence, width, subsequent_indent="  "), markup=False)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
