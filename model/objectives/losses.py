"""Losses of the pretraining objectives, in the order of `OBJECTIVES`' kinds.

Masked positions: mlm, clm, mntp, sbo. Segment pairs: nsp, sop. Replaced tokens: rtd. Left to
right: lm. A teacher's outputs: distillation, cosine, states, relations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    log_softmax,
    pad,
)

from cloze.model.layers.batch import IGNORE_INDEX, Batch, unmask
from cloze.model.layers.cross_entropy import flat, iter_chunks, summed_cross_entropy
from cloze.model.objectives import Detail, Objective, Outputs, Reads

TOP = 5
ALIGNED = 0.5  # cosine above which two states count as aligned


Labels = Literal["masked_labels", "causal_labels", "pair_labels"]


def real_tokens(batch: Batch) -> Tensor:
    return batch["attention_mask"]


def labelled(labels: Labels) -> Callable[[Batch], Tensor]:
    """Return the targets of an objective: the batch's `labels` that are no filler."""
    return lambda batch: batch[labels] != IGNORE_INDEX


# Masked positions: cross-entropy over the logits of one head each.


def masked_objective(
    name: str,
    head: str,
    logits_name: str,
    details: Callable[[Outputs, Batch], dict[str, Detail]] | None = None,
    *,
    labels: Labels = "masked_labels",
    reads: Reads = "masked",
) -> Objective:
    """Build an objective: cross-entropy at the masked positions, computed in fp32.

    It reads the outputs' logits [M, V] under `logits_name` and the batch's `labels`, int64 [M].
    Labels of -100 (filler for a fixed M) are ignored.
    """
    return Objective(
        name=name,
        targets=labelled(labels),
        loss=lambda outputs, batch: summed_cross_entropy(outputs[logits_name], batch[labels]),
        details=details,
        random_loss=math.log,
        head=head,
        reads=reads,
    )


def masked_details(outputs: Outputs, batch: Batch) -> dict[str, Detail]:
    """Return top-5 accuracy, and accuracy by kind of input token.

    The input token at a masked position is [MASK], random, or kept.

    Args:
        outputs: `mlm_logits`, float [M, V].
        batch: with `mask_id`.
    """
    labels = batch["masked_labels"]
    real = labels != IGNORE_INDEX
    best = [
        logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices
        for _, logits in iter_chunks(outputs["mlm_logits"])
    ]
    hits = (torch.cat(best) == labels[:, None]) & real[:, None]
    sums = {"top5_accuracy": (hits.any(dim=-1).sum(), real.sum())}
    top1_hits = hits[:, 0]
    input_tokens = batch["input_ids"].flatten()[batch["masked_positions"]]
    # A random replacement may be the original token, and counts as kept then.
    is_unchanged, is_mask = input_tokens == labels, input_tokens == batch["mask_id"]
    kinds = {
        "masked": is_mask & ~is_unchanged,
        "random": ~is_unchanged & ~is_mask,
        "kept": is_unchanged,
    }
    for name, mask in kinds.items():
        sums[f"{name}_accuracy"] = ((top1_hits & mask).sum(), (real & mask).sum())
    return sums


# Masked language modelling: predict the original token (Devlin et al., 2019, 3.1, Task 1).
MLM = masked_objective("mlm", "masked_lm", "mlm_logits", masked_details)

# Causal language modelling by a model that also fills masks: predict the next token from the
# previous ones. A phase of it before masked language modelling gives a better encoder than masks
# alone in the same time (Gisserot-Boukhlef et al., "Should We Still Pretrain Encoders with Masked
# Language Modeling?", 2025). Purely left-to-right models use `lm`.
CLM = masked_objective("clm", "masked_lm", "clm_logits", labels="causal_labels", reads="causal")

# Masked next-token prediction: predict a masked token at the position before it, from all other
# tokens. The same output thus serves left-to-right reading, and a network can train on both
# (Charpentier and Samuel, "GPT or BERT: why not both?", 2024, section 2; `clm`).
MNTP = masked_objective("mntp", "masked_lm", "mlm_logits", masked_details)

