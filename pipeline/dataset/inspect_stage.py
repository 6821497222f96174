"""Stage inspect: a dataset, or one of its shards, and a row's number in; that row as a person reads it out. It writes no files."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.config import StageConfig
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


class InspectConfig(StageConfig):
    """Which row, and under which of its masks."""

    row: int = Field(default=0, ge=0)
    """The row's number in its split."""

    copy_number: int = Field(default=0, ge=0)
    """The number of the mask copy."""

    split: str = "train"
    """The split: train or heldout."""


def run(config: InspectConfig, build: Build) -> Outcome:
    """Read the row; the summary is a `pipeline.dataset.row_view.RowView` as JSON, and the `texts` of its pieces."""
    from pipeline.dataset.row_view import read_row

    view = read_row(build.inputs["dataset"], config.row, split=config.split, copy=config.copy_number)
    return Outcome(summary={**view.as_json(), "texts": list(view.texts)})


STAGE = Stage(
    name="inspect", version=VERSION, config=InspectConfig, run=run, inputs={"dataset": Input(required=True)}, worker="pipeline"
)
