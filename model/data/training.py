"""What a training run reads, and in which order: the shards, with stored or fresh masks, and the sampler that fits them."""

from __future__ import annotations

from model.data.dynamic import Fresh
from model.data.sampler import Sampler
from model.data.shards import Shards

LENGTH_GROUP = 32  # rows of a length bin that follow each other: a small micro-batch, and a mixture of bins in a large step


def training_shards(dataset: str, dynamic: bool) -> Shards:
    """The rows of the training split of `dataset`, under stored masks, or under fresh ones if `dynamic`.

    Raises:
        DataError: a shard is damaged.
        UsageError: fresh masks cannot be drawn for this dataset.
    """
    shards = Shards(dataset)
    if not dynamic or shards.info is None:
        return shards
    return Shards(dataset, info=shards.info, fresh=Fresh.of(dataset, shards.info))


def training_order(shards: Shards, seed: int, dynamic: bool, global_batch: int, group: int | None = None) -> Sampler:
    """The order in which a run goes through them.

    Args:
        shards: not empty.
        seed: of the order.
        dynamic: every epoch has masks of its own.
        global_batch: sequences a step.
        group: of a dataset in length bins, rows of one bin that follow each other; None: `LENGTH_GROUP`, at most a step.
    """
    copies = None if dynamic or shards.info is None else shards.info.copies
    return Sampler(
        rows=len(shards),
        copies=copies,
        seed=seed,
        bins=shards.bins,
        group=group or min(LENGTH_GROUP, global_batch),
        window=shards.window,
    )
