"""What a config says of how samples are read: which way, and how many of their masks count."""

from __future__ import annotations

from collections.abc import Sequence

from model.data.directions import Directions
from model.data.thinning import Thinning
from model.objectives import CAUSAL, MASKED
from model.train.config import PretrainConfig
from model.train.interfaces import Position
from model.train.recipe import step_pace
from pipeline.core.errors import UsageError
from pipeline.dataset.schema import DatasetInfo


def directions_of(names: Sequence[str], causal_share: float | None, global_batch: int) -> Directions:
    """How samples are read for the objectives of these names.

    Raises:
        UsageError: a share is given where samples are all read alike, or a step would have no sample of one kind.
    """
    before = "mntp" in names
    if CAUSAL not in names or not set(names) & set(MASKED):
        if causal_share is not None:
            raise UsageError(
                f"causal_share ({causal_share}) is for objectives of both ways, such as {CAUSAL},mntp, these are"
                f" {', '.join(names)}; leave it out"
            )
        return Directions(causal_share=float(CAUSAL in names), before=before)
    share = 0.5 if causal_share is None else causal_share
    if min(share, 1 - share) * global_batch < 1:
        raise UsageError(
            f"causal_share ({share}) of global_batch ({global_batch}) leaves steps without a sample of each kind; use"
            f" global_batch {-int(-1 // min(share, 1 - share))} or more"
        )
    return Directions(causal_share=share, before=before)


def thinning_of(config: PretrainConfig, info: DatasetInfo, begun: Position) -> Thinning | None:
    """Which of the stored masks count.

    Raises:
        UsageError: the dataset's masks are no free choice of single tokens, or already as few.
    """
    if config.final_mask_rate is None:
        return None
    masks = info.masks or {}
    rate = float(masks.get("rate") or 0.0)
    if masks.get("rule") != "token" or not rate:
        raise UsageError(
            f"final_mask_rate is for datasets of masking token, whose masks are chosen one by one, and this one's is"
            f" {masks.get('rule') or 'not known'}; leave it out, or make the dataset with masking token"
        )
    if config.final_mask_rate >= rate:
        raise UsageError(
            f"final_mask_rate ({config.final_mask_rate:g}) is not below the dataset's mask_rate ({rate:g}), from which it falls; use a"
            " lower one, or make the dataset with a higher one"
        )
    pace = step_pace(config, begun)
    return Thinning(last=config.final_mask_rate / rate, first=pace.first, steps=pace.span, seed=config.seed)


def shares(names: Sequence[str], directions: Directions) -> dict[str, float]:
    """The weights of a mixture's objectives in the loss, so that each sample counts alike however many tokens it asks for."""
    if directions.causal_share in (0.0, 1.0):
        return {}
    return {name: directions.causal_share if name == CAUSAL else 1 - directions.causal_share for name in names}
