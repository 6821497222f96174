"""Retrieval as a companion of pretraining, and its options. No torch: part of configs."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import Values
from cloze.core.options import Options
from cloze.core.stages.stage import InputSpec
from cloze.model.train.spec.companions import CompanionKind


class RetrievalOptions(Values):
    """The passages that are read with each row, and the age of their vectors."""

    passages: int = Field(default=7, ge=1)
    """Passages read with each row, and the empty one in addition (REALM: 7)."""

    refresh_steps: int = Field(default=500, ge=1)
    """Steps between two copies of the retriever; its vectors are used one interval later."""


class RetrievalFields(Options):
    """The field of a pretraining's config."""

    retrieval: RetrievalOptions | None = None
    """With --retrieve: number of passages, and age of their vectors. Default: 7, 500 steps."""


COMPANION = CompanionKind(
    load="cloze.labs.retrieval.realm:load_retrieval",
    options="cloze.labs.retrieval.realm_options:RetrievalFields",
    inputs={
        "index": InputSpec(
            kinds=("index",),
            explicit_only=True,
            option="--retrieve",
            help="Index whose passages are read with each row (REALM).",
        ),
        "retriever": InputSpec(
            kinds=("finetune",),
            explicit_only=True,
            help="With --retrieve: checkpoint tuned for retrieval, such as on inverse-cloze.",
        ),
    },
)
