"""Cross-entropy over a whole vocabulary, which a small model spends more time in than in its layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100
ROWS = 16  # of logits at once on a CPU: 30,522 fp32 numbers each stay in the second-level cache


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss, and how many labels have the highest logit of their row.

    Args:
        logits: float [M, V]; everything is computed in fp32.
        labels: int64 [M], -100 where nothing is asked for.

    Returns:
        The loss in nats, fp32 scalar, differentiable; the count, int64 scalar.
    """
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        total, correct = _InRows.apply(logits, labels)  # type: ignore[no-untyped-call]
        return total, correct
    total = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    picked = logits.detach().gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    return total, ((picked == logits.detach().amax(dim=-1)) & (labels != IGNORED)).sum()


class _InRows(torch.autograd.Function):
    """A few rows at a time, from logits to their gradient without leaving the cache: neither fp32 copies of the logits nor their
    log-probabilities are ever whole in memory.
    """

    @staticmethod
    def forward(context, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        real, wanted = labels != IGNORED, labels.clamp(min=0)[:, None]
        gradient = torch.empty_like(logits) if context.needs_input_grad[0] else None
        losses, correct = [], []
        for first in range(0, len(logits), ROWS):
            part = slice(first, first + ROWS)
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
        context.save_for_backward(gradient)
        if not losses:
            return logits.new_zeros((), dtype=torch.float32), labels.new_zeros(())
        total = torch.where(real, torch.cat(losses), 0.0).sum()
        hits = (torch.cat(correct) & real).sum()
        context.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(context, upstream: Tensor, _: Tensor | None):  # type: ignore[no-untyped-def]
        (gradient,) = context.saved_tensors
        # In place: a second backward pass would be told so. The factor stays in fp32: rounded to bf16 it would scale the whole
        # gradient, by up to 0.4 %, against those of other losses.
        return gradient.mul_(upstream), None
