"""The table of tasks, a row each, and the table of their kinds.

A task of a known kind is one row: which files it comes in, and what it is scored by. A new kind is a file in `model/tasks/kinds/` with a
subclass of `model.tasks.task.Task`, a class of options, and a row of `KINDS`. This module imports no torch: the command line reads it at
every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from model.tasks.options import (
    ChoiceOptions,
    RegressionOptions,
    RetrievalOptions,
    SpanOptions,
    TaggingOptions,
    TaskOptions,
    TextOptions,
)
from model.tasks.together_options import TOGETHER, TogetherOptions
from pipeline.core.config import parse_config
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from model.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task.

    Attributes:
        build: where its class is, which takes (name, options, metrics).
        options: what may be said about its files and its answers.
        max_length: the most pieces of a sequence where the user says nothing, as its class has it; for estimates.
    """

    build: str
    options: type[TaskOptions]
    max_length: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task.

    Attributes:
        kind: in `KINDS`.
        metrics: what it is scored by, the task's score first; empty: the kind's own.
        options: its files, as its kind's options say it.
    """

    kind: str
    metrics: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


KINDS: dict[str, Kind] = {
    "classification": Kind("model.tasks.kinds.classification:Classification", TextOptions),
    "regression": Kind("model.tasks.kinds.regression:Regression", RegressionOptions),
    "choice": Kind("model.tasks.kinds.choice:Choice", ChoiceOptions),
    "package": Kind("model.tasks.kinds.package:Package", TaskOptions),
    "retrieval": Kind("model.tasks.kinds.retrieval:Retrieval", RetrievalOptions, max_length=256),
    "together": Kind("model.tasks.kinds.together:Together", TogetherOptions),
    "tagging": Kind("model.tasks.kinds.tagging:Tagging", TaggingOptions),
    "spans": Kind("model.tasks.kinds.spans.kind:Spans", SpanOptions, max_length=384),
}

_PAIR = {"text": "sentence1", "pair": "sentence2", "label": "label"}
_INDEXED = {"test": {"columns": {"id": "index"}}}  # of GLUE's test files, whose predictions are handed in by this column

TASKS: dict[str, Row] = {
    # of GLUE (Wang et al. 2019, table 1), in the files of its archive
    "sst2": Row(
        kind="classification",
        metrics=("accuracy",),
        options={
            "folder": "SST-2",
            "columns": {"text": "sentence", "label": "label"},
            "labels": ("0", "1"),
            "splits": _INDEXED,
        },
    ),
    "cola": Row(
        kind="classification",
        metrics=("matthews", "accuracy"),
        options={
            "folder": "CoLA",
            "header": False,
            "columns": {"text": 3, "label": 1},
            "labels": ("0", "1"),
            "splits": {"test": {"header": True, "columns": {"text": "sentence", "label": "label", "id": "index"}}},
        },
    ),
    "mrpc": Row(
        kind="classification",
        metrics=("f1", "accuracy"),
        options={
            "folder": "MRPC",
            "columns": {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
            "files": {"test": ("test.tsv", "msr_paraphrase_test.txt")},
            "format": "tsv",
            "labels": ("0", "1"),
            "splits": _INDEXED,
        },
    ),
    "qqp": Row(
        kind="classification",
        metrics=("f1", "accuracy"),
        options={
            "folder": "QQP",
            "columns": {"text": "question1", "pair": "question2", "label": "is_duplicate"},
            "labels": ("0", "1"),
            "irregular": "drop",  # train.tsv holds a few questions that are broken over two lines
            "empty": "keep",  # and a few that are empty
            "splits": {"test": {"columns": {"id": "id"}}},
        },
    ),
    "mnli": Row(
        kind="classification",
        metrics=("accuracy", "matthews"),  # the second one is that of the diagnostic set
        options={
            "folder": "MNLI",
            "columns": {**_PAIR, "label": "gold_label"},
            "labels": ("entailment", "neutral", "contradiction"),
            "unlabelled": ("-",),  # of the corpus' own files: the annotators did not agree
            "empty": "keep",
            "files": {
                "dev": ("dev_matched.tsv",),
                "test": ("test_matched.tsv",),
                "ax": ("diagnostic.tsv", "AX.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX/diagnostic.tsv"),
                "ax_full": ("diagnostic-full.tsv", "diagnostic/diagnostic-full.tsv", "AX/diagnostic-full.tsv"),
            },
            "splits": {
                **dict.fromkeys(("test", "test_matched", "test_mismatched", "ax"), _INDEXED["test"]),
                "ax_full": {"columns": {"text": "Premise", "pair": "Hypothesis", "label": "Label"}},
            },
        },
    ),
    "qnli": Row(
        kind="classification",
        metrics=("accuracy",),
        options={
            "folder": "QNLI",
            "columns": {"text": "question", "pair": "sentence", "label": "label"},
            "labels": ("entailment", "not_entailment"),
            "splits": _INDEXED,
        },
    ),
    "rte": Row(
        kind="classification",
        metrics=("accuracy",),
        options={
            "folder": "RTE",
            "columns": _PAIR,
            "labels": ("entailment", "not_entailment"),
            "splits": _INDEXED,
        },
    ),
    "wnli": Row(
        kind="classification",
        metrics=("accuracy",),
        options={"folder": "WNLI", "columns": _PAIR, "labels": ("0", "1"), "splits": _INDEXED},
    ),
    "stsb": Row(
        kind="regression",
        metrics=("pearson", "spearman"),
        options={
            "folder": "STS-B",
            "columns": {**_PAIR, "label": "score"},
            "lowest": 0.0,
            "highest": 5.0,
            "splits": _INDEXED,
        },
    ),
    # citation intent (Cohan et al. 2019), in JSON lines as SciBERT's repository has them
    "scicite": Row(
        kind="classification",
        metrics=("macro_f1", "accuracy"),
        options={
            "folder": "scicite",
            "columns": {"text": "text", "label": "label"},
            "format": "jsonl",
            "files": {split: (f"{split}.txt", f"{split}.jsonl") for split in ("train", "dev", "test")},
            "labels": ("background", "method", "result"),
        },
    ),
    # endings to choose among
    "swag": Row(  # Zellers et al. 2018
        kind="choice",
        options={
            "folder": "swag",
            "columns": {"context": "sent1", "start": "sent2", "label": "label"},
            "endings": ("ending0", "ending1", "ending2", "ending3"),
            "files": {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)},
        },
    ),
    "codah": Row(  # Chen et al. 2019, who cross-validate: one file, five folds
        kind="choice",
        options={
            "folder": "codah",
            "header": False,
            "columns": {"context": 1, "label": 6},
            "endings": (2, 3, 4, 5),
            "files": dict.fromkeys(("train", "dev"), ("full_data.tsv", "data/full_data.tsv")),
            "folds": 5,
        },
    ),
    "race": Row(  # Lai et al. 2017
        kind="choice",
        options={
            "folder": "RACE",
            "layout": "race",
            "labels": ("A", "B", "C", "D"),
            "truncate": "context",
            "files": {
                f"{split}{part}": (f"{split}/{part[1:]}" if part else split,)
                for split in ("train", "dev", "test")
                for part in ("", "_middle", "_high")
            },
        },
    ),
    # named entities, in columns
    "conll2003": Row(  # Tjong Kim Sang and De Meulder 2003
        kind="tagging",
        options={
            "folder": "conll2003",
            "files": {
                "train": ("eng.train", "train.txt"),
                "dev": ("eng.testa", "valid.txt", "dev.txt"),
                "test": ("eng.testb", "test.txt"),
            },
        },
    ),
    "wnut17": Row(  # Derczynski et al. 2017
        kind="tagging",
        options={
            "folder": "wnut17",
            "files": {
                "train": "wnut17train.conll",
                "dev": "emerging.dev.conll",
                "test": ("emerging.test.annotated", "emerging.test.conll", "emerging.test"),
            },
        },
    ),
    # SQuAD (Rajpurkar et al. 2016, 2018)
    "squad": Row(
        kind="spans",
        options={
            "folder": "squad",
            "files": {
                "train": ("train-v1.1.json", "train.json"),
                "dev": ("dev-v1.1.json", "dev.json"),
                "test": ("test-v1.1.json", "test.json"),
            },
        },
    ),
    "squad2": Row(
        kind="spans",
        options={
            "folder": "squad",
            "files": {
                "train": ("train-v2.0.json", "train.json"),
                "dev": ("dev-v2.0.json", "dev.json"),
                "test": ("test-v2.0.json", "test.json"),
            },
            "unanswerable": True,
        },
    ),
    # made from a corpus
    "package": Row(kind="package"),
    "title-retrieval": Row(kind="retrieval", options={"pairs": "titles"}),
    # the passage of a question, among all of SQuAD's (Rajpurkar et al. 2016)
    "squad-retrieval": Row(
        kind="retrieval",
        options={"pairs": "squad", "files": {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}},
    ),
    # several of the others at once
    TOGETHER: Row(kind="together"),
    # files of your own
    "classification": Row(kind="classification", metrics=("accuracy", "macro_f1")),
    "regression": Row(kind="regression"),
    "choice": Row(kind="choice"),
    "tagging": Row(kind="tagging"),
    "retrieval": Row(kind="retrieval"),
}


def task_options(name: str, given: Mapping[str, Any], where: str = "options") -> TaskOptions:
    """What is said of a task: by its row, and by the user on top.

    Raises:
        UsageError: there is no such task, or no such option.
    """
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; {did_you_mean(name, TASKS)}")
    row = TASKS[name]
    return parse_config(KINDS[row.kind].options, merge_options(row.options, given), where)


def merge_options(below: Mapping[str, Any] | None, above: Mapping[str, Any]) -> dict[str, Any]:
    """The options of both; of tables in them, such as `columns`, the entries of both."""
    merged = dict(below or {})
    for key, value in above.items():
        there = merged.get(key)
        merged[key] = {**there, **value} if isinstance(there, Mapping) and isinstance(value, Mapping) else value
    return merged


def load_task(name: str, given: Mapping[str, Any] | None = None) -> Task[Any, Any]:
    """The task of that name.

    Args:
        given: options that are not as its row says.

    Raises:
        UsageError: there is no such task, or no such option; the nearest name is told.
    """
    options = task_options(name, given or {})
    found: Task[Any, Any] = load(KINDS[TASKS[name].kind].build)(name, options, TASKS[name].metrics)
    return found
