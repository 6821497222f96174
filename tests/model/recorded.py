"""What the names of tasks and of models stand for, and what a training is expected to take.

    python -m tests.model.recorded     writes tests/model/recorded.json: after a name was added, or
    a row was meant to change

A run that names `sst2` or `bert-base` today must read the same columns and build the same network
as it did last year. Estimates decide engine, micro-batch and machine: tests/model/train/plan
measures some of them, and none may change unnoticed.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from cloze.model.families.registry import presets
from cloze.model.tasks.table import KINDS, TASKS
from cloze.model.train.plan.estimates import ComputeOptions, StepCost, flops_per_token

FILE = Path(__file__).with_name("recorded.json")
ESTIMATED = (
    "bert-base", "albert-base", "electra-base", "modern-base", "deberta-base", "gpt2", "t5-base",
    "longformer-base",
)  # fmt: skip
RANKS = {"alone": (1, 0), "zero-1": (4, 1), "zero-2": (4, 2), "zero-3": (4, 3)}
OPTIONS = {
    "cuda": ComputeOptions(),
    "cuda-fp32": ComputeOptions(bf16=False),
    "cuda-checkpointing": ComputeOptions(checkpointing=True),
    "cuda-offload": ComputeOptions(offload=True),
    "cuda-fsdp": ComputeOptions(fsdp=True),
    "cuda-fsdp-offload": ComputeOptions(fsdp=True, offload=True),
    "cpu": ComputeOptions(device="cpu"),
    "cpu-fp32": ComputeOptions(device="cpu", bf16=False),
}
ROOM = 80e9  # bytes of a device


def current() -> dict[str, dict[str, Any]]:
    """By table and name, the row as plain values."""
    tables = {
        "kinds": {name: (kind.max_length, kind.classes) for name, kind in KINDS.items()},
        "tasks": {name: asdict(spec) for name, spec in TASKS.items()},
        "models": {
            name: {"family": model.family, **model.model_dump()}
            for name, model in presets().items()
        },
        "estimates": {
            f"{name} {length}": _estimates(name, length)
            for name, length in itertools.product(ESTIMATED, (128, 512))
        },
    }
    plain: dict[str, dict[str, Any]] = json.loads(json.dumps(to_jsonable_python(tables)))
    return plain


def _estimates(name: str, length: int) -> dict[str, Any]:
    """Of a training of 8 rows a rank: operations a token, bytes, and the rows that a device holds."""
    known = presets()
    model = known[name].model_copy(update={"vocab_size": 30_522})
    found: dict[str, Any] = {
        "flops": [
            flops_per_token(model, length),
            flops_per_token(model, length, causal_share=0.5),
            flops_per_token(model, length, known["bert-large"]),
        ],
        "both ways": round(StepCost.of(model, length, causal_share=0.5).memory(8).activations),
    }
    for (how, options), (stage, (ranks, zero)) in itertools.product(OPTIONS.items(), RANKS.items()):
        memory = StepCost.of(model, length, options, ranks=ranks, zero=zero).memory(8)
        rows = StepCost.of(model, length, options, ranks=ranks, zero=zero).fitting_rows(ROOM)
        found[f"{how} {stage}"] = [*map(round, asdict(memory).values()), rows]
    return found


def _as_text(tables: dict[str, dict[str, Any]]) -> str:
    """JSON with a row a line."""
    parts = []
    for table, rows in tables.items():
        lines = [f'"{name}": {json.dumps(rows[name], sort_keys=True)}' for name in sorted(rows)]
        parts.append(f'"{table}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(_as_text(current()))
