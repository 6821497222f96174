"""Config of the stage semdedup, and what follows from it."""

from __future__ import annotations

import math

from pydantic import Field

from cloze.core.config import StageConfig

MEMBERS_OF_A_CLUSTER = 2000  # approximate, for corpora of up to four million documents
# Documents to fit the centres and the mean: per cluster, and at least.
SAMPLE, SMALLEST_SAMPLE = 256, 1 << 16
UNIT_DOCUMENTS = 20_000  # approximate number of documents per unit


class SemDedupConfig(StageConfig):
    """Config of the stage `semdedup`."""

    similarity: float = Field(default=0.95, gt=0, le=1)
    """Minimum cosine similarity to a kept document at which a document is dropped."""

    center: bool = True
    """Subtract the mean of all embeddings first; cosines of a model that was not tuned for
    retrieval are all high."""

    clusters: int | None = Field(default=None, ge=1)
    """Number of clusters within which documents are compared. Default: one per 2,000 documents, at
    most the square root of their number."""

    rounds: int = Field(default=20, ge=1)
    """Maximum number of k-means iterations."""


def clusters_for(documents: int) -> int:
    """Return the default number of clusters."""
    return max(1, min(documents // MEMBERS_OF_A_CLUSTER, math.isqrt(documents)))


def sample_for(documents: int, clusters: int) -> int:
    """Return the number of documents in the sample for the centres and the mean."""
    return min(documents, max(SMALLEST_SAMPLE, SAMPLE * clusters))
