"""What a task's network answers to a split, on one rank or shared out among several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from model.tasks.encode import evaluation_batches
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
    batches = evaluation_batches(samples.lengths)
    own: list[tuple[int, Any]] = []
    objective.eval()
    try:
        for first in range(0, len(batches), world.size):  # every rank runs the network as often as the others
            if world.total([int(stop_asked())])[0]:
                raise Interrupted
            number = first + world.rank
            chosen = batches[min(number, len(batches) - 1)]
            batch = {name: tensor.to(world.device) for name, tensor in samples.batch(chosen).items()}
            outputs = objective(batch)
            if number < len(batches):
                own += zip(chosen.tolist(), objective.task.answers(outputs, batch), strict=True)
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
