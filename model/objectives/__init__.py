"""The table of pretraining objectives: what a model's outputs are scored by.

An objective is one file with one `OBJECTIVE`, and one line here: it says what it needs (a head, a teacher, pairs), counts what
is to be predicted in a batch before the model runs, and scores what the model said. It gives the *sum* of its loss and the
count it is over, never a mean: the trainer divides by the count over all micro-batches and ranks, so the gradient does not
depend on how a batch is split.
This module imports no torch, so that configs can be checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from model.layers.batch import Batch
from pipeline.core.errors import UsageError
from pipeline.core.registry import find

if TYPE_CHECKING:
    from torch import Tensor

    from model.families.config import ModelConfig
    from pipeline.dataset.schema import DatasetInfo

OBJECTIVES: dict[str, str] = {
    "mlm": "model.objectives.mlm",
    "clm": "model.objectives.clm",
    "mntp": "model.objectives.mntp",
    "nsp": "model.objectives.nsp",
    "sop": "model.objectives.sop",
    "sbo": "model.objectives.sbo",
    "rtd": "model.objectives.rtd",
    "lm": "model.objectives.lm",
    "distillation": "model.objectives.distillation",
    "cosine": "model.objectives.cosine",
}
CAUSAL, MASKED = "clm", ("mlm", "mntp")  # that a head which fills masks can be trained on

Outputs = Mapping[str, Any]  # tensors, and logits that are not computed yet (`model.layers.lazy_logits`)
Reads = Literal["masked", "causal"]
Detail = tuple["Tensor", "Tensor"]  # a sum and the count it is over, scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """One objective's loss over (part of) a batch, ready to be added up.

    Attributes:
        name: the objective's, as in `OBJECTIVES`.
        total: fp32 scalar, nats, differentiable: the loss summed over the predictions.
        count: int64 scalar: how many predictions.
        correct: int64 scalar: how many of them had the right answer on top.
    """

    name: str
    total: Tensor
    count: Tensor
    correct: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a file of this package holds.

    Attributes:
        name: as in `OBJECTIVES`.
        score: a model's outputs and the batch to the loss.
        count: how many predictions the batch asks for, from the collated batch alone; `score` must count the same.
        details: finer figures for held-out scoring, as `name -> (sum, count)`; the names are always the same.
        chance: the loss, in nats a prediction, of a model that knows nothing: V -> nats. None: nothing can be said.
        everywhere: whether it looks at `hidden`, the states of all positions.
        head: what must stand on the encoder, a name in `ModelConfig.heads`; None: nothing.
        reads: `masked`: rows with masks, whole; `causal`: rows as they run on, without masks. None: any rows.
        taught: whether it needs a teacher.
        reads_logits: whether it reads logits otherwise than by cross-entropy, so that they must be there as a whole.
        pair_recipe: of an objective that is told by `pair_labels`, the dataset recipe that makes such pairs; the dataset's
            `pair_task` must be the objective's name. None: it needs no pairs.
    """

    name: str
    score: Callable[[Outputs, Batch], LossSum]
    count: Callable[[Batch], int]
    details: Callable[[Outputs, Batch], dict[str, Detail]] | None = None
    chance: Callable[[int], float] | None = None
    everywhere: bool = False
    head: str | None = None
    reads: Reads | None = None
    taught: bool = False
    reads_logits: bool = False
    pair_recipe: str | None = None


def objectives(names: Iterable[str]) -> tuple[Objective, ...]:
    """The objectives of these names, in order.

    Raises:
        UsageError: a name is unknown.
    """
    return tuple(find(OBJECTIVES, name, "objective").OBJECTIVE for name in names)


def choose(
    model: ModelConfig, info: DatasetInfo, wanted: Sequence[str] | None = None, teacher: ModelConfig | None = None
) -> tuple[str, ...]:
    """What to train on: the family's own objectives, or the `wanted` ones, checked against model, dataset and teacher.

    Raises:
        UsageError: an objective that the model has no head for, or that the dataset's rows were not made for.
    """
    own = model.own_objectives(info.pair_task) if teacher is None else model.taught_objectives(teacher)
    chosen = tuple(wanted) if wanted else own
    for objective in objectives(chosen):
        if objective.taught and teacher is None:
            raise UsageError(f"objective ({objective.name}) needs a teacher; name one with --teacher, or leave it out")
        if objective.head is not None and objective.head not in model.heads:
            raise UsageError(
                f"objective ({objective.name}) needs a {objective.head} head, which {model.family} models do not have; leave it"
                " out, or train a model that has one"
            )
        if objective.pair_recipe is not None:
            _check_pairs(objective.name, objective.pair_recipe, model, info)
        _check_rows(objective, model, info)
    _check_ways(chosen, model, teacher)
    return chosen


