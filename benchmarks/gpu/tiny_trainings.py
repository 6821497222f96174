"""Small trainings and models that the checks compare, and how near is equal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.place import Place
from cloze.model.data.batch import collate, move
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.shards import ShardedRows
from cloze.model.families.config import for_dataset
from cloze.model.families.models import new_model
from cloze.model.layers.batch import Batch
from cloze.model.objectives import choose
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.precision import Precision
from tests.model.datasets import lines
from tests.model.train.ranks import STILL, Here, config, digests, here
from tests.tiny_models import tiny_config

CLOSE: dict[Precision, float] = {"fp32": 2e-4, "bf16": 4e-2}  # relative
ROWS, STEPS, HALF, VOCABULARY = 8, 6, 3, 67
PAIRS = {"bert": "nsp", "albert": "sop"}  # that a family's rows are
WIDE = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.02,
}


class Skipped(Exception):
    """The check cannot run here; its sentence says why."""


def usual_precision(place: Place) -> Precision:
    return "bf16" if place.device == "cuda" else "fp32"


def assert_close(worst: float, precision: Precision, what: str) -> None:
    assert worst < CLOSE[precision], (
        f"{what} differ by {worst:.2g} of their norm, {CLOSE[precision]:g} is allowed"
    )


def distance(one: Tensor, other: Tensor) -> float:
    """The norm of the difference beside that of the second; what is not a number is infinitely far
    away.
    """
    one, other = one.detach().double(), other.detach().double()
    found = float((one - other).norm() / other.norm())
    return found if math.isfinite(found) else math.inf


def tiny_scoring(
    place: Place,
    family: str,
    precision: Precision,
    *,
    layout: LayoutKind = "rows",
    compiled: bool = False,
    **sizes: Any,
) -> tuple[PretrainModule, Batch]:
    """A tiny model of the family without dropout, and a batch, both on the device and always the
    same.
    """
    pairs = PAIRS.get(family)
    shards = ShardedRows(place.small(pairs or "alone", vocab_size=VOCABULARY, pair_task=pairs))
    info = shards.info
    assert info is not None
    more = {"embedding_size": 32} if family == "electra" else {}
    model = for_dataset(
        tiny_config(family, **{**WIDE, "vocab_size": VOCABULARY, **more, **sizes}), info
    )
    torch.manual_seed(0)
    network = new_model(model)
    scoring = (
        PretrainModule(network, choose(model, info), precision, compiled, place.device)
        .to(place.device)
        .train()
    )
    rows = np.arange(ROWS)
    taken = shards.take(rows, np.zeros_like(rows))
    fixed = shards.most_predictions() if compiled and place.device == "cpu" else None
    batch = collate(
        taken, pad=info.special.pad, longest=info.length, layout=layout, fixed_predictions=fixed
    )
    return scoring, move(batch, torch.device(place.device))


def target_counts(scoring: PretrainModule, batch: Batch) -> Tensor:
    return torch.tensor(
        [max(1, count) for count in scoring.count_targets(batch)],
        dtype=torch.float32,
        device=batch["input_ids"].device,
    )


def whole_gradient(scoring: PretrainModule, batch: Batch) -> Tensor:
    """The whole gradient, behind it the loss: one flat tensor."""
    loss, _ = scoring(batch, target_counts(scoring, batch))
    loss.backward()
    found = [
        parameter.grad.float().flatten()
        for parameter in scoring.parameters()
        if parameter.grad is not None
    ]
    return torch.cat([*found, loss.detach().float().reshape(1)])


def train_steps(
    place: Place,
    name: str,
    *,
    device: str = "",
    stop_at: int | None = None,
    values: Mapping[str, Any] | None = None,
    **execution: Any,
) -> Here:
    """A training of a few steps without dropout, in fp32 if `values` of the config do not say
    otherwise; one that is there goes on.
    """
    settings = config(
        **{"steps": STEPS, "model": STILL, "log_every": 1, "heldout_rows": 0, **(values or {})}
    )
    dataset = place.small("nsp", vocab_size=VOCABULARY)
    linear = torch.nn.functional.linear
    try:
        return here(
            settings,
            dataset,
            place.scratch / name,
            stop_at=stop_at,
            device=device or place.device,
            **execution,
        )
    finally:
        torch.nn.functional.linear = (
            linear  # ZeRO 3 leaves its own there, which fp16 on a CPU fails
        )


def logged_losses(run: Here) -> list[float]:
    return [float(line["loss"]) for line in lines(Path(run.build.path) / "metrics.jsonl")]  # type: ignore[arg-type]


def resumed_alike(place: Place, name: str) -> bool:
    for run in ("straight", "halves"):
        shutil.rmtree(place.scratch / f"{name}-{run}", ignore_errors=True)
    straight = train_steps(place, f"{name}-straight")
    train_steps(place, f"{name}-halves", stop_at=HALF)
    return digests(straight.checkpoint) == digests(train_steps(place, f"{name}-halves").checkpoint)
