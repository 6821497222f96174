"""Stage inspect: a dataset or one of its shards in, a row as readable text out; writes no files."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult

VERSION = 1


class InspectConfig(StageConfig):
    """The row, and its mask copy."""

    row: int = Field(default=0, ge=0)
    """Number of the row in its split, from 0."""

    copy_number: int = Field(default=0, ge=0)
    """Number of the mask copy, from 0."""

    split: str = "train"
    """Split of the row: train or heldout."""


def run(config: InspectConfig, build: BuildContext) -> StageResult:
    """Read the row; the summary is a `RowView` as JSON, with the `texts` of the tokens."""
    from cloze.pipeline.dataset.row_view import read_row

    view = read_row(
        build.inputs["dataset"], config.row, split=config.split, copy=config.copy_number
    )
    return StageResult(summary={**view.as_json(), "texts": list(view.texts)})


STAGE = Stage(
    name="inspect",
    version=VERSION,
    config=InspectConfig,
    run=run,
    inputs={"dataset": InputSpec(required=True)},
    worker="cloze.pipeline",
)
