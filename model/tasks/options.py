"""What may be said about a task's files and about reading its answers: a class a kind of task. No torch.

A row of the table of tasks fills them for its files; a user changes them with `--set options.KEY=VALUE`, or says all of them for files of his
own. They go into the fine-tuned checkpoint, so that an evaluation reads and decodes alike.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipeline.core.config import StageConfig


def _several(value: object) -> object:
    """A name alone is the only one."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_several)]
Columns = Annotated[tuple[str | int, ...], BeforeValidator(_several)]
FrozenLayers = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"]


class Frozen(StageConfig):
    """How features of a frozen encoder are read, as a checkpoint's meaning has it under `frozen`."""

    layers: FrozenLayers
    """Which of the encoder's states: the rows of BERT's table 7 (Devlin et al. 2019)."""

    lstm_size: int = Field(ge=1)
    """The BiLSTM's width in each direction."""

    lstm_layers: int = Field(ge=1)
    """Its layers."""


class TaskOptions(StageConfig):
    """What all kinds understand."""

    folder: str = ""
    """The task's directory in its archive, such as GLUE's `CoLA`: data may be that directory or the one above it."""

    files: dict[str, Names] = Field(default_factory=dict)
    """By split: the names that its file may have; the first one that is there is read. A split's own name needs no entry."""


class OneSplit(StageConfig):
    """What of a table's columns is otherwise in one split than in the others."""

    columns: dict[str, str | int] = Field(default_factory=dict)
    """By role, over the table's own."""

    header: bool | None = None
    """As the table's own, where it is otherwise."""


class TableOptions(TaskOptions):
    """Of examples in a table: TSV, CSV, JSON lines, Parquet, Arrow."""

    columns: dict[str, str | int] = Field(default_factory=dict)
    """By role (text, pair, label, id …): the column's name, or its number from 0 where the file has no header."""

    header: bool = True
    """Whether the first line of a TSV or CSV file names its columns."""

    format: Literal["", "tsv", "csv", "jsonl", "parquet", "arrow"] = ""
    """Of the files; empty: as their names end."""

    delimiter: str = ""
    """Between the columns; empty: a tab in TSV, a comma in CSV."""

    splits: dict[str, OneSplit] = Field(default_factory=dict)
    """Splits whose columns are not those of the others, such as GLUE's test files."""

    irregular: Literal["refuse", "drop"] = "refuse"
    """A line with another number of columns than the header: an error, or left out and counted."""

    empty: Literal["refuse", "keep"] = "refuse"
    """An example with an empty text: an error, or one like the others."""

    unlabelled: Names = ()
    """Labels that say there is none, such as MNLI's `-`: such examples are left out and counted."""

    folds: int = Field(default=0, ge=0)
    """Parts that one file is cut into, for cross-validation: dev is one of them, train all others; 0: the files are the splits."""

    fold: int = Field(default=0, ge=0)
    """Which of the parts is dev, from 0."""

    @model_validator(mode="after")
    def _a_fold_of_them(self) -> Self:
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise ValueError(f"fold ({self.fold}) must be below folds ({self.folds}), and folds 2 or more, or 0 for none")
        return self


class SentenceOptions(TableOptions):
    """Of texts, or pairs of texts, of which one thing is asked."""

    pair_features: bool = False
    """Of pairs: classify by the mean states of both texts, how far these differ and their product (Conneau et al. 2017, InferSent), not by
    the pooled state. What a small encoder cannot yet compare by itself, this does for it; such a checkpoint has no class at Hugging Face."""


class TextOptions(SentenceOptions):
    """Of texts, or pairs of texts, with a label each."""

    labels: tuple[str, ...] = ()
    """All labels as they stand in the files; empty: those of the train split, in the order of the alphabet."""


class RetrievalOptions(TaskOptions):
    """Of pairs of a query and the passage that answers it, and of how they are compared."""

    pairs: Literal["rows", "squad", "titles"] = "rows"
    """What they are made from: rows of a file; SQuAD's questions and passages; the titles and articles of a corpus."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Of rows, by role (query, passage): the column, where it is called otherwise."""

    limit: int | None = Field(default=None, ge=2)
    """The most pairs of the train split, chosen by hash; by default all."""

    pooling: Literal["mean", "first"] = "mean"
    """What a text's vector is: the mean of its last states, special tokens included; or the first one."""

    normalize: bool = True
    """Make all vectors of length 1, so that they are compared by cosine."""

    temperature: float = Field(default=0.05, gt=0)
    """What products of vectors are divided by (Gao et al. 2021, SimCSE)."""

    group: int = Field(default=32, ge=2)
    """Pairs of a batch that see each other, about: a query is told its passage from the others of its group."""

    symmetric: bool = False
    """Also tell, among the group's queries, the one that a passage answers; the loss is the mean of both."""


class RegressionOptions(SentenceOptions):
    """Of texts, or pairs of texts, with a number each."""

    lowest: float | None = None
    """The least score that there is; a file with a lower one is refused."""

    highest: float | None = None
    """The greatest score that there is."""


class ChoiceOptions(TableOptions):
    """Of a context with several endings, of which one is right."""

    endings: Columns = ("endings",)
    """The columns of the endings; or the one whose values are lists of them."""

    labels: tuple[str, ...] = ()
    """How the file says which ending is right, such as A, B, C, D; empty: by its number from 0."""

    truncate: Literal["longest", "context"] = "longest"
    """What loses pieces: the longer one of context and ending (SWAG), or the context alone (RACE)."""

    layout: Literal["table", "race"] = "table"
    """A table, an example a row; or RACE's directory of passages with their questions."""


class TaggingOptions(TaskOptions):
    """Of words in columns, a line a word, a blank line between sentences."""

    columns: dict[str, int | None] = Field(default_factory=dict)
    """By role (word, tag): the column's number from 0, or from the end where it is negative; by default word 0 and tag -1.
    A tag of null says that the file has no tags."""

    scheme: Literal["auto", "BIO", "IOB1", "BIOES"] = "auto"
    """How tags say where an entity begins: B- always (BIO, also called IOB2), B- only between neighbours of one type (IOB1, as
    in CoNLL-2003's files), with E- at the end and S- alone (BIOES); auto: whichever fits the file."""


class SpanOptions(TaskOptions):
    """Of questions whose answers stand in a passage. The defaults are those of `run_squad.py` in google-research/bert."""

    unanswerable: bool = False
    """Whether a question may have no answer, as in SQuAD 2.0; without it questions that have none are left out."""

    stride: int = Field(default=128, ge=1)
    """How many pieces of a long passage lie between the beginnings of two windows on it."""

    question_length: int = Field(default=64, ge=1)
    """The most pieces of a question; the rest is cut off."""

    answer_length: int = Field(default=30, ge=1)
    """The most pieces of an answer that is given."""

    n_best: int = Field(default=20, ge=1)
    """How many answers are kept a question."""

    null_threshold: float | None = None
    """A question has no answer where the logits say so by more than this; without it what is best on the dev split."""
