"""Config and stage of the lab. No torch: the command line imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.humanize import agree, format_bytes, format_count
from cloze.core.stages.stage import InputSpec, Stage, deferred

Sizes = tuple[Annotated[int, Field(ge=1)], ...]
CELL = ("length", "batch_size", "threads")
METRICS_FILE, NOTES = "metrics.json", "notes"


class LatencyConfig(StageConfig):
    """Options of latency. Every length, batch size and number of threads is combined.

    Measured is the encoder, from token ids to its last states, without tokenizer and head, on rows
    full of random tokens. Another machine does not measure a kept artifact again; `--force` does.
    """

    lengths: Sizes = Field(default=(32, 128, 512), min_length=1)
    """Length in tokens; longer ones than the model reads are cut. Repeatable."""

    batch_sizes: Sizes = Field(default=(1, 8), min_length=1)
    """Sequences per forward pass. Repeatable."""

    thread_counts: Sizes = ()
    """Threads of torch on a CPU. Repeatable. Default: 1, and all cores."""

    passes: int = Field(default=500, ge=10)
    """Maximum timed passes per combination. A p99 has an interval from 368 on, at 95 %."""

    seconds: float = Field(default=3, gt=0)
    """Maximum time per combination and model, in seconds; ten passes are always timed."""

    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32"
    """Precision of matrix products, over fp32 weights. auto: bf16 if native. int8: for CPUs."""


def _headline(summary: Mapping[str, Any]) -> str:
    size = f"{format_count(summary['parameters'])} parameters, {format_bytes(summary['bytes'])}"
    cells = [f"{cell['latency_ms']:.3g} ms ({describe(cell)})" for cell in summary["cells"][:1]]
    return "; ".join([*cells, size, *summary[NOTES]])


def describe(cell: Mapping[str, Any]) -> str:
    """Return `1 × 128 tokens, 2 threads`."""
    return agree(f"{cell['batch_size']} × {cell['length']} tokens, {cell['threads']} threads")


# Latency of the encoder, alone or in alternation with the champion's. File: `metrics.json`, with
# the milliseconds of every pass.
LATENCY = Stage(
    name="latency",
    version=1,
    config=LatencyConfig,
    run=deferred("cloze.labs.costs.measure:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "merge", "prune"), required=True
        ),
        "champion": InputSpec(
            explicit_kinds=("pretrain", "finetune", "merge", "prune"), explicit_only=True
        ),
    },
    unhashed_files=(METRICS_FILE,),
    worker="cloze.model",
    on_gpu=True,
    headline=_headline,
)
