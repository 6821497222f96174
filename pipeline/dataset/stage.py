"""Stage "dataset": a corpus and a tokenizer in, shards of masked examples out.

Beam first cuts every corpus shard into rows. Then it distributes the rows over shards by a hash,
equal to within one row, and draws their masks (`build.py`). With the input `append`, a finished
dataset, existing shards are linked, and new shards contain the new documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.humanize import format_count
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.pipeline.dataset.config import COSTS, DatasetConfig
from cloze.pipeline.dataset.masking.registry import rule_marks

VERSION = 4  # 4: drawings of pairs; sentences longer than a row are cut
FEW_ROWS = 1000  # four of BERT's batches; fewer rows cause a warning


def run(config: DatasetConfig, build: BuildContext) -> StageResult:
    """Build the shards.

    Raises:
        UsageError: another version of the stage made the dataset to append to.
        DataError: an input is missing or damaged, or there is no new training text.
        ClozeError: the disk cannot hold the shards.
    """
    from cloze.pipeline.dataset.build import build_dataset

    return build_dataset(config, build, VERSION)


def headline(summary: Mapping[str, Any]) -> str:
    """Summarise rows, tokens read and shards, with the warnings."""
    text = (
        f"{summary['rows']:,} rows, {format_count(summary['tokens'])} tokens read, "
        f"{summary['shards']} shards"
    )
    messages = list(summary.get("warnings", []))
    if summary["rows"] < FEW_ROWS:
        messages.append(
            f"only {summary['rows']:,} rows to train on: see what the corpus dropped, or give it "
            f"more text"
        )
    return "".join([text, *(f"; warning: {message}" for message in messages)])


STAGE = Stage(
    name="dataset",
    version=VERSION,
    config=DatasetConfig,
    run=run,
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "vocab": InputSpec(kinds=("vocab",), required=True),
        "append": InputSpec(kinds=("dataset",), explicit_only=True),
        **{
            marks.role: InputSpec(kinds=(marks.role,), explicit_only=True, help=marks.help)
            for marks in rule_marks()
        },
    },
    worker="cloze.pipeline",
    headline=headline,
    cost_model=COSTS,
    comparison_metrics=("rows", "tokens", "padding_share"),
)


# The stage "inspect": a row of a dataset or of a shard as readable text; it writes no files.


class InspectConfig(StageConfig):
    """The row, and its mask copy."""

    row: int = Field(default=0, ge=0)
    """Number of the row in its split, from 0."""

    copy_number: int = Field(default=0, ge=0)
    """Number of the mask copy, from 0."""

    split: str = "train"
    """Split of the row: train or heldout."""


def inspect(config: InspectConfig, build: BuildContext) -> StageResult:
    """Read the row; the summary is a `RowView` as JSON, with the `texts` of the tokens."""
    from cloze.pipeline.dataset.row_view import read_row

    view = read_row(
        build.inputs["dataset"], config.row, split=config.split, copy=config.copy_number
    )
    return StageResult(summary={**view.as_json(), "texts": list(view.texts)})


INSPECT = Stage(
    name="inspect",
    version=1,
    config=InspectConfig,
    run=inspect,
    inputs={"dataset": InputSpec(required=True)},
    worker="cloze.pipeline",
)
