"""The table of pretraining objectives, which score a model's outputs.

An objective is an `Objective` and one line in `OBJECTIVES`. It declares what it needs (a head, a
teacher, pairs), which values of a batch it predicts, and its loss. The loss is a *sum*, never a
mean: the trainer divides by the count over all micro-batches and ranks, so the gradient does not
depend on how a batch is split. Imports no torch, so that configs can be checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cloze.core.errors import UsageError
from cloze.core.plugins import Table
from cloze.model.families.config import HEAD_OF, prediction_objectives

if TYPE_CHECKING:
    from torch import Tensor

    from cloze.model.data.transforms import RowTransform
    from cloze.model.families.config import ModelConfig
    from cloze.model.layers.batch import Batch
    from cloze.model.objectives.distill_options import DistillOptions
    from cloze.pipeline.dataset.schema import DatasetInfo

_OBJECTIVES = {
    "mlm": "cloze.model.objectives.losses:MLM",
    "clm": "cloze.model.objectives.losses:CLM",
    "mntp": "cloze.model.objectives.losses:MNTP",
    "nsp": "cloze.model.objectives.losses:NSP",
    "sop": "cloze.model.objectives.losses:SOP",
    "sbo": "cloze.model.objectives.losses:SBO",
    "rtd": "cloze.model.objectives.losses:RTD",
    "lm": "cloze.model.objectives.losses:LM",
    "distillation": "cloze.model.objectives.losses:DISTILLATION",
    "cosine": "cloze.model.objectives.losses:COSINE",
    "states": "cloze.model.objectives.losses:STATES",
    "relations": "cloze.model.objectives.losses:RELATIONS",
}
OBJECTIVES: Table[Objective] = Table("objectives", "objective", _OBJECTIVES, ("objectives",))
CAUSAL, MASKED = "clm", ("mlm", "mntp")  # ways to train a head that fills masks, also together

# Tensors, and logits that are not computed yet (`cloze.model.layers.cross_entropy`).
Outputs = Mapping[str, Any]
Reads = Literal["masked", "causal"]
Detail = tuple["Tensor", "Tensor"]  # sum and count, scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """An objective's loss over (part of) a batch, as a sum.

    Attributes:
        name: key in `OBJECTIVES`.
        total: fp32 scalar, nats, differentiable: loss summed over the predictions.
        count: int64 scalar: number of predictions.
        correct: int64 scalar: number of predictions whose top answer is right.
    """

    name: str
    total: Tensor
    count: Tensor
    correct: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A pretraining objective.

    Attributes:
        name: key in `OBJECTIVES`.
        targets: maps a batch to a bool tensor, True at each value that is predicted.
        loss: maps a model's outputs and the batch to the loss summed over the targets, fp32 scalar
            in nats, differentiable, and the number of right top answers, int64 scalar.
        details: finer metrics for held-out evaluation, `name -> (sum, count)`, with fixed names.
        random_loss: maps V to the loss of random guessing, in nats per prediction; None: undefined.
        all_positions: True if the objective reads `hidden`, the states of all positions.
        head: required head, a name in `ModelConfig.heads`; None: no head.
        reads: `masked`: rows with masks; `causal`: running text without masks; None: any rows.
        reads_logits: True if the objective needs whole logits, not only their cross-entropy.
        transform: makes of model, dataset, its tokenizer directory and the training's seed what
            changes rows before they are batches; None: they are read as they are stored. Such an
            objective is used alone.
        pair_recipe: for objectives on `pair_labels`: the dataset recipe that makes such pairs. The
            dataset's `pair_task` must then be the objective's name. None: no pairs needed.
    """

    name: str
    targets: Callable[[Batch], Tensor]
    loss: Callable[[Outputs, Batch], tuple[Tensor, Tensor]]
    details: Callable[[Outputs, Batch], dict[str, Detail]] | None = None
    random_loss: Callable[[int], float] | None = None
    all_positions: bool = False
    head: str | None = None
    reads: Reads | None = None
    needs_teacher: bool = False
    reads_logits: bool = False
    transform: Callable[[ModelConfig, DatasetInfo, str, int], RowTransform] | None = None
    pair_recipe: str | None = None

    def score(self, outputs: Outputs, batch: Batch) -> LossSum:
        """Return the loss of a model's outputs for the batch."""
        total, correct = self.loss(outputs, batch)
        return LossSum(
            name=self.name, total=total, count=self.targets(batch).sum(), correct=correct
        )


