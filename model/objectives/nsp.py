"""Next sentence prediction: does segment B follow segment A (0), or come from elsewhere (1)? (Devlin et al., 2019, Task 2)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from model.objectives import IGNORE, LossSum


def nsp(outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> LossSum:
    """Cross-entropy of the pair label, in fp32 whatever the logits' dtype.

    Args:
        outputs: `pair_logits`, float [B, 2].
        batch: `pair_labels`, int64 [B]; -100 marks a row without a pair, which takes no part.
    """
    logits, labels = outputs["pair_logits"].float(), batch["pair_labels"]
    total = cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    return LossSum(
        name="nsp", total=total, count=(labels != IGNORE).sum(), correct=(logits.detach().argmax(dim=-1) == labels).sum()
    )
