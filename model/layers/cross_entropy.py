"""Cross-entropy over a whole vocabulary, which a small model spends more time in than in its layers.

Logits that are there (`Tensor`), or that are not (`LazyLogits`): these are computed a chunk of rows at a time, and with each chunk its
part of the gradient of states, embeddings and bias, which is all that is kept (as Liger-Kernel's fused linear cross-entropy, Hsu et
al., 2024). It costs no operation more, as the loss is linear in what comes from above.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.layers.lazy_logits import LazyLogits, Logits
from model.layers.logit_sizes import chunk_rows

IGNORED = -100
ROWS = 16  # of logits at once on a CPU: 30,522 fp32 numbers each stay in the second-level cache


def summed_cross_entropy(logits: Logits, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss, and how many labels have the highest logit of their row.

    Args:
        logits: float [M, V]; everything is computed in fp32.
        labels: int64 [M], -100 where nothing is asked for.

    Returns:
        The loss in nats, fp32 scalar, differentiable; the count, int64 scalar.
    """
    if isinstance(logits, LazyLogits):
        learns = torch.is_grad_enabled() and (logits.hidden.requires_grad or logits.weight.requires_grad)
        found = torch.ops.cloze.linear_cross_entropy(logits.hidden, logits.weight, logits.bias, labels, learns)
        return found[0], found[1]
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        total, correct = _InRows.apply(logits, labels)  # type: ignore[no-untyped-call]
        return total, correct
    total = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    picked = logits.detach().gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    return total, ((picked == logits.detach().amax(dim=-1)) & (labels != IGNORED)).sum()


def _rows(logits: Tensor, labels: Tensor, gradient: Tensor | None, at_once: int) -> tuple[Tensor, Tensor]:
    """The sums of `summed_cross_entropy`, a few rows at a time, from logits to their gradient without leaving the cache.

    Args:
        gradient: takes the loss's gradient, [M, V]; it may be `logits`.
    """
    real, wanted = labels != IGNORED, labels.clamp(min=0)[:, None]
    losses, correct = [], []
    for first in range(0, len(logits), at_once):
        part = slice(first, first + at_once)
        scores = logits[part].to(torch.float32, copy=True)
        highest = scores.amax(dim=1, keepdim=True)
        picked = scores.gather(1, wanted[part])
        normalizer = scores.sub_(highest).exp_().sum(dim=1, keepdim=True)
        losses.append((highest + normalizer.log() - picked).squeeze(1))
        correct.append((picked == highest).squeeze(1))
        if gradient is not None:
            scores.mul_(real[part, None] / normalizer)
            scores.scatter_add_(1, wanted[part], -real[part, None].float())
            gradient[part] = scores
    if not losses:
        return logits.new_zeros((), dtype=torch.float32), labels.new_zeros(())
    return torch.where(real, torch.cat(losses), 0.0).sum(), (torch.cat(correct) & real).sum()


class _InRows(torch.autograd.Function):
    """Neither fp32 copies of the logits nor their log-probabilities are ever whole in memory."""

    @staticmethod
    def forward(context, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        gradient = torch.empty_like(logits) if context.needs_input_grad[0] else None
        total, hits = _rows(logits, labels, gradient, ROWS)
        context.save_for_backward(gradient)
        context.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(context, upstream: Tensor, _: Tensor | None):  # type: ignore[no-untyped-def]
        (gradient,) = context.saved_tensors
        # In place: a second backward pass would be told so. The factor stays in fp32: rounded to bf16 it would scale the whole
        # gradient, by up to 0.4 %, against those of other losses.
        return gradient.mul_(upstream), None


# An operation of its own, that torch.compile does not look into: it would move the gradient's part into the backward pass, and keep
# the logits of all chunks until then.
@torch.library.custom_op(
    "cloze::linear_cross_entropy",
    mutates_args=(),
    schema="(Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, bool learns) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss and count of `summed_cross_entropy` for logits hidden [M, E] · weight [V, E] + bias [V]; and, if the model `learns`, the
    loss's gradients by these three, the latter two in fp32 (empty where there is none).
    """
    at_once, on_cpu = chunk_rows(len(weight), hidden.device.type), hidden.device.type == "cpu"
    multiplied, added = weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
    room = hidden.new_empty(min(at_once, len(hidden)), len(weight))
    total, hits = hidden.new_zeros((), dtype=torch.float32), labels.new_zeros(())
    by_hidden, by_weight, by_bias = _no_gradients(hidden, weight, bias, learns)
    with torch.autocast(hidden.device.type, enabled=False):
        for first in range(0, len(hidden), at_once):
            states = hidden[first : first + at_once]
            logits = room[: len(states)]
            if added is None:
                torch.mm(states, multiplied.t(), out=logits)
            else:
                torch.addmm(added, states, multiplied.t(), out=logits)
            loss, right = _rows(
                logits, labels[first : first + at_once], logits if learns else None, ROWS if on_cpu else at_once
            )
            total += loss
            hits += right
            if not learns:
                continue
            torch.mm(logits, multiplied, out=by_hidden[first : first + at_once])
            if logits.dtype == torch.float32:
                by_weight.addmm_(logits.t(), states)
            else:
                by_weight += logits.t() @ states
            if bias is not None:
                by_bias += logits.sum(dim=0, dtype=torch.float32)
    return total, hits, by_hidden, by_weight, by_bias


def _no_gradients(hidden: Tensor, weight: Tensor, bias: Tensor | None, learns: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of nothing yet."""
    if not learns:
        return hidden.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    by_bias = weight.new_zeros(0 if bias is None else len(bias), dtype=torch.float32)
    return torch.empty_like(hidden), weight.new_zeros(weight.shape, dtype=torch.float32), by_bias


@_linear_cross_entropy.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        hidden.new_zeros((), dtype=torch.float32),
        labels.new_zeros(()),
        *_no_gradients(hidden, weight, bias, learns),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, bias, _, _ = inputs
    ctx.save_for_backward(*output[2:])
    ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, upstream: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    by_hidden, by_weight, by_bias = (
        gradient.detach() for gradient in ctx.saved_tensors
    )  # outputs, which have a graph of their own
    of_weight, of_bias = ctx.dtypes
    return (
        by_hidden.mul_(upstream),
        by_weight.mul_(upstream).to(of_weight),
        None if of_bias is None else by_bias.mul_(upstream).to(of_bias),
        None,
        None,
    )


_linear_cross_entropy.register_autograd(_differentiate, setup_context=_keep)
