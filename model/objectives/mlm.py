"""Masked language modelling: name the token that was there (Devlin et al., 2019, section 3.1, Task 1)."""

from __future__ import annotations

import math

from torch.nn.functional import cross_entropy

from model.objectives import IGNORE, Batch, Detail, LossSum, Objective, Outputs

TOP = 5


def score(outputs: Outputs, batch: Batch) -> LossSum:
    """Cross-entropy at the masked positions, in fp32 whatever the logits' dtype.

    Args:
        outputs: `mlm_logits`, float [M, V].
        batch: `masked_labels`, int64 [M]; entries of -100 (filler for a fixed M) take no part.
    """
    logits, labels = outputs["mlm_logits"].float(), batch["masked_labels"]
    total = cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    return LossSum(
        name="mlm", total=total, count=(labels != IGNORE).sum(), correct=(logits.detach().argmax(dim=-1) == labels).sum()
    )


def count(batch: Batch) -> int:
    return int((batch["masked_labels"] != IGNORE).sum())


def details(outputs: Outputs, batch: Batch) -> dict[str, Detail]:
    """Top-5 accuracy, and top-1 accuracy by what stood at the position: [MASK], a random piece, or the token itself.

    Args:
        outputs: as for `score`.
        batch: beside that `input_ids`, `masked_positions`, and `mask_id`, int64 scalar, which held-out scoring adds.
    """
    logits, labels = outputs["mlm_logits"], batch["masked_labels"]
    real = labels != IGNORE
    best = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices
    hits = (best == labels[:, None]) & real[:, None]
    found = {"top5_accuracy": (hits.any(dim=-1).sum(), real.sum())}
    first = hits[:, 0]
    seen = batch["input_ids"].flatten()[batch["masked_positions"]]
    kept, masked = seen == labels, seen == batch["mask_id"]
    kinds = {"masked": masked & ~kept, "random": ~kept & ~masked, "kept": kept}
    for name, chosen in kinds.items():
        found[f"{name}_accuracy"] = ((first & chosen).sum(), (real & chosen).sum())
    return found


OBJECTIVE = Objective(name="mlm", score=score, count=count, details=details, chance=math.log)
