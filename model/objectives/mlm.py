"""Masked language modelling: name the token that was there (Devlin et al., 2019, section 3.1, Task 1)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from model.objectives import IGNORE, LossSum


def mlm(outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> LossSum:
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
