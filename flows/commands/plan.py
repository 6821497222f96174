"""`cloze plan`: what a run would do, and why; or what a pretraining would take on so many GPUs."""

from __future__ import annotations

import math
from typing import Any

import click

from flows.commands.run_options import parameters_of, plan_options, show_plan
from flows.commands.spelling import GroupedOption
from pipeline.core.errors import UsageError

PLANNER = "model.train.scale.plan:planned"
SCALE = "A training on GPUs"


def _number(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """`300e9` -> 300000000000.0."""
    del ctx
    if value is None:
        return None
    try:
        found = float(value.replace("_", "").replace(",", ""))
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found <= 0:
        raise UsageError(f"{parameter.name} ({value}) is no number above 0; write it as 300e9 or 300000000000")
    return found


def _option(name: str, told: str, kind: Any = None, **settings: Any) -> Any:
    settings |= {"callback": _number} if kind is None else {"type": kind}
    return click.option(name, cls=GroupedOption, group=SCALE, help=told, **settings)


def _scale_options(command: Any) -> Any:
    """What a training on other hardware is, in the order of `--help`."""
    for decorate in reversed(
        (
            _option("--model", "A preset: plan its pretraining instead of a CONFIG.", click.STRING, metavar="PRESET"),
            _option("--tokens", "Real tokens to train on, such as 300e9.", metavar="NUMBER"),
            _option("--gpus", "How many; without it and --gpu, this machine's CPU.", click.INT),
            _option("--gpu", "Of which kind: h100, a100-80, …", click.STRING, metavar="NAME"),
            _option("--length", "Tokens of a row; without it 512, where the model reads as many.", click.INT),
            _option("--global-batch", "Sequences a step; without it the paper's.", click.INT),
            _option("--vocab-size", "Pieces; without it the paper's.", click.INT),
            _option("--gpus-per-node", "GPUs of a machine; without it as the GPU is usually built.", click.INT),
            _option("--interconnect", "Bytes a second from a machine to the others, one direction.", metavar="NUMBER"),
            _option("--mfu", "Share of the GPU's peak that matrices reach.", metavar="SHARE"),
            _option("--copies", "Mask copies of the dataset; without it 10.", click.INT),
            _option("--epochs", "How often each token is seen; without it once.", metavar="NUMBER"),
            _option("--ema", "With an average of the weights, of this decay.", metavar="DECAY"),
            _option("--gpu-hours-between-failures", "Hours of one GPU between interruptions.", metavar="NUMBER"),
            _option("--save-seconds", "Seconds that a save stops the training, as measured.", metavar="NUMBER"),
            _option("--restart-seconds", "Seconds from an interruption to the next step, as measured.", metavar="NUMBER"),
        )
    ):
        command = decorate(command)
    return command


SCALED = {  # options of a training on GPUs -> what the planner calls them
    "model": "model",
    "tokens": "tokens",
    "gpus": "gpus",
    "gpu": "gpu",
    "length": "length",
    "global_batch": "global_batch",
    "vocab_size": "vocabulary",
    "gpus_per_node": "gpus_per_node",
    "interconnect": "interconnect",
    "mfu": "mfu",
    "copies": "copies",
    "epochs": "epochs",
    "ema": "ema",
    "gpu_hours_between_failures": "gpu_hours",
    "save_seconds": "save_seconds",
    "restart_seconds": "restart_seconds",
}


@click.command()
@plan_options
@_scale_options
def plan(as_json: bool, **values: Any) -> None:
    """Show what a run of CONFIG would do, and why; or what pretraining a --model on --gpus would take.

    Memory per GPU, time, energy, sizes and the network's share follow from arithmetic; each assumption is printed.
    """
    scaled = {SCALED[name]: value for name in SCALED if (value := values.pop(name)) is not None}
    if values["config"] is not None:
        if scaled:
            raise UsageError(f"{_flag(scaled)} is for plans of a --model, and CONFIG is a whole run; give one of them")
        from flows.session import Session

        show_plan(Session(parameters_of(**values)), as_json)
        return
    given = [name for name in ("overrides", "force", "until", "only", "start_from") if values[name]]
    if given:
        raise UsageError(f"{given[0]} is for plans of a CONFIG; name one, or leave it out")
    if "model" not in scaled:
        raise UsageError("nothing to plan; name a run's CONFIG, or a --model with --tokens")
    if "tokens" not in scaled:
        raise UsageError("tokens is missing; say how many to train on, such as --tokens 300e9")
    _show_training(scaled, as_json)


def _flag(scaled: dict[str, Any]) -> str:
    first = next(name for name, planner in SCALED.items() if planner in scaled)
    return f"--{first.replace('_', '-')}"


def _show_training(scaled: dict[str, Any], as_json: bool) -> None:
    from rich.console import Console

    from flows.commands.common import emit
    from flows.launchers import slots
    from flows.views import training_plan
    from pipeline.core.registry import load

    found = load(PLANNER)(slots.machine().cpus, **scaled)
    if as_json:
        emit(found)
    else:
        training_plan.show(Console(highlight=False), found)
