"""ELMo's objective: language models in both directions (Peters et al., 2018, section 3.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from cloze.model.layers.batch import IGNORE_INDEX, Batch, unmask
from cloze.model.layers.cross_entropy import flat, summed_cross_entropy
from cloze.model.objectives import Objective, Outputs
from cloze.model.objectives.losses import next_tokens

UNKNOWN = 1  # id of [UNK] in word vocabularies (`cloze.pipeline.vocab.trainers`)


def bilm_loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the mean of the forward and the backward loss, of every pair of adjacent words.

    Args:
        outputs: `forward_logits` and `backward_logits`, float [B, L, S]; position t predicts words
            t + 1 and t - 1. Words from S on are predicted as [UNK].
        batch: masks are undone, and padding is ignored.
    """
    ids, real = unmask(batch), next_tokens(batch)
    total, correct = [], []
    for name, words, edge in (
        ("forward_logits", ids[:, 1:], (0, 1)),
        ("backward_logits", ids[:, :-1], (1, 0)),
    ):
        logits = flat(outputs[name])
        size = logits.shape[-1] if isinstance(logits, Tensor) else len(logits.weight)
        words = torch.where(words < size, words, UNKNOWN)
        labels = pad(words.masked_fill(~real, IGNORE_INDEX), edge, value=IGNORE_INDEX)
        loss, hits = summed_cross_entropy(logits, labels.flatten())
        total.append(loss)
        correct.append(hits)
    return (total[0] + total[1]) / 2, (correct[0] + correct[1]) // 2


BILM = Objective(
    name="bilm",
    targets=next_tokens,
    loss=bilm_loss,
    random_loss=math.log,
    head="bilm",
    reads="causal",
)
