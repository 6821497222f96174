"""Objectives on segment pairs: two logits per row against a label of 0 or 1."""

from __future__ import annotations

import math

from torch.nn.functional import cross_entropy

from cloze.model.layers.batch import IGNORE_INDEX, TensorBatch
from cloze.model.objectives import LossSum, Objective, Outputs


def pair_objective(name: str, recipe: str) -> Objective:
    """Build an objective: cross-entropy of the pair labels of the recipe `recipe`, in fp32.

    It reads `pair_logits`, float [B, 2], and `pair_labels`, int64 [B]. Rows labelled -100 have no
    pair and are ignored.
    """

    def score(outputs: Outputs, batch: TensorBatch) -> LossSum:
        logits, labels = outputs["pair_logits"].float(), batch["pair_labels"]
        total = cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
        right = (logits.detach().argmax(dim=-1) == labels).sum()
        return LossSum(name=name, total=total, count=(labels != IGNORE_INDEX).sum(), correct=right)

    def count(batch: TensorBatch) -> int:
        return int((batch["pair_labels"] != IGNORE_INDEX).sum())

    return Objective(
        name=name,
        score=score,
        count=count,
        random_loss=lambda vocabulary: math.log(2),
        head="pair",
        pair_recipe=recipe,
    )


# Next sentence prediction: segment B follows segment A (0) or is from elsewhere (1) (Devlin et al.,
# 2019, Task 2).
NSP = pair_objective("nsp", recipe="bert")

# Sentence order prediction: the two segments are in order (0) or swapped (1) (Lan et al., ALBERT,
# 2020, section 3.1).
SOP = pair_objective("sop", recipe="albert")
