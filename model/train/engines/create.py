"""Creation of the chosen engine."""

from __future__ import annotations

from pkgutil import resolve_name

from cloze.model.train.distributed import World
from cloze.model.train.engines.protocol import Engine
from cloze.model.train.spec.engine_choice import ENGINES, EngineConfig
from cloze.model.train.spec.interfaces import TrainModule
from cloze.model.train.spec.train_spec import TrainingHyperparameters


def create_engine(
    choice: EngineConfig,
    trained: TrainModule,
    recipe: TrainingHyperparameters,
    world: World,
    *,
    micro_batch: int,
    accumulation: int,
) -> Engine:
    """Create the chosen engine over the trained module."""
    engine: Engine = resolve_name(ENGINES[choice.name])(
        trained, recipe, world, choice, micro_batch=micro_batch, accumulation=accumulation
    )
    for lever in choice.levers:
        lever.attach(engine, trained.model)
    return engine
