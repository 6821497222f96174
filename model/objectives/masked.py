"""What objectives at the masked positions share: one cross-entropy, over logits of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

from model.layers.batch import IGNORE, Batch
from model.layers.cross_entropy import summed_cross_entropy
from model.objectives import Detail, LossSum, Objective, Outputs, Reads


def masked_objective(
    name: str,
    head: str,
    logits_name: str,
    details: Callable[[Outputs, Batch], dict[str, Detail]] | None = None,
    *,
    labels_name: str = "masked_labels",
    reads: Reads = "masked",
) -> Objective:
    """Cross-entropy at the masked positions of what the head `head` says, in fp32 whatever the logits' dtype.

    It reads the logits [M, V] that the outputs hold under `logits_name`, and of the batch the labels under `labels_name`, int64 [M],
    of which entries of -100 (filler for a fixed M) take no part.
    """

    def score(outputs: Outputs, batch: Batch) -> LossSum:
        labels = batch[labels_name]
        total, right = summed_cross_entropy(outputs[logits_name], labels)
        return LossSum(name=name, total=total, count=(labels != IGNORE).sum(), correct=right)

    def count(batch: Batch) -> int:
        return int((batch[labels_name] != IGNORE).sum())

    return Objective(name=name, score=score, count=count, details=details, chance=math.log, head=head, reads=reads)
