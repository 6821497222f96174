"""Left-to-right language modelling ("LTR & No NSP", Devlin et al., 2019, Table 5)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import pad

from cloze.model.layers.batch import IGNORE_INDEX, TensorBatch, unmask
from cloze.model.layers.cross_entropy import flat, summed_cross_entropy
from cloze.model.objectives import LossSum, Objective, Outputs


def score(outputs: Outputs, batch: TensorBatch) -> LossSum:
    """Return the cross-entropy of every token except a sequence's first, in fp32.

    Args:
        outputs: `lm_logits`, float [B, L, V]; position t predicts token t + 1.
        batch: as collated; masks are undone, and padding is ignored.
    """
    real = _targets(batch)
    # The last position predicts nothing.
    labels = pad(unmask(batch)[:, 1:].masked_fill(~real, IGNORE_INDEX), (0, 1), value=IGNORE_INDEX)
    total, right = summed_cross_entropy(flat(outputs["lm_logits"]), labels.flatten())
    return LossSum(name="lm", total=total, count=real.sum(), correct=right)


def count(batch: TensorBatch) -> int:
    return int(_targets(batch).sum())


def _targets(batch: TensorBatch) -> Tensor:
    """Return which tokens are predicted, bool [B, L - 1]: all except the first of each sequence."""
    real = batch["attention_mask"][:, 1:]
    return real & ~batch["sequence_first"][:, 1:] if "sequence_first" in batch else real


LM = Objective(name="lm", score=score, count=count, random_loss=math.log, head="lm", reads="causal")
