"""Gates on attention heads: factors of their outputs, which measure and choose heads.

A head whose gate is 0 adds nothing to its layer's output, as if it were removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.model.data.batch import move
from cloze.model.layers.attention import SelfAttention
from cloze.model.tasks.encode import groups_of, training_batches
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.task import Samples

ROWS = 32  # samples per batch
GATE_RATE, PENALTY = 0.1, 20.0  # learning rate of the gates, and weight of their number
# Hard concrete distribution (Louizos, Welling and Kingma 2018, section 4).
TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1


class HeadGates:
    """Gates on every head of a network's layers.

    Attributes:
        heads: number of heads in each layer.
        values: gates of each layer, float [N], or [B, N] with a gate for each row of the batch,
            which must be in padded rows.
    """

    def __init__(self, network: nn.Module) -> None:
        self._attentions = [
            module for module in network.modules() if isinstance(module, SelfAttention)
        ]
        self.heads = [attention.num_heads for attention in self._attentions]
        self.values: list[Tensor] = []
        self._rows: list[Tensor | None] = [None] * len(self.heads)

    @contextmanager
    def installed(self) -> Iterator[HeadGates]:
        """Apply the gates inside the block."""
        handles = []
        for number, attention in enumerate(self._attentions):
            handles += [
                attention.register_forward_pre_hook(partial(self._find_rows, number)),
                attention.output.register_forward_pre_hook(partial(self._apply, number)),
            ]
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _find_rows(self, number: int, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        hidden, _, positions = (*arguments, None, None)[:3]
        self._rows[number] = None if positions is None else positions // hidden.shape[1]

    def _apply(self, number: int, module: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor:
        gates, rows = self.values[number], self._rows[number]
        if gates.dim() == 2:
            gates = gates[:, None] if rows is None else gates[rows]
        mixed = torch.unflatten(arguments[0], -1, (self.heads[number], -1))
        gated: Tensor = mixed * gates[..., None].to(mixed.dtype)
        return gated.flatten(-2)


def batches(
    samples: Samples, count: int, seed: int, epoch: int = 0
) -> Iterator[np.ndarray[Any, Any]]:
    """Iterate over the sample numbers of batches of at most `count` random samples."""
    generator = np.random.default_rng([seed, 0])
    for group in groups_of(samples):
        share = max(1, round(count * len(group) / len(samples)))
        chosen = np.sort(generator.permutation(group)[:share])
        lengths = samples.lengths[chosen]
        for batch in training_batches(lengths, ROWS, seed, epoch):
            yield chosen[batch]


def importance(
    objective: TaskObjective, samples: Samples, count: int, seed: int, device: torch.device
) -> list[Tensor]:
    """Return the importance of each layer's heads, float64 [N] each (Michel et al. 2019, 4.1).

    It is the mean over examples of the absolute derivative of the loss by a gate on the head,
    divided by the layer's L2 norm.

    Args:
        objective: trained objective; its weights do not change.
        count: number of examples.
    """
    objective.eval()
    with HeadGates(objective.model).installed() as gates:
        totals = [torch.zeros(heads, dtype=torch.float64) for heads in gates.heads]
        for indices in batches(samples, count, seed):
            batch = move(samples.batch(indices, "rows"), device)
            rows = batch["input_ids"].shape[0]
            gates.values = [
                torch.ones(rows, heads, device=device, requires_grad=True) for heads in gates.heads
            ]
            loss, _ = objective(batch, torch.ones(2, device=device))
            gradients = torch.autograd.grad(loss, gates.values)
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient.abs().sum(dim=0).double().cpu()
    return [total / total.norm().clamp(min=1e-30) for total in totals]


def learned_gates(
    objective: TaskObjective,
    samples: Samples,
    *,
    share: float,
    count: int,
    epochs: int,
    seed: int,
    device: torch.device,
) -> list[Tensor]:
    """Return log-odds that a head is open, float64 [N] per layer (Voita et al. 2019, section 5).

    Each gate is a hard concrete variable; the loss has a term for the expected share of open heads,
    the square of its distance to `share`. Unlike in the paper, only the gates are trained, so the
    weights are those of the checkpoint.
    """
    objective.eval()
    generator = torch.Generator(device).manual_seed(seed)
    with HeadGates(objective.model).installed() as gates:
        total_heads = sum(gates.heads)
        odds = torch.full((total_heads,), 2.0, device=device, requires_grad=True)
        optimizer = torch.optim.Adam([odds], lr=GATE_RATE)
        for epoch in range(epochs):
            for indices in batches(samples, count, seed, epoch):
                batch = move(samples.batch(indices, "rows"), device)
                noise = torch.rand(total_heads, generator=generator, device=device)
                noise = noise.clamp(1e-6, 1 - 1e-6).logit()
                soft = ((odds + noise) / TEMPERATURE).sigmoid() * (HIGH - LOW) + LOW
                gates.values = list(torch.split(soft.clamp(0, 1), gates.heads))
                task_loss, _ = objective(batch, torch.full((2,), len(indices), device=device))
                is_open = (odds - TEMPERATURE * math.log(-LOW / HIGH)).sigmoid().mean()
                total_loss = task_loss + PENALTY * (is_open - share).square()
                (gradient,) = torch.autograd.grad(total_loss, odds)
                odds.grad = gradient
                optimizer.step()
    return [part.detach().double().cpu() for part in torch.split(odds, gates.heads)]


def heads_to_keep(scores: Sequence[Tensor], count: int) -> list[list[int]]:
    """Return the `count` heads of highest score, at least one in each layer; ascending by layer."""
    best = [int(layer.argmax()) for layer in scores]
    others = sorted(
        (
            (-float(value), layer, head)
            for layer, values in enumerate(scores)
            for head, value in enumerate(values)
            if head != best[layer]
        )
    )
    kept = [{head} for head in best]
    for _, layer, head in others[: max(0, count - len(best))]:
        kept[layer].add(head)
    return [sorted(heads) for heads in kept]
