"""The names of shard files, and of the two sets that documents are divided into."""

from __future__ import annotations

TRAIN = "train"


HELDOUT = "heldout"


SPLITS = (TRAIN, HELDOUT)


def shard_name(prefix: str, number: int, count: int) -> str:
    """`train-00003-of-00016.arrow`: the name that Hugging Face datasets gives shards too."""
    return f"{prefix}-{number:05d}-of-{count:05d}.arrow"
