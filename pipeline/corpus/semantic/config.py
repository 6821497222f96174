"""Stage semdedup: its options."""

from __future__ import annotations

import math

from pydantic import Field

from pipeline.core.config import StageConfig

MEMBERS_OF_A_CLUSTER = 2000  # about, in a corpus of up to four million documents
SAMPLE, SMALLEST_SAMPLE = 256, 1 << 16  # documents for each cluster, and at least, by which the centres and the mean are found
UNIT_DOCUMENTS = 20_000  # that a worker compares at once, about


class SemDedupConfig(StageConfig):
    """Which documents say the same in other words."""

    cosine: float = Field(default=0.95, gt=0, le=1)
    """A document goes if its vector's cosine to that of one that stays is at least this."""

    centred: bool = True
    """Whether what all vectors have in common is taken from them first; cosines of a model that was not tuned for them are all high."""

    clusters: int | None = Field(default=None, ge=1)
    """Clusters within which documents are compared; by default one for about 2,000 documents, and at most the root of their number."""

    rounds: int = Field(default=20, ge=1)
    """The most rounds of k-means."""


def clusters_for(documents: int) -> int:
    """How many clusters by default."""
    return max(1, min(documents // MEMBERS_OF_A_CLUSTER, math.isqrt(documents)))


def sample_for(documents: int, clusters: int) -> int:
    """By how many documents the centres and the mean are found."""
    return min(documents, max(SMALLEST_SAMPLE, SAMPLE * clusters))
