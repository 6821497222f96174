"""Replaced-token detection: original or replaced? (Clark et al., ELECTRA, 2020, 3.1, L_Disc)."""

from __future__ import annotations

import math

from torch.nn.functional import binary_cross_entropy_with_logits

from cloze.model.layers.batch import TensorBatch
from cloze.model.objectives import Detail, LossSum, Objective, Outputs


def score(outputs: Outputs, batch: TensorBatch) -> LossSum:
    """Return the binary cross-entropy at every real token, special tokens included.

    Source: google-research/electra, `_get_discriminator_output`.

    Args:
        outputs: `rtd_logits`, float [B, L], above 0 for "replaced"; `rtd_labels`, bool [B, L].
        batch: `attention_mask`, bool [B, L].
    """
    logits, labels, real = (
        outputs["rtd_logits"].float(),
        outputs["rtd_labels"],
        batch["attention_mask"],
    )
    losses = binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
    right = ((logits.detach() > 0) == labels) & real
    return LossSum(name="rtd", total=(losses * real).sum(), count=real.sum(), correct=right.sum())


def count(batch: TensorBatch) -> int:
    return int(batch["attention_mask"].sum())


def details(outputs: Outputs, batch: TensorBatch) -> dict[str, Detail]:
    """Return precision and recall of "replaced", and the share of replaced tokens."""
    real = batch["attention_mask"]
    said, labels = (outputs["rtd_logits"] > 0) & real, outputs["rtd_labels"] & real
    hits = (said & labels).sum()
    return {
        "precision": (hits, said.sum()),
        "recall": (hits, labels.sum()),
        "replaced": (labels.sum(), real.sum()),
    }


RTD = Objective(
    name="rtd",
    score=score,
    count=count,
    details=details,
    random_loss=lambda vocabulary: math.log(2),
    head="discriminator",
    reads="masked",
)
