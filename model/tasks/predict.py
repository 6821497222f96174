"""What a task's network answers to a split, on one rank or shared out among several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from model.data.batch import move
from model.data.prefetch import prefetched
from model.tasks.encode import evaluation_batches, groups_of
from model.tasks.objective import TaskObjective
from model.tasks.task import Samples
from model.train.distributed import World
from model.train.interfaces import Interrupted


@torch.no_grad()
def predict(
    objective: TaskObjective,
    samples: Samples,
    world: World,
    stop_asked: Callable[[], bool] = lambda: False,
) -> list[Any]:
    """The answers to all samples, in their order; the same on every rank, and however many ranks there are.

    Args:
        objective: on `world.device`; left in the mode that it was in.
        stop_asked: whether this rank was asked to stop; called before each batch.

    Raises:
        Interrupted: a rank was asked to stop.
    """
    training = objective.training
    lengths = samples.lengths
    batches = [group[part] for group in groups_of(samples) for part in evaluation_batches(lengths[group])]
    numbers = range(world.rank, world.rank + len(batches), world.size)  # every rank runs the network as often as the others
    chosen = [batches[min(number, len(batches) - 1)] for number in numbers]
    own: list[tuple[int, Any]] = []
    objective.eval()
    try:
        with prefetched((samples.batch(part, objective.layout) for part in chosen), world.device) as made:
            for number, part, batch in zip(numbers, chosen, made, strict=True):
                if world.total([int(stop_asked())])[0]:
                    raise Interrupted
                moved = move(batch, world.device)
                outputs = objective(moved)
                if number < len(batches):
                    own += zip(part.tolist(), objective.task.answers(outputs, moved), strict=True)
    finally:
        objective.train(training)
    found = dict(_gathered(own, world))
    return [found[number] for number in range(len(samples))]


def _gathered(own: list[tuple[int, Any]], world: World) -> list[tuple[int, Any]]:
    """Those of all ranks."""
    if world.size == 1:
        return own
    everyones: list[list[tuple[int, Any]]] = [[]] * world.size
    distributed.all_gather_object(everyones, own, group=world.control)
    return [answer for part in everyones for answer in part]
