"""Config of a paper's table: its rows, columns and published figures."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from cloze.core.errors import did_you_mean

ModelSize = dict[Literal["parameters", "tokens"], PositiveFloat]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableRow(_Spec):
    """A row: a system of the paper, of the run, or of both."""

    label: str = ""
    """Name in the paper. Default: the row's key."""

    nodes: dict[str, Any] = Field(default_factory=dict)
    """Nodes of the row: matrix values, `section`, `stage`, `split`, each with a value or a list of
    them. Default: {row: KEY}, where the row of a node without that axis is its section's label."""

    published: dict[str, float] = Field(default_factory=dict)
    """Figures of the paper by column."""

    seen: ModelSize = Field(default_factory=dict)
    """Where they differ from the table's: `parameters` and `tokens` of the paper's model."""


class TableColumn(_Spec):
    """A column: a task, or another measure of a row."""

    label: str = ""
    """Name in the paper. Default: the column's key."""

    nodes: dict[str, Any] = Field(default_factory=dict)
    """Nodes of the column, as for a row. Default: {task: KEY}. Without section and stage: the
    evaluations if the row or column has a split, or else the fine-tunings, scored on dev."""

    metric: str = ""
    """Metric, or of a pretraining a number of its summary. Default: the task's main metric."""

    mean_of: tuple[str, ...] = ()
    """Columns whose mean this column is, for rows that have all of them; none that is a mean
    itself. A repeated name weighs as often."""

    digits: int = Field(default=1, ge=0)
    """Decimal places."""


class TableFigure(_Spec):
    """A figure of one column: a dot for each seed, and each row's mean."""

    y: str
    """Column."""

    x: str = "row"
    """row, or a number in the summaries of the pretrainings such as training_flops, summed over a
    row's phases. Rows without the number are left out."""


class PaperTable(_Spec):
    """A table of a paper."""

    source: str
    """Paper and number of the table, such as "Devlin et al. 2019, table 5"."""

    rows: dict[str, TableRow]
    columns: dict[str, TableColumn]

    reference: str = ""
    """Row that the others are compared with, by seed; empty: no table of differences."""

    seen: ModelSize = Field(default_factory=dict)
    """Size of the paper's models: `parameters`, and `tokens` read in pretraining."""

    differs: tuple[str, ...] = ()
    """What differs from the paper at every size, a sentence each."""

    figure: TableFigure | None = None
    """Figure below the tables."""

    @model_validator(mode="after")
    def _names_exist(self) -> PaperTable:
        parts = [part for column in self.columns.values() for part in column.mean_of]
        named = [*parts, *(name for row in self.rows.values() for name in row.published)]
        named += [] if self.figure is None else [self.figure.y]
        if unknown := [name for name in named if name not in self.columns]:
            raise ValueError(
                f"{unknown[0]!r} is no column; {did_you_mean(unknown[0], self.columns)}"
            )
        if means := [part for part in parts if self.columns[part].mean_of]:
            raise ValueError(
                f"mean_of has {means[0]!r}, which is a mean itself; name the columns of that mean"
            )
        if self.reference and self.reference not in self.rows:
            raise ValueError(
                f"reference ({self.reference!r}) is no row; "
                f"{did_you_mean(self.reference, self.rows)}"
            )
        return self
