"""The stage index: the passages of a corpus, searchable by words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.humanize import format_count
from cloze.core.stages.stage import InputSpec, Stage, deferred

NAME = "index"
VERSION = 2  # 2: pairs of letters in scripts without spaces


class IndexConfig(StageConfig):
    """Options of the stage index."""

    passage_words: int = Field(default=100, ge=1)
    """Approximate words per passage; passages are whole sentences of one document."""


def _headline(summary: Mapping[str, Any]) -> str:
    reused = f", {summary['reused']} of {summary['shards']} shards reused"
    return (
        f"{format_count(summary['passages'])} passages of {format_count(summary['documents'])} "
        f"documents{reused if summary['reused'] else ''}"
    )


# Files: see `passages.py`.
STAGE = Stage(
    name=NAME,
    version=VERSION,
    config=IndexConfig,
    run=deferred("cloze.labs.retrieval.index_build:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "append": InputSpec(kinds=("index",), explicit_only=True),
    },
    worker="cloze.pipeline",
    headline=_headline,
    comparison_metrics=("passages",),
)
