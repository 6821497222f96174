"""From the choice of an engine to the engine."""

from __future__ import annotations

from model.train.distributed import World
from model.train.engines import ENGINES, EngineChoice
from model.train.engines.protocol import Engine
from model.train.interfaces import Recipe, Trained
from pipeline.core.registry import load


def create(
    choice: EngineChoice, trained: Trained, recipe: Recipe, world: World, *, micro_batch: int, accumulation: int
) -> Engine:
    """The chosen engine over what is trained.

    Args:
        micro_batch: the most samples at once.
        accumulation: the most micro-batches a step.
    """
    found: Engine = load(ENGINES[choice.name])(
        trained, recipe, world, choice, micro_batch=micro_batch, accumulation=accumulation
    )
    return found
