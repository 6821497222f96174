"""Objectives of encoder-decoders: write the target that a noise makes of a row.

All have one loss; they differ in what the loader shows and asks for (`cloze.labs.seq2seq.noise`,
whose names they have). T5's table (Raffel et al., 2020, Table 3) comes first, then BART's
transformations (Lewis et al., 2020, section 2.2).
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from cloze.labs.seq2seq.decoder import target_labels
from cloze.labs.seq2seq.noise import noise_of
from cloze.model.layers.batch import IGNORE_INDEX, Batch
from cloze.model.layers.cross_entropy import LazyLogits, Logits, flat, summed_cross_entropy
from cloze.model.objectives import Objective, Outputs, Reads


def target_loss(
    logits: Logits, labels: Tensor, smoothing: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of a target, fp32 in nats, and the number of right tokens.

    Args:
        logits: float [B, T, V].
        labels: int64 [B, T], -100 behind the last.
        smoothing: share of the target distribution that is spread over the vocabulary; the loss is
            then (1 - s) NLL + s mean(NLL of all tokens) = NLL + s (logit - mean logit).
    """
    logits, labels = flat(logits), labels.flatten()
    total, correct = summed_cross_entropy(logits, labels)
    if isinstance(smoothing, Tensor):
        real = labels != IGNORE_INDEX
        margins = _margins(logits, labels.clamp(min=0))
        total = total + smoothing * torch.where(real, margins, 0.0).sum()
    return total, correct


def _margins(logits: Logits, labels: Tensor) -> Tensor:
    """Return each label's logit minus the mean logit, fp32 [M]; lazy logits stay uncomputed."""
    if isinstance(logits, LazyLogits):
        weight = logits.weight.float()
        centred = weight[labels] - weight.mean(dim=0)
        return (logits.hidden.float() * centred).sum(dim=-1)
    picked = logits.gather(1, labels[:, None]).squeeze(1).float()
    return picked - logits.float().mean(dim=-1)


def denoising_objective(name: str, reads: Reads | None) -> Objective:
    """Build the objective of a noise; it reads `seq2seq_logits`, float [B, T, V]."""

    def loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        smoothing = outputs.get("label_smoothing", 0.0)
        return target_loss(outputs["seq2seq_logits"], target_labels(batch), smoothing)

    return Objective(
        name=name,
        targets=lambda batch: target_labels(batch) != IGNORE_INDEX,
        loss=loss,
        random_loss=math.log,
        head="seq2seq",
        reads=reads,
        transform=partial(noise_of, name),
    )


PREFIX_LM = denoising_objective("prefix-lm", None)
BERT_STYLE = denoising_objective("bert-style", "masked")
DESHUFFLING = denoising_objective("deshuffling", None)
MASS_STYLE = denoising_objective("mass-style", "masked")
REPLACE_SPANS = denoising_objective("replace-spans", "masked")
DROP_TOKENS = denoising_objective("drop-tokens", "masked")
RANDOM_SPANS = denoising_objective("random-spans", "masked")

TOKEN_MASKING = denoising_objective("token-masking", "masked")
TOKEN_DELETION = denoising_objective("token-deletion", "masked")
INFILLING = denoising_objective("infilling", "masked")
SENTENCE_PERMUTATION = denoising_objective("sentence-permutation", None)
DOCUMENT_ROTATION = denoising_objective("document-rotation", None)
BART = denoising_objective("bart", "masked")
