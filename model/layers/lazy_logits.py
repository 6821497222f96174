"""Logits over a vocabulary that nobody has computed yet: the largest tensor of a step, where every position is predicted.

A head that names tokens ends in one product with the word embeddings. Where it `leaves` that to whoever reads its answer, it gives the
product's factors instead, and the loss goes over them a chunk of rows at a time (`model.layers.cross_entropy`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.layers.logit_sizes import chunk_rows, in_chunks


class LazyLogits(NamedTuple):
    """What logits [..., V] are the product of.

    Attributes:
        hidden: float [..., E], of the type that matrices are multiplied in.
        weight: float [V, E], of any type.
        bias: float [V], of any type; None: there is none.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def whole(self) -> Tensor:
        """The logits, in the type of `hidden`."""
        bias = None if self.bias is None else self.bias.to(self.hidden.dtype)
        return functional.linear(self.hidden, self.weight.to(self.hidden.dtype), bias)

    def rows(self, part: slice) -> LazyLogits:
        """Some of the rows of [M, E]."""
        return self._replace(hidden=self.hidden[part])


Logits = Tensor | LazyLogits


def flat(logits: Logits) -> Logits:
    """[B, L, V] as [B * L, V]."""
    return logits.flatten(0, 1) if isinstance(logits, Tensor) else logits._replace(hidden=logits.hidden.flatten(0, 1))


def parts(logits: Logits) -> Iterator[tuple[slice, Tensor]]:
    """All rows of logits [M, V], a chunk of them at a time: which they are, and their logits. At least one chunk."""
    if isinstance(logits, Tensor):
        yield slice(0, len(logits)), logits
        return
    step = chunk_rows(len(logits.weight), logits.weight.device.type)
    for first in range(0, max(1, len(logits.hidden)), step):
        part = slice(first, first + step)
        yield part, logits.rows(part).whole()


class VocabularyHead(nn.Module):
    """What ends in a product with the word embeddings.

    Attributes:
        leaves: whether large logits are left to whoever reads them, as `LazyLogits`; the model's user says so.
    """

    leaves: bool = False

    def named(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """The logits of states [..., E] over a vocabulary with the embeddings [V, E]: float [..., V], or left to be computed."""
        if not self.leaves or not in_chunks(hidden.shape[:-1].numel(), len(weight), hidden.device.type):
            return functional.linear(hidden, weight, bias)
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            hidden = hidden.to(torch.get_autocast_dtype(device))
        # Views: at ZeRO stage 3 a parameter is emptied behind its module, what was gathered of it stays as long as somebody looks.
        return LazyLogits(hidden, weight.view_as(weight), None if bias is None else bias.view_as(bias))


def leave_logits(model: nn.Module) -> None:
    """Have the heads of a model leave large logits to whoever reads them, but for a model that reads its own."""
    if not getattr(model, "reads_logits", False):
        for module in model.modules():
            if isinstance(module, VocabularyHead):
                module.leaves = True
