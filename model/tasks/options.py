"""Options of tasks about files and answers, one class per task kind. No torch.

The task table sets them for its tasks; users change them with `--set options.KEY=VALUE`. They are
stored in the fine-tuned checkpoint, so that evaluations read and decode in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from cloze.core.config import InputPath, StageConfig
from cloze.core.options import known
from cloze.core.plugins import Table

TEMPERATURE = 0.05  # of similarities of texts, if a task does not say (SimCSE)


def _several(value: object) -> object:
    """Convert a single name to a tuple."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_several)]
Columns = Annotated[tuple[str | int, ...], BeforeValidator(_several)]
# Tables, which `open_table` reads, and files of one task: a function from path to records.
_OFFICIAL = ("trees", "multirc")
FORMATS: Table[Any] = Table(
    "task_formats",
    "format of a task's files",
    {
        **dict.fromkeys(("tsv", "csv", "jsonl", "parquet", "arrow")),
        **{name: f"cloze.model.tasks.formats.official:{name}" for name in _OFFICIAL},
    },
    ("format", "suffixes"),
)
Format = Annotated[str, known(FORMATS, "there is no such format")]
FrozenLayers = Literal[
    "embeddings",
    "second-to-last",
    "last",
    "sum-last-four",
    "concat-last-four",
    "sum-all",
    "sum-with-embeddings",  # Peters et al. 2018, equation 1
]


class TaskOptions(StageConfig):
    """Options of all kinds."""

    folder: str = ""
    """Directory of the task in its archive, such as CoLA in GLUE; `data` may be this directory or
    its parent."""

    files: dict[str, Names] = Field(default_factory=dict)
    """File names of each split, in order of preference. A file with the name of the split needs no
    entry."""

    def as_table(self) -> TableOptions | None:
        """Return the options of the tables whose first rows a plan checks; None: there are none."""
        return None


class SplitOptions(StageConfig):
    """Column options of one split that differ from the others."""

    columns: dict[str, str | int] = Field(default_factory=dict)
    """Columns of this split by role, where they differ from the table's."""

    header: bool | None = None
    """Header setting of this split, if it differs from the table's."""

    where: dict[str, str] | None = None
    """Row filter of this split, if it differs from the table's; {}: all rows."""


class TableOptions(TaskOptions):
    """Options of examples in tables: TSV, CSV, JSON lines, Parquet, Arrow."""

    label_is_class: ClassVar[bool] = True

    columns: dict[str, str | int] = Field(default_factory=dict)
    """Column of each role (text, pair, label, id …): its name, its number from 0 in a file without
    a header, or a template of names, such as `{question} {answer}`."""

    header: bool = True
    """First line of a TSV or CSV file has the column names."""

    format: Format | Literal[""] = ""
    """Format of the files. Empty: by the file name's extension."""

    suffixes: dict[str, Format] = Field(default_factory=dict)
    """Formats of further extensions, such as {.txt: tsv}."""

    where: dict[str, str] = Field(default_factory=dict)
    """Rows to read: the value of each of these columns, such as {language: de}."""

    values: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Replacements of values by role, such as {label: {contradictory: contradiction}}."""

    delimiter: str = ""
    """Column delimiter. Empty: a tab in TSV, a comma in CSV."""

    splits: dict[str, SplitOptions] = Field(default_factory=dict)
    """Splits with columns of their own, such as GLUE's test files."""

    irregular: Literal["refuse", "drop"] = "refuse"
    """Lines whose number of columns differs from the header's: refuse (error) or drop (counted)."""

    empty: Literal["refuse", "keep"] = "refuse"
    """Examples with an empty text: refuse (error) or keep."""

    unlabelled: Names = ()
    """Labels that mark an unlabelled example, such as `-` in MNLI; such examples are dropped and
    counted."""

    folds: int = Field(default=0, ge=0)
    """Number of folds into which one file is split for cross-validation. 0: the files are the
    splits."""

    fold: int = Field(default=0, ge=0)
    """Fold that is the dev split, from 0; the others are the train split."""

    @model_validator(mode="after")
    def _a_fold_of_them(self) -> Self:
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise ValueError(
                f"fold ({self.fold}) must be below folds ({self.folds}), and folds 2 or more, or 0 "
                f"for none"
            )
        return self

    def as_table(self) -> TableOptions | None:
        return self if getattr(self, "layout", "table") == "table" else None