def objectives(names: Iterable[str]) -> tuple[Objective, ...]:
    """Return the objectives with these names, in order.

    Raises:
        UsageError: a name is unknown.
    """
    return tuple(map(OBJECTIVES.find, names))


def transform_of(
    names: Sequence[str], model: ModelConfig, info: DatasetInfo, tokenizer: str, seed: int
) -> RowTransform | None:
    """Return what the objectives make of rows; None: they are read as they are stored.

    Raises:
        UsageError: the objective needs something that model and tokenizer lack.
    """
    make = objectives(names)[0].transform
    return None if make is None else make(model, info, tokenizer, seed)


def share_left_to_right(names: Iterable[str], causal_share: float | None = None) -> float:
    """Return the share of samples that a head that fills masks reads left to right.

    Args:
        causal_share: that beside a masked objective; None: one half.
    """
    if CAUSAL not in names:
        return 0.0
    if set(MASKED).isdisjoint(names):
        return 1.0
    return 0.5 if causal_share is None else causal_share


def choose(
    model: ModelConfig,
    info: DatasetInfo,
    requested: Sequence[str] | None = None,
    teacher: ModelConfig | None = None,
    distill: DistillOptions | None = None,
) -> tuple[str, ...]:
    """Return the names of the objectives to train on, checked against model, dataset and teacher.

    Args:
        requested: names from the user; None: the model family's defaults.
        distill: losses against the teacher; None: the family's.

    Raises:
        UsageError: the model lacks an objective's head, or the dataset's rows do not suit it.
    """
    if teacher is None:
        defaults = model.default_objectives(info.pair_task)
    elif distill is not None:
        defaults = tuple(distill.loss_weights())
    else:
        defaults = model.distillation_objectives(teacher)
    selected = tuple(requested) if requested else defaults
    for objective in objectives(selected):
        if objective.needs_teacher and teacher is None:
            raise UsageError(
                f"objective ({objective.name}) needs a teacher; name one with --teacher, or leave "
                f"it out"
            )
        if objective.name == "cosine" and teacher and teacher.hidden_size != model.hidden_size:
            raise UsageError(
                f"objective (cosine) needs a teacher of the student's hidden_size "
                f"({model.hidden_size}), this one has {teacher.hidden_size}; leave it out, or use "
                f"distill.hidden, which projects states"
            )
        if objective.head is not None and objective.head not in model.heads:
            raise UsageError(
                f"objective ({objective.name}) needs a {objective.head} head, which {model.family} "
                f"models do not have; leave it out, or train a model that has one"
            )
        if objective.pair_recipe is not None:
            _check_pairs(objective.name, objective.pair_recipe, model, info)
        _check_rows(objective, model, info)
        if objective.transform and (info.packed or len(selected) > 1):
            raise UsageError(
                f"objective ({objective.name}) is used alone, on rows of one text each (found "
                f"{', '.join(selected)}, recipe {info.recipe}); name it alone, with a dataset of "
                f"the recipe roberta or spanbert"
            )
    _check_ways(selected, model, teacher)
    if "relations" in selected and info.packed:
        raise UsageError(
            "objective (relations) needs rows of one text each, those of this dataset are packed; "
            "leave distill.relations out, or make a dataset with another recipe"
        )
    return selected


def trained_heads(
    model: ModelConfig, names: Sequence[str], causal_share: float = 0.0
) -> dict[str, Any]:
    """Return the `heads` entry of a checkpoint of `model` trained on these objectives.

    Args:
        causal_share: share of samples that were read left to right; of mixed objectives it is part
            of the entry, since a held-out loss depends on it.
    """
    prediction_names = [
        own.name for own in objectives(names) if own.head == "masked_lm" and not own.needs_teacher
    ]
    if model.is_encoder_decoder:
        return {**model.heads, "seq2seq": {"objectives": list(names)}}
    if not prediction_names or tuple(prediction_names) == prediction_objectives(model.heads):
        return dict(model.heads)
    share = {"causal_share": causal_share} if 0.0 < causal_share < 1.0 else {}
    return {**model.heads, "masked_lm": {"objectives": prediction_names, **share}}


