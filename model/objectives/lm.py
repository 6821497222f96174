"""Left-to-right language modelling: name the next token (the "LTR & No NSP" row of Devlin et al., 2019, Table 5)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import pad

from model.layers.batch import IGNORE, Batch
from model.layers.cross_entropy import summed_cross_entropy
from model.layers.lazy_logits import flat
from model.layers.unmask import unmask
from model.objectives import LossSum, Objective, Outputs


def score(outputs: Outputs, batch: Batch) -> LossSum:
    """Cross-entropy of every token but a row's first, in fp32 whatever the logits' dtype.

    Args:
        outputs: `lm_logits`, float [B, L, V]; what stands at position t names token t + 1.
        batch: as the collator makes it; its masks are taken off. Padding takes no part.
    """
    real = _targets(batch)
    labels = pad(unmask(batch)[:, 1:].masked_fill(~real, IGNORE), (0, 1), value=IGNORE)  # what stands last names nothing
    total, right = summed_cross_entropy(flat(outputs["lm_logits"]), labels.flatten())
    return LossSum(name="lm", total=total, count=real.sum(), correct=right)


def count(batch: Batch) -> int:
    return int(_targets(batch).sum())


def _targets(batch: Batch) -> Tensor:
    """Which tokens are named from those before: all but the first of a sequence, bool [B, L - 1]."""
    real = batch["attention_mask"][:, 1:]
    return real & ~batch["sequence_first"][:, 1:] if "sequence_first" in batch else real


OBJECTIVE = Objective(name="lm", score=score, count=count, chance=math.log, head="lm", reads="causal")