class SentenceOptions(TableOptions):
    """Options of tasks on texts or pairs of texts."""

    pair_features: bool = False
    """Classify pairs by the mean states of both texts, their difference and their product
    (InferSent). Hugging Face has no class for such checkpoints."""


class TextOptions(SentenceOptions):
    """Options of classification: texts or pairs of texts with labels."""

    labels: tuple[str, ...] = ()
    """All labels as written in the files. Empty: those of the train split in alphabetical order."""


class MultiLabelOptions(TextOptions):
    """Options of multi-label classification: texts or pairs of texts with any number of labels."""

    label_columns: Columns = ()
    """Columns of 0 and 1, one per label. Empty: the label column has lists of labels."""

    threshold: float = Field(default=0.5, gt=0, lt=1)
    """Probability above which a label is predicted."""


class RegressionOptions(SentenceOptions):
    """Options of regression: texts or pairs of texts with scores."""

    lowest: float | None = None
    """Lowest valid score; a file with a lower one is refused."""

    highest: float | None = None
    """Highest valid score; a file with a higher one is refused."""


class ChoiceOptions(TableOptions):
    """Options of multiple choice: contexts with several endings, one of which is right."""

    endings: Columns = ("endings",)
    """Columns of the endings, or one column with lists of endings."""

    labels: tuple[str, ...] = ()
    """Labels of the right endings in the file, such as A, B, C, D. Empty: numbers from 0."""

    truncate: Literal["longest", "context"] = "longest"
    """Text to truncate: the longer one of context and ending (SWAG), or always the context
    (RACE)."""

    layout: Literal["table", "race", "wsc"] = "table"
    """Layout of the data: a table with an example per row, RACE's directory of passages and
    questions, or SuperGLUE's WSC, a candidate per row."""


class TaggingOptions(TaskOptions):
    """Options of tagging: files with one word per line and blank lines between sentences."""

    columns: dict[str, int | str | None] = Field(default_factory=dict)
    """Column of each role (word, tag): its number from 0, or the name of a column of lists.
    Default: word 0, tag -1 (the last); tokens and ner_tags. A tag of null: the file has no tags."""

    scheme: Literal["entities", "plain", "joined"] = "entities"
    """Meaning of the tags: entities (BIO, IOB1, BIOES, …, recognized by the tags), plain labels of
    words, or joined: plain labels, of which equal neighbours are one entity."""

    context: Literal["sentence", "document"] = "sentence"
    """Words of a window: the sentence, or also those around it in the document, as many as fit
    (BERT, section 5.3)."""


class SpanOptions(TaskOptions):
    """Options of question answering; defaults are those of google-research/bert, `run_squad.py`."""

    irregular: Literal["refuse", "drop"] = "refuse"
    """Answers that are not in their passage near their answer_start: refuse (error) or drop. The
    train split drops them, as run_squad.py does; questions without another answer are counted."""

    unanswerable: bool = False
    """Allow questions without an answer, as in SQuAD 2.0; otherwise they are dropped."""

    stride: int = Field(default=128, ge=1)
    """Tokens between the starts of two windows of a long passage."""

    question_length: int = Field(default=64, ge=1)
    """Maximum tokens of a question; longer ones are truncated."""

    answer_length: int = Field(default=30, ge=1)
    """Maximum tokens of a predicted answer."""

    n_best: int = Field(default=20, ge=1)
    """Number of answers kept per question."""

    null_threshold: float | None = None
    """Logit difference above which a question has no answer. Default: the best value on the dev
    split."""


# Row of the task table.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Task.

    Attributes:
        kind: name in `cloze.model.tasks.table.KINDS`.
        metrics: metrics, the task's score first; empty: the kind's.
        options: options for its files.
    """

    kind: str
    metrics: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


# Multi-task training.

MULTITASK = "multitask"  # task that combines others


class SubTask(StageConfig):
    """Options of one task in multi-task training."""

    task: str | None = None
    """Registered task. Default: the name of the part."""

    data: InputPath | None = None
    """Directory with the task's files. Default: that of all parts."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from the registered ones."""

    weight: float = Field(default=1.0, gt=0)
    """Weight of the task's loss."""


class MultiTaskOptions(TaskOptions):
    """Options of multi-task training."""

    tasks: dict[str, SubTask] = Field(default_factory=dict)
    """Tasks that share the encoder, by name."""
