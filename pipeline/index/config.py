"""Config of the stage index."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import StageConfig

NAME = "index"
VERSION = 2  # 2: pairs of letters in scripts without spaces


class IndexConfig(StageConfig):
    """Options of the stage index."""

    passage_words: int = Field(default=100, ge=1)
    """Approximate words per passage; passages are whole sentences of one document."""
