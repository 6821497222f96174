"""A training step as our trainer runs it, without its loop, and as anybody would write it: what
`benchmarks.train` and `benchmarks.ranks` compare. Both have the same weights, optimizer, objectives
and batches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cloze.model.data.batch import collate
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import new_model
from cloze.model.layers.batch import Batch
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.adam import adamw
from cloze.model.train.optimizers.parameters import parameter_groups
from cloze.model.train.precision import Precision
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.engine_choice import EngineConfig

Step = Callable[[Batch], None]


def ours(
    config: PretrainConfig,
    precision: Precision,
    world: World,
    choice: EngineConfig,
    compiled: bool = False,
) -> Step:
    """A step of our engine, of `config.global_batch` rows over all ranks."""
    scoring = _scoring(config, precision, compiled)
    settled = hyperparameters(config, precision, step_duration(config))
    engine = create_engine(
        choice,
        scoring,
        settled,
        world,
        micro_batch=config.global_batch // world.size,
        accumulation=1,
    )

    def step(batch: Batch) -> None:
        engine.backward(batch, _counts(scoring, batch, world.size), last=True)
        engine.step(1e-4)

    return step


def plain(
    config: PretrainConfig, precision: Precision, world: World, compiled: bool = False
) -> Step:
    """The loop that anybody would write: around the model alone, or around DistributedDataParallel
    where there are several ranks.
    """
    scoring = _scoring(config, precision, compiled)
    settled = hyperparameters(config, precision, step_duration(config))
    optimizer = adamw(parameter_groups(scoring.model, settled), settled)
    wrapped = torch.nn.parallel.DistributedDataParallel(scoring) if world.size > 1 else scoring

    def step(batch: Batch) -> None:
        loss, *_ = wrapped(
            batch, _counts(scoring, batch, 1)
        )  # DistributedDataParallel takes the mean over ranks
        loss.backward()
        torch.nn.utils.clip_grad_norm_(scoring.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def batches_of(dataset: str, rows: range, batch: int, length: int) -> list[Batch]:
    """Batches of `batch` rows each, of the samples with these numbers."""
    shards = ShardedRows(dataset)
    sampler = Sampler(len(shards), 2, 1)
    return [
        collate(
            shards.take(*sampler.locate(np.arange(start, start + batch))),
            pad=0,
            longest=length,
            layout="buckets",
        )
        for start in range(rows.start, rows.stop, batch)
    ]


def _scoring(config: PretrainConfig, precision: Precision, compiled: bool) -> PretrainModule:
    torch.manual_seed(0)
    names = config.model.default_objectives("nsp")
    return PretrainModule(new_model(config.model), names, precision, compiled)


def _counts(scoring: PretrainModule, batch: Batch, ranks: int) -> torch.Tensor:
    """Predictions of all ranks: they read batches of one shape, so what is here times
    their number.
    """
    return torch.tensor(
        [ranks * max(1, count) for count in scoring.count_targets(batch)], dtype=torch.float32
    )