# Span boundary objective: predict a masked token from both ends of its span (Joshi et al.,
# SpanBERT, 2020, section 2.2).
SBO = masked_objective("sbo", "span_boundary", "sbo_logits")


# Segment pairs: two logits per row against a label of 0 or 1.


def pair_objective(name: str, recipe: str) -> Objective:
    """Build an objective: cross-entropy of the pair labels of the recipe `recipe`, in fp32.

    It reads `pair_logits`, float [B, 2], and `pair_labels`, int64 [B]. Rows labelled -100 have no
    pair and are ignored.
    """

    def loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = outputs["pair_logits"].float(), batch["pair_labels"]
        total = cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return total, (logits.detach().argmax(dim=-1) == labels).sum()

    return Objective(
        name=name,
        targets=labelled("pair_labels"),
        loss=loss,
        random_loss=lambda vocabulary: math.log(2),
        head="pair",
        pair_recipe=recipe,
    )


# Next sentence prediction: segment B follows segment A (0) or is from elsewhere (1) (Devlin et al.,
# 2019, Task 2).
NSP = pair_objective("nsp", recipe="bert")

# Sentence order prediction: the two segments are in order (0) or swapped (1) (Lan et al., ALBERT,
# 2020, section 3.1).
SOP = pair_objective("sop", recipe="albert")


# Replaced-token detection: original or replaced? (Clark et al., ELECTRA, 2020, 3.1, L_Disc)


def rtd_loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy at every real token, special tokens included.

    Source: google-research/electra, `_get_discriminator_output`.

    Args:
        outputs: `rtd_logits`, float [B, L], above 0 for "replaced"; `rtd_labels`, bool [B, L].
    """
    logits, labels, real = (
        outputs["rtd_logits"].float(),
        outputs["rtd_labels"],
        batch["attention_mask"],
    )
    losses = binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
    correct = ((logits.detach() > 0) == labels) & real
    return (losses * real).sum(), correct.sum()


def rtd_details(outputs: Outputs, batch: Batch) -> dict[str, Detail]:
    """Return precision and recall of "replaced", and the share of replaced tokens."""
    real = batch["attention_mask"]
    replaced, labels = (outputs["rtd_logits"] > 0) & real, outputs["rtd_labels"] & real
    hits = (replaced & labels).sum()
    return {
        "precision": (hits, replaced.sum()),
        "recall": (hits, labels.sum()),
        "replaced": (labels.sum(), real.sum()),
    }


RTD = Objective(
    name="rtd",
    targets=real_tokens,
    loss=rtd_loss,
    details=rtd_details,
    random_loss=lambda vocabulary: math.log(2),
    head="discriminator",
    reads="masked",
)


# Left-to-right language modelling ("LTR & No NSP", Devlin et al., 2019, Table 5).


def next_tokens(batch: Batch) -> Tensor:
    """Return which tokens are predicted, bool [B, L - 1]: all except the first of each sequence."""
    real = batch["attention_mask"][:, 1:]
    return real & ~batch["sequence_first"][:, 1:] if "sequence_first" in batch else real


def lm_loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of every token except a sequence's first, in fp32.

    Args:
        outputs: `lm_logits`, float [B, L, V]; position t predicts token t + 1.
        batch: masks are undone, and padding is ignored.
    """
    # The last position predicts nothing.
    labels = pad(
        unmask(batch)[:, 1:].masked_fill(~next_tokens(batch), IGNORE_INDEX),
        (0, 1),
        value=IGNORE_INDEX,
    )
    return summed_cross_entropy(flat(outputs["lm_logits"]), labels.flatten())


LM = Objective(
    name="lm", targets=next_tokens, loss=lm_loss, random_loss=math.log, head="lm", reads="causal"
)


# Teachers: the distribution at masked tokens, and hidden states.


