"""The stage index: the passages of a corpus, searchable by words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.humanize import format_count
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.pipeline.index.config import NAME, VERSION, IndexConfig


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
    run=deferred("cloze.pipeline.index.build:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus", "semdedup"), required=True),
        "append": InputSpec(kinds=("index",), explicit_only=True),
    },
    worker="cloze.pipeline",
    headline=_headline,
    comparison_metrics=("passages",),
)
