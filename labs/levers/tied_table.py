"""The word table of a tied head, whose gradients are added into one fp32 `.grad` in place.

autograd would make a dense gradient for the lookup, another for the loss, and their sum. The table
has a half-precision copy, padded to the tile of the loss's products, which the update writes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.layers import cross_entropy
from cloze.model.layers.cross_entropy import LazyLogits, VocabularyHead
from cloze.model.layers.embeddings import Embeddings, EmbeddingTable

COPY = "padded_copy"  # attribute of the parameter: half precision [V + filler, E]


class TiedTable(EmbeddingTable):
    """A table whose lookups add to its gradient in place."""

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids, int64 of any shape; return float [..., E]."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(ids)
        embedded: Tensor = _Lookup.apply(self.weight, ids)  # type: ignore[no-untyped-call]
        return embedded


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, table: Tensor, ids: Tensor) -> Tensor:
        context.table = table
        context.save_for_backward(ids)
        return table[ids]

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        table, (ids,) = context.table, context.saved_tensors
        if table.grad is None:
            table.grad = torch.zeros_like(table)
        # torch sorts the ids, so that sums have one order; index_add_ would not.
        table.grad.index_put_((ids.flatten(),), gradient.flatten(0, -2), accumulate=True)
        return None, None


def tied_loss(table: Tensor, logits: LazyLogits, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and count as `summed_cross_entropy`, for logits of this table."""
    if not hasattr(table, COPY):  # a head with a matrix of its own, or another kind of table
        return cross_entropy.summed_cross_entropy(logits._replace(loss=None), labels)
    inputs = logits.hidden, table, logits.bias, labels, logits.compiled
    total, correct = _Loss.apply(*inputs)  # type: ignore[no-untyped-call]
    return total, correct


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        copy: Tensor = getattr(table, COPY)
        total, correct, *context.gradients = cross_entropy.in_chunks(
            hidden, table, bias, labels, True, compiled, (copy, _add_product)
        )
        context.table, context.has_bias = table, bias is not None
        context.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(context: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        hidden, rows, bias = context.gradients
        table, rows = context.table, rows[: len(context.table)]
        context.gradients = ()  # they change in place
        if table.grad is None:
            table.grad = rows * upstream
        else:
            table.grad.addcmul_(rows, upstream)
        bias = bias.mul_(upstream) if context.has_bias else None
        return hidden.mul_(upstream), None, bias, None, None


def _add_product(total: Tensor, logits: Tensor, states: Tensor) -> None:
    """Add logits [M, V] transposed · states [M, E] to `total`, fp32 [V, E], in fp32."""
    if total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, logits.t(), states, total.dtype, out=total)
    else:
        total.addmm_(logits.t().float(), states.float())


def add_copy(network: nn.Module, dtype: torch.dtype, device: torch.device) -> int:
    """Give each word table its copy, still empty, if heads multiply with one; return the heads."""
    heads = [module for module in network.modules() if isinstance(module, VocabularyHead)]
    tables = [module.word for module in network.modules() if isinstance(module, Embeddings)]
    tables = [table for table in tables if type(table) is EmbeddingTable]
    for table in tables if heads else []:
        table.__class__ = TiedTable
        rows = len(table.weight) + cross_entropy.filler_columns(len(table.weight), device.type)
        copy = torch.zeros(rows, table.weight.shape[1], dtype=dtype, device=device)
        setattr(table.weight, COPY, copy)
    for head in heads if tables else []:
        head.loss_of_table = tied_loss
    return len(heads) if tables else 0
