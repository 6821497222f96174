"""What the pair tasks share: two logits a row against a label of 0 or 1."""

from __future__ import annotations

import math

from torch.nn.functional import cross_entropy

from model.layers.batch import IGNORE, Batch
from model.objectives import LossSum, Objective, Outputs


def pair_objective(name: str, recipe: str) -> Objective:
    """Cross-entropy of the label of pairs that the dataset recipe `recipe` makes, in fp32 whatever the logits' dtype.

    It reads `pair_logits`, float [B, 2], of the outputs, and of the batch `pair_labels`, int64 [B], where -100 marks a row
    without a pair, which takes no part.
    """

    def score(outputs: Outputs, batch: Batch) -> LossSum:
        logits, labels = outputs["pair_logits"].float(), batch["pair_labels"]
        total = cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
        right = (logits.detach().argmax(dim=-1) == labels).sum()
        return LossSum(name=name, total=total, count=(labels != IGNORE).sum(), correct=right)

    def count(batch: Batch) -> int:
        return int((batch["pair_labels"] != IGNORE).sum())

    return Objective(
        name=name, score=score, count=count, chance=lambda vocabulary: math.log(2), head="pair", pair_recipe=recipe
    )
