"""Objectives at the masked positions: cross-entropy over the logits of one head each."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cloze.model.layers.batch import IGNORE_INDEX, TensorBatch
from cloze.model.layers.cross_entropy import iter_chunks, summed_cross_entropy
from cloze.model.objectives import Detail, LossSum, Objective, Outputs, Reads

TOP = 5
# Frequency bands of tokens; `cloze.model.train.evaluate.heldout_set` assigns them.
BANDS = ("rare", "middle", "frequent")
BANDS_FIELD = "bands"  # field of a held-out batch: int64 [V], each token's index in `BANDS`


def masked_objective(
    name: str,
    head: str,
    logits_name: str,
    details: Callable[[Outputs, TensorBatch], dict[str, Detail]] | None = None,
    *,
    labels_name: str = "masked_labels",
    reads: Reads = "masked",
) -> Objective:
    """Build an objective: cross-entropy at the masked positions, computed in fp32.

    It reads the outputs' logits [M, V] under `logits_name` and the batch's labels under
    `labels_name`, int64 [M]. Labels of -100 (filler for a fixed M) are ignored.
    """

    def score(outputs: Outputs, batch: TensorBatch) -> LossSum:
        labels = batch[labels_name]
        total, right = summed_cross_entropy(outputs[logits_name], labels)
        return LossSum(name=name, total=total, count=(labels != IGNORE_INDEX).sum(), correct=right)

    def count(batch: TensorBatch) -> int:
        return int((batch[labels_name] != IGNORE_INDEX).sum())

    return Objective(
        name=name,
        score=score,
        count=count,
        details=details,
        random_loss=math.log,
        head=head,
        reads=reads,
    )


def losses_by_band(losses: Tensor, labels: Tensor, bands: Tensor) -> dict[str, Detail]:
    """Return summed loss and count per frequency band of the right token, as `loss_rare` etc.

    Args:
        losses: fp32 [M], loss of each prediction in nats.
        labels: int64 [M], -100 where nothing is predicted.
        bands: see `BANDS_FIELD`.
    """
    band = bands[labels.clamp(min=0)].masked_fill(labels == IGNORE_INDEX, len(BANDS))
    return {
        f"loss_{name}": ((losses * (band == number)).sum(), (band == number).sum())
        for number, name in enumerate(BANDS)
    }


def details(outputs: Outputs, batch: TensorBatch) -> dict[str, Detail]:
    """Return top-5 accuracy, accuracy by kind of input token, and loss by token frequency.

    The input token at a masked position is [MASK], random, or kept.

    Args:
        outputs: `mlm_logits`, float [M, V].
        batch: as collated, with `mask_id`, int64 scalar, and optionally `bands` from the held-out
            evaluation.
    """
    labels = batch["masked_labels"]
    real = labels != IGNORE_INDEX
    best, losses = [], []
    for rows, logits in iter_chunks(outputs["mlm_logits"]):
        best.append(logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices)
        if BANDS_FIELD in batch:
            losses.append(
                cross_entropy(
                    logits.float(), labels[rows], ignore_index=IGNORE_INDEX, reduction="none"
                )
            )
    hits = (torch.cat(best) == labels[:, None]) & real[:, None]
    found = {"top5_accuracy": (hits.any(dim=-1).sum(), real.sum())}
    first = hits[:, 0]
    seen = batch["input_ids"].flatten()[batch["masked_positions"]]
    kept, masked = seen == labels, seen == batch["mask_id"]
    kinds = {"masked": masked & ~kept, "random": ~kept & ~masked, "kept": kept}
    for name, chosen in kinds.items():
        found[f"{name}_accuracy"] = ((first & chosen).sum(), (real & chosen).sum())
    if BANDS_FIELD in batch:
        found |= losses_by_band(torch.cat(losses), labels, batch[BANDS_FIELD])
    return found


# Masked language modelling: predict the original token (Devlin et al., 2019, 3.1, Task 1).
MLM = masked_objective("mlm", "masked_lm", "mlm_logits", details)

# Causal language modelling by a model that also fills masks: predict the next token from the
# previous ones. A phase of it before masked language modelling gives a better encoder than masks
# alone in the same time (Gisserot-Boukhlef et al., "Should We Still Pretrain Encoders with Masked
# Language Modeling?", 2025). Purely left-to-right models use `lm`.
CLM = masked_objective(
    "clm", "masked_lm", "clm_logits", labels_name="causal_labels", reads="causal"
)

# Masked next-token prediction: predict a masked token at the position before it, from all other
# tokens. The same output thus serves left-to-right reading, and a network can train on both
# (Charpentier and Samuel, "GPT or BERT: why not both?", 2024, section 2; `clm`).
MNTP = masked_objective("mntp", "masked_lm", "mlm_logits", details)

# Span boundary objective: predict a masked token from both ends of its span (Joshi et al.,
# SpanBERT, 2020, section 2.2).
SBO = masked_objective("sbo", "span_boundary", "sbo_logits")
