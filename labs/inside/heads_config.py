"""Config of the stage heads."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import InputPath, StageConfig


class HeadsConfig(StageConfig):
    """Options of the stage heads."""

    texts: InputPath | None = None
    """File with a text per line, instead of a dataset's rows."""

    treebank: InputPath | None = None
    """Sentences with dependencies, a CoNLL-U file: how well each head predicts each relation.
    Without texts and a dataset, its sentences are the texts."""

    rows: int = Field(default=1000, ge=1)
    """Maximum number of rows or texts, from the first. Rows are the held-out ones, if there are
    any."""

    max_length: int | None = Field(default=None, ge=3)
    """Maximum tokens per text, special tokens included; longer texts are cut. Default: the
    model's maximum."""
