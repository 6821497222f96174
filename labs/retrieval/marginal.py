"""Likelihood of a text over passages: p(y | x) = sum over z of p(z | x) p(y | x, z).

REALM (Guu et al., 2020) sums for a whole row, RAG (Lewis et al., 2020) for a target or each token.
Shapes: B inputs, k passages of each, D width of vectors, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cloze.model.layers.batch import IGNORE_INDEX


def log_prior(
    questions: Tensor, passages: Tensor, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """Return log p(z | x), float32 [B, k], from vectors [B, D] and [B, k, D]."""
    scores = (questions[:, None] * passages).sum(dim=2) / temperature  # no matrix product: in fp32
    if excluded is not None:
        scores = scores.masked_fill(excluded, -torch.inf)
    return scores.log_softmax(dim=1)


def log_probabilities(logits: Any) -> Tensor:
    """Return log p of every token, float32 [..., V], from logits that may not be computed yet."""
    whole: Tensor = logits if isinstance(logits, Tensor) else logits.whole()
    return whole.float().log_softmax(dim=-1)


def of_labels(likely: Tensor, labels: Tensor) -> Tensor:
    """Return log p of the labels, float32 [...], of [..., V]; 0 where there is none."""
    right = likely.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    return right.masked_fill(labels == IGNORE_INDEX, 0.0)


def log_marginal(prior: Tensor, given: Tensor) -> Tensor:
    """Return log p(y | x), [B] or [B, T], of log p(y | x, z), [B, k] or [B, k, T] of each token."""
    prior = prior if given.dim() == prior.dim() else prior[:, :, None]
    return (prior + given).logsumexp(dim=1)
