"""Knowledge distillation: think as the teacher does about the masked tokens (Hinton et al., 2015; Sanh et al., DistilBERT, 2019)."""

from __future__ import annotations

import torch
from torch.nn.functional import log_softmax

from model.layers.batch import IGNORE, Batch
from model.objectives import LossSum, Objective, Outputs


def score(outputs: Outputs, batch: Batch) -> LossSum:
    """Kullback-Leibler divergence of the student's distribution from the teacher's, both at a temperature, times its square.

    At the masked positions, where the student's head is computed anyway (transformers' research_projects/distillation,
    `restrict_ce_to_mask`). `correct` counts where both have the same token on top.

    Args:
        outputs: `mlm_logits` and `teacher_logits`, float [M, V]; `temperature`, scalar.
        batch: `masked_labels`, int64 [M]; entries of -100 take no part.
    """
    student, teacher = outputs["mlm_logits"].float(), outputs["teacher_logits"].float()
    temperature, real = outputs["temperature"], batch["masked_labels"] != IGNORE
    wanted = log_softmax(teacher / temperature, dim=-1)
    divergence = (wanted.exp() * (wanted - log_softmax(student / temperature, dim=-1))).sum(dim=-1)
    agree = (student.detach().argmax(dim=-1) == teacher.argmax(dim=-1)) & real
    total = torch.where(real, divergence, 0.0).sum() * temperature**2
    return LossSum(name="distillation", total=total, count=real.sum(), correct=agree.sum())


def count(batch: Batch) -> int:
    return int((batch["masked_labels"] != IGNORE).sum())


OBJECTIVE = Objective(
    name="distillation", score=score, count=count, head="masked_lm", taught=True, reads_logits=True, reads="masked"
)
