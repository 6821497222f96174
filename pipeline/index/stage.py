"""The stage index: the passages of a corpus, searchable by words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.humanize import format_count
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.pipeline.index.config import NAME, VERSION, IndexConfig


def _run(config: IndexConfig, build: BuildContext) -> StageResult:
    """Index every shard.

    Raises:
        DataError: the corpus or the index to append to is missing or damaged.
    """
    from cloze.pipeline.index.build import run

    return run(config, build)


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
    run=_run,
    inputs={
        "corpus": InputSpec(kinds=("corpus", "semdedup"), required=True),
        "append": InputSpec(kinds=("index",), explicit_only=True),
    },
    worker="cloze.pipeline",
    headline=_headline,
    comparison_metrics=("passages",),
)