def still_untrained(modules: Collection[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return those of a model's modules with random weights that these objectives do not train."""
    trained = {objective.head for objective in objectives(names)}
    # BERT's pooler is trained by pairs; ModernBERT's, which is its masked LM's, by any objective.
    head_of = {**HEAD_OF, "pooler": "pair" if "pair" in modules else None}
    kept = (
        module for module in sorted(modules) if head_of.get(module, module) not in (None, *trained)
    )
    return tuple(kept)


def _check_rows(objective: Objective, model: ModelConfig, info: DatasetInfo) -> None:
    rule = (info.masks or {}).get("rule")
    if objective.reads == "masked" and rule == "none":
        instead = (
            f"--objective {CAUSAL}"
            if model.supports_causal and "masked_lm" in model.heads
            else "a model that reads left to right"
        )
        raise UsageError(
            f"objective ({objective.name}) needs rows with masks, those of this dataset (recipe "
            f"{info.recipe}) have none; make one with `cloze dataset --recipe roberta`, or train "
            f"{instead}"
        )
    if objective.reads == "causal" and info.pair_task is not None:
        raise UsageError(
            f"objective ({objective.name}) needs text that runs on, the rows of this dataset "
            f"(recipe {info.recipe}) are pairs for {info.pair_task}, which do not always; make one "
            f"with `cloze dataset --recipe lm`"
        )


def _check_ways(names: Sequence[str], model: ModelConfig, teacher: ModelConfig | None) -> None:
    """Check that `clm` and `mntp` suit the model and the other objectives."""
    shifted = [name for name in names if name in (CAUSAL, "mntp")]
    if not shifted:
        return
    if not model.supports_causal:
        raise UsageError(
            f"objective ({shifted[0]}) cannot be that of {model.family} models, which read rows "
            f"whole; use another model"
        )
    if teacher is not None:
        raise UsageError(f"objective ({shifted[0]}) knows no teacher; leave --teacher out")
    others = [name for name in names if name != CAUSAL]
    if len(others) > 1 or not set(others) <= set(MASKED):
        raise UsageError(
            f"objectives ({', '.join(names)}) cannot be combined; use {CAUSAL} alone, or with "
            f"one of {' and '.join(MASKED)}"
        )


def _check_pairs(name: str, recipe: str, model: ModelConfig, info: DatasetInfo) -> None:
    if info.pair_task != name:
        available = f"pairs for {info.pair_task}" if info.pair_task else "no pairs"
        raise UsageError(
            f"objective ({name}) needs a dataset with {name.upper()} pairs, this one (recipe "
            f"{info.recipe}) has {available}; make one with `cloze dataset --recipe {recipe}`, or "
            f"train on --objective mlm"
        )
    if model.type_vocab_size < 2:
        raise UsageError(
            f"type_vocab_size ({model.type_vocab_size}) is too small for sentence pairs ({name}); "
            f"use 2"
        )


def total_loss(
    sums: Sequence[Any],
    counts: Sequence[Tensor | int | float] | Tensor | None = None,
    weights: Sequence[float] = (),
) -> Tensor:
    """Return the loss: sum over objectives of weight · summed loss / count, as in BERT (A.2).

    Args:
        sums: a `LossSum` of each objective for this micro-batch, or a task's `Loss`.
        counts: counts of the whole global batch. Default: the micro-batch's.
        weights: default: 1.

    Returns:
        fp32 scalar. Summed over all micro-batches and ranks it is the loss of the global batch. An
        objective without predictions (count 0) contributes 0.
    """
    import torch

    if not sums:
        raise UsageError(
            "there is no objective to train on; name at least one of "
            + ", ".join(sorted(OBJECTIVES))
        )
    loss = torch.zeros((), dtype=torch.float32, device=sums[0].total.device)
    for number, item in enumerate(sums):
        count = torch.as_tensor(
            item.count if counts is None else counts[number], device=loss.device
        )
        weight = weights[number] if weights else 1.0
        loss = loss + weight * item.total / count.clamp(min=1)
    return loss


def figures_of(sums: Sequence[Any]) -> Tensor:
    """Return float64 [2, objectives], without gradient: summed losses and correct answers."""
    import torch

    totals = torch.stack([item.total.detach().double() for item in sums])
    return torch.stack([totals, torch.stack([item.correct.double() for item in sums])])