def trained_heads(model: ModelConfig, names: Sequence[str]) -> dict[str, Any]:
    """What a checkpoint of `model` says of its heads that was trained on the objectives of these names."""
    own = [name for name in names if name in (*MASKED, CAUSAL)]
    plain = set(own) <= {MASKED[0]}
    return dict(model.heads) if plain else {**model.heads, "masked_lm": {"objectives": own}}


def _check_rows(objective: Objective, model: ModelConfig, info: DatasetInfo) -> None:
    rule = (info.masks or {}).get("rule")
    if objective.reads == "masked" and rule == "none":
        instead = (
            f"--objective {CAUSAL}" if model.both_ways and "masked_lm" in model.heads else "a model that reads left to right"
        )
        raise UsageError(
            f"objective ({objective.name}) needs rows with masks, those of this dataset (recipe {info.recipe}) have none; make one"
            f" with `cloze dataset --recipe roberta`, or train {instead}"
        )
    if objective.reads == "causal" and info.pair_task is not None:
        raise UsageError(
            f"objective ({objective.name}) needs text that runs on, the rows of this dataset (recipe {info.recipe}) are pairs for"
            f" {info.pair_task}, which do not always; make one with `cloze dataset --recipe lm`"
        )


def _check_ways(names: Sequence[str], model: ModelConfig, teacher: ModelConfig | None) -> None:
    """Refuse what `clm` and `mntp` cannot be beside, or run on."""
    found = [name for name in names if name in (CAUSAL, "mntp")]
    if not found:
        return
    if not model.both_ways:
        raise UsageError(
            f"objective ({found[0]}) cannot be that of {model.family} models, which read rows whole; use another model"
        )
    if teacher is not None:
        raise UsageError(f"objective ({found[0]}) knows no teacher; leave --teacher out")
    beside = [name for name in names if name != CAUSAL]
    if len(beside) > 1 or not set(beside) <= set(MASKED):
        raise UsageError(
            f"objectives ({', '.join(names)}) do not go together; {CAUSAL} stands alone, or beside one of {' and '.join(MASKED)}"
        )


def _check_pairs(name: str, recipe: str, model: ModelConfig, info: DatasetInfo) -> None:
    if info.pair_task != name:
        has = f"pairs for {info.pair_task}" if info.pair_task else "no pairs"
        raise UsageError(
            f"objective ({name}) needs a dataset with {name.upper()} pairs, this one (recipe {info.recipe}) has {has};"
            f" make one with `cloze dataset --recipe {recipe}`, or train on --objective mlm"
        )
    if model.type_vocab_size < 2:
        raise UsageError(f"type_vocab_size ({model.type_vocab_size}) is too small for sentence pairs ({name}); use 2")


def total_loss(
    sums: Sequence[LossSum],
    counts: Mapping[str, Tensor | int | float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Tensor:
    """The loss to differentiate: over objectives, the sum of (weight · summed loss / count), as in BERT (section A.2).

    Args:
        sums: what the objectives gave for this micro-batch.
        counts: by objective's name, the count to divide by: that of the whole global batch. By default this micro-batch's own.
        weights: by objective's name; 1 where it is not named.

    Returns:
        fp32 scalar. Added up over all micro-batches and ranks it is the loss of the global batch. An objective that has
        nothing to predict (count 0) gives 0.
    """
    import torch

    if not sums:
        raise UsageError("there is no objective to train on; name at least one of " + ", ".join(sorted(OBJECTIVES)))
    loss = torch.zeros((), dtype=torch.float32, device=sums[0].total.device)
    for item in sums:
        count = torch.as_tensor(item.count if counts is None else counts[item.name], device=loss.device)
        loss = loss + (weights or {}).get(item.name, 1.0) * item.total / count.clamp(min=1)
    return loss
