"""Masked language modelling: name the token that was there (Devlin et al., 2019, section 3.1, Task 1)."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from model.layers.batch import IGNORE, Batch
from model.layers.lazy_logits import parts
from model.objectives import Detail, Outputs
from model.objectives.bands import FIELD, losses_by_band
from model.objectives.masked import masked_objective

TOP = 5


def details(outputs: Outputs, batch: Batch) -> dict[str, Detail]:
    """Top-5 accuracy, top-1 accuracy by what stood at the position ([MASK], a random piece, or the token itself), and the loss by how
    often the right piece occurs.

    Args:
        outputs: `mlm_logits`, float [M, V].
        batch: as the collator makes it, and what held-out scoring adds: `mask_id`, int64 scalar, and `bands`, where it knows them.
    """
    labels = batch["masked_labels"]
    real = labels != IGNORE
    best, losses = [], []
    for rows, logits in parts(outputs["mlm_logits"]):
        best.append(logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices)
        if FIELD in batch:
            losses.append(cross_entropy(logits.float(), labels[rows], ignore_index=IGNORE, reduction="none"))
    hits = (torch.cat(best) == labels[:, None]) & real[:, None]
    found = {"top5_accuracy": (hits.any(dim=-1).sum(), real.sum())}
    first = hits[:, 0]
    seen = batch["input_ids"].flatten()[batch["masked_positions"]]
    kept, masked = seen == labels, seen == batch["mask_id"]
    kinds = {"masked": masked & ~kept, "random": ~kept & ~masked, "kept": kept}
    for name, chosen in kinds.items():
        found[f"{name}_accuracy"] = ((first & chosen).sum(), (real & chosen).sum())
    if FIELD in batch:
        found |= losses_by_band(torch.cat(losses), labels, batch[FIELD])
    return found


OBJECTIVE = masked_objective("mlm", "masked_lm", "mlm_logits", details)
