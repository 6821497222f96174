"""Hidden states that point where the teacher's do (Sanh et al., DistilBERT, 2019, section 3: L_cos)."""

from __future__ import annotations

import torch
from torch.nn.functional import cosine_similarity

from model.layers.batch import Batch
from model.objectives import LossSum, Objective, Outputs

ALIGNED = 0.5  # the cosine from which two states count as pointing the same way


def score(outputs: Outputs, batch: Batch) -> LossSum:
    """1 - cosine between the last hidden states of student and teacher at every real token.

    Args:
        outputs: `hidden` and `teacher_hidden`, float [B, L, D].
        batch: `attention_mask` bool [B, L].
    """
    real = batch["attention_mask"]
    cosine = cosine_similarity(outputs["hidden"].float(), outputs["teacher_hidden"].float(), dim=-1)
    total = torch.where(real, 1.0 - cosine, 0.0).sum()
    return LossSum(name="cosine", total=total, count=real.sum(), correct=((cosine.detach() > ALIGNED) & real).sum())


def count(batch: Batch) -> int:
    return int(batch["attention_mask"].sum())


OBJECTIVE = Objective(name="cosine", score=score, count=count, everywhere=True, taught=True)