def soft_divergence(student: Tensor, teacher: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the KL divergence of student from teacher at a temperature, fp32 [...].

    Args:
        student, teacher: logits, float [..., V].
    """
    target = log_softmax(teacher.float() / temperature, dim=-1)
    own = log_softmax(student.float() / temperature, dim=-1)
    return (target.exp() * (target - own)).sum(dim=-1)


def divergence(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the KL divergence of student from teacher at a temperature, times its square.

    It is taken at the masked positions, where the student's head is computed anyway (transformers'
    research_projects/distillation, `restrict_ce_to_mask`). Equal top tokens count as right.

    Args:
        outputs: `mlm_logits` and `teacher_logits`, float [M, V]; `temperature`, scalar.
    """
    student, teacher = outputs["mlm_logits"], outputs["teacher_logits"]
    temperature, real = outputs["temperature"], batch["masked_labels"] != IGNORE_INDEX
    kl = soft_divergence(student, teacher, temperature)
    agreement = (student.detach().argmax(dim=-1) == teacher.argmax(dim=-1)) & real
    # Gradients of soft targets shrink with 1 / T² (Hinton et al., 2015, section 2).
    return torch.where(real, kl, 0.0).sum() * temperature**2, agreement.sum()


def misalignment(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return 1 - cosine between the last hidden states of student and teacher at every real token.

    Args:
        outputs: `hidden` and `teacher_hidden`, float [B, L, D].
    """
    real = batch["attention_mask"]
    cosine = cosine_similarity(outputs["hidden"].float(), outputs["teacher_hidden"].float(), dim=-1)
    total = torch.where(real, 1.0 - cosine, 0.0).sum()
    return total, ((cosine.detach() > ALIGNED) & real).sum()


def state_distance(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the mean squared distance of matched states at every real token.

    The mean is over layers and width. Aligned last states count as right.

    Args:
        outputs: `states` and `teacher_states`, float [K, B, L, D].
    """
    real = batch["attention_mask"]
    own, target = outputs["states"].float(), outputs["teacher_states"].float()
    distance = (own - target).square().mean(dim=(0, -1))
    cosine = cosine_similarity(own[-1].detach(), target[-1], dim=-1)
    return torch.where(real, distance, 0.0).sum(), ((cosine > ALIGNED) & real).sum()


def relation_divergence(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the KL divergence between relations at every real token, a mean over heads.

    Relations are softmax(X X^T / sqrt(H)) for queries, keys and values X of a head; the three
    divergences add up (Wang et al., MiniLMv2, 2021, equations 6 to 8). A token whose most related
    token by values is the teacher's counts as right.

    Args:
        outputs: `relations` and `teacher_relations`, float [3, B, L, A, H].
    """
    real = batch["attention_mask"]

    def scores(vectors: Tensor) -> Tensor:
        heads = vectors.float().transpose(-3, -2)  # [3, B, A, L, H]
        products = heads @ heads.transpose(-1, -2) / math.sqrt(heads.shape[-1])
        # Not -inf, which makes a row without tokens NaN, in the gradient behind `where`, too.
        return products.masked_fill(~real[:, None, None, :], torch.finfo(products.dtype).min)

    own, target = scores(outputs["relations"]), scores(outputs["teacher_relations"])
    losses = soft_divergence(own, target, 1.0).mean(dim=2).sum(dim=0)  # [B, L]
    best = [values[2].detach().mean(dim=1).argmax(dim=-1) for values in (own, target)]
    return torch.where(real, losses, 0.0).sum(), ((best[0] == best[1]) & real).sum()


# Knowledge distillation: the teacher's distribution over masked tokens (Hinton et al., 2015; Sanh
# et al., DistilBERT, 2019).
DISTILLATION = Objective(
    name="distillation",
    targets=MLM.targets,
    loss=divergence,
    head="masked_lm",
    needs_teacher=True,
    reads_logits=True,
    reads="masked",
)

# Cosine loss: align hidden states with the teacher's (Sanh et al., DistilBERT, 2019, 3: L_cos).
COSINE = Objective(
    name="cosine", targets=real_tokens, loss=misalignment, all_positions=True, needs_teacher=True
)

# Hidden states of all layers (Jiao et al., TinyBERT, 2020, 3.1: L_hidn and L_embd).
STATES = Objective(
    name="states", targets=real_tokens, loss=state_distance, all_positions=True, needs_teacher=True
)

# Self-attention relations of the last layer (Wang et al., MiniLMv2, 2021).
RELATIONS = Objective(
    name="relations",
    targets=real_tokens,
    loss=relation_divergence,
    all_positions=True,
    needs_teacher=True,
)
