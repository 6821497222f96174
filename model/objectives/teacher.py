"""Distillation objectives: the teacher's distribution at masked tokens, and its hidden states."""

from __future__ import annotations

import torch
from torch.nn.functional import cosine_similarity, log_softmax

from cloze.model.layers.batch import IGNORE_INDEX, TensorBatch
from cloze.model.objectives import LossSum, Objective, Outputs

ALIGNED = 0.5  # cosine above which two states count as aligned


def divergence(outputs: Outputs, batch: TensorBatch) -> LossSum:
    """Return the KL divergence of student from teacher at a temperature, times its square.

    It is taken at the masked positions, where the student's head is computed anyway (transformers'
    research_projects/distillation, `restrict_ce_to_mask`). `correct` counts equal top tokens.

    Args:
        outputs: `mlm_logits` and `teacher_logits`, float [M, V]; `temperature`, scalar.
        batch: `masked_labels`, int64 [M]; entries of -100 are ignored.
    """
    student, teacher = outputs["mlm_logits"].float(), outputs["teacher_logits"].float()
    temperature, real = outputs["temperature"], batch["masked_labels"] != IGNORE_INDEX
    wanted = log_softmax(teacher / temperature, dim=-1)
    kl = (wanted.exp() * (wanted - log_softmax(student / temperature, dim=-1))).sum(dim=-1)
    agree = (student.detach().argmax(dim=-1) == teacher.argmax(dim=-1)) & real
    total = torch.where(real, kl, 0.0).sum() * temperature**2
    return LossSum(name="distillation", total=total, count=real.sum(), correct=agree.sum())


def masked_count(batch: TensorBatch) -> int:
    return int((batch["masked_labels"] != IGNORE_INDEX).sum())


def misalignment(outputs: Outputs, batch: TensorBatch) -> LossSum:
    """Return 1 - cosine between the last hidden states of student and teacher at every real token.

    Args:
        outputs: `hidden` and `teacher_hidden`, float [B, L, D].
        batch: `attention_mask`, bool [B, L].
    """
    real = batch["attention_mask"]
    cosine = cosine_similarity(outputs["hidden"].float(), outputs["teacher_hidden"].float(), dim=-1)
    total = torch.where(real, 1.0 - cosine, 0.0).sum()
    return LossSum(
        name="cosine",
        total=total,
        count=real.sum(),
        correct=((cosine.detach() > ALIGNED) & real).sum(),
    )


def token_count(batch: TensorBatch) -> int:
    return int(batch["attention_mask"].sum())


# Knowledge distillation: the teacher's distribution over masked tokens (Hinton et al., 2015; Sanh
# et al., DistilBERT, 2019).
DISTILLATION = Objective(
    name="distillation",
    score=divergence,
    count=masked_count,
    head="masked_lm",
    needs_teacher=True,
    reads_logits=True,
    reads="masked",
)

# Cosine loss: align hidden states with the teacher's (Sanh et al., DistilBERT, 2019, 3: L_cos).
COSINE = Objective(
    name="cosine", score=misalignment, count=token_count, all_positions=True, needs_teacher=True
)
