"""Options of retrieval in pretraining. Imports no torch: part of configs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from cloze.core.options import Options

TEMPERATURE = 0.05  # of similarities, if a retriever's task does not say (SimCSE)


class RetrievalOptions(BaseModel):
    """The passages that are read with each row, and the age of their vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    passages: int = Field(default=7, ge=1)
    """Passages read with each row, and the empty one in addition (REALM: 7)."""

    refresh_steps: int = Field(default=500, ge=1)
    """Steps between two copies of the retriever; its vectors are used one interval later."""


class RetrievalFields(Options):
    """The field of a pretraining's config."""

    retrieval: RetrievalOptions | None = None
    """With --retrieve: number of passages, and age of their vectors. Default: 7, 500 steps."""
