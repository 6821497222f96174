"""The table of tasks and the table of task kinds. No torch: the command line imports it.

A task of a known kind is one row: its files and metrics; `cloze.model.tasks.text_tasks` has the
rows of tasks on texts. A new kind is a module in `model/tasks/kinds/` with a subclass of
`cloze.model.tasks.task.Task`, an options class, and a row of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

from cloze.core.config import parse_config
from cloze.core.options import known
from cloze.core.plugins import Table
from cloze.core.stages.stage import InputSpec
from cloze.model.tasks.options import (
    MULTITASK,
    ChoiceOptions,
    MultiLabelOptions,
    MultiTaskOptions,
    RegressionOptions,
    SpanOptions,
    TaggingOptions,
    TaskOptions,
    TaskSpec,
    TextOptions,
)
from cloze.model.tasks.text_tasks import SPLITS, TEXT_TASKS, row, superglue

if TYPE_CHECKING:
    from cloze.model.tasks.task import Task


@dataclass(frozen=True, slots=True)
class TaskKind:
    """Task kind.

    Attributes:
        build: location of its class, which takes (name, options, metrics).
        options: class of its options.
        max_length: default maximum tokens of a sequence; see `max_length`.
        classes: its examples have one class each, which can be limited and weighted.
        combines: its tasks have files of their own, and can be among those of `multitask`.
        inputs: further inputs of the stage finetune that its tasks read (`Task.open`).
    """

    build: str
    options: type[TaskOptions]
    max_length: int = 128
    classes: bool = False
    combines: bool = True
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)


_KINDS = {
    "classification": TaskKind(
        "cloze.model.tasks.kinds.texts:Classification", TextOptions, classes=True
    ),
    "multilabel": TaskKind("cloze.model.tasks.kinds.multilabel:MultiLabel", MultiLabelOptions),
    "answers": TaskKind("cloze.model.tasks.kinds.answers:Answers", TextOptions, classes=True),
    "regression": TaskKind("cloze.model.tasks.kinds.texts:Regression", RegressionOptions),
    "choice": TaskKind("cloze.model.tasks.kinds.choice:Choice", ChoiceOptions),
    "multitask": TaskKind(
        "cloze.model.tasks.kinds.multitask:MultiTask", MultiTaskOptions, combines=False
    ),
    "tagging": TaskKind("cloze.model.tasks.kinds.tagging:Tagging", TaggingOptions),
    "spans": TaskKind("cloze.model.tasks.kinds.spans:Spans", SpanOptions, max_length=384),
}
KINDS: Table[TaskKind] = Table("task_kinds", "task kind", _KINDS)


def kind_inputs() -> dict[str, InputSpec]:
    """Return the inputs that only some kinds read."""
    return {role: spec for kind in KINDS.loaded().values() for role, spec in kind.inputs.items()}


def _words(folder: str, metrics: str = "", **options: Any) -> TaskSpec:
    """Return a tagging task in column files as SciBERT's and BioBERT's repositories have them."""
    files = {
        "train": ("train.txt", "train.tsv", "train.conll2003"),
        "dev": ("dev.txt", "devel.tsv", "dev.conll2003"),
        "test": ("test.txt", "test.tsv"),
    }
    return row("tagging", folder, metrics, **{"files": files} | options)


def _mrqa(*names: str) -> TaskSpec:
    """Return a task in MRQA's directories train and dev; names of the server, then its scripts."""
    files = {split: tuple(f"{split}/{name}.jsonl.gz" for name in names) for split in SPLITS[:2]}
    return row("spans", "mrqa", files=files)


def _squad(version: str, **options: Any) -> TaskSpec:
    """Return a task in SQuAD's files (Rajpurkar et al. 2016, 2018)."""
    files = {split: (f"{split}-{version}.json", f"{split}.json") for split in SPLITS}
    return row("spans", "squad", files=files, **options)


def _conll2003(columns: str = "", **options: Any) -> TaskSpec:
    """Return a task in CoNLL-2003's files (Sang and De Meulder 2003)."""
    files = {
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt", "dev.txt"),
        "test": ("eng.testb", "test.txt"),
    }
    return row("tagging", "conll2003", "", columns, files=files, **options)


_TASKS = {
    **TEXT_TASKS,
    # multiple choice
    "swag": row(  # Zellers et al. 2018
        "choice", "swag", "", "context=sent1, start=sent2, label=label",
        endings=("ending0", "ending1", "ending2", "ending3"),
        files={"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)},
    ),
    "codah": row(  # Chen et al. 2019, who cross-validate: one file, five folds
        "choice", "codah", "", "context=1, label=6", header=False, endings=(2, 3, 4, 5), folds=5,
        files=dict.fromkeys(("train", "dev"), ("full_data.tsv", "data/full_data.tsv")),
    ),
    "race": row(  # Lai et al. 2017
        "choice", "RACE", layout="race", labels=("A", "B", "C", "D"), truncate="context",
        files={
            f"{split}{part}": (f"{split}/{part[1:]}" if part else split,)
            for split in SPLITS for part in ("", "_middle", "_high")
        },
    ),
    "copa": superglue(  # "The premise" [SEP] "because an alternative"
        "choice", "COPA", "accuracy", "context=premise, start=question, label=label, id=idx",
        endings=("choice1", "choice2"), values={"start": {"cause": "because", "effect": "so"}},
    ),
    "arct": row(  # Habernal et al. 2018: "The claim" [SEP] "the reason a warrant"
        "choice", "arct", "", "context=claim, start=reason, label=correctLabelW0orW1, id=#id",
        format="tsv", endings=("warrant0", "warrant1"),
        files={split: (f"{split}.tsv", f"{split}-full.txt") for split in SPLITS},
    ),
    # Winograd schemas as choices, as RoBERTa reads WNLI (Liu et al. 2019, 5.1; fairseq's
    # examples/roberta/wsc): cross-entropy over candidates. Here a linear layer scores the text with
    # a candidate in place of the pronoun, instead of the language model; candidates are those of
    # the file, instead of all noun phrases.
    "wsc": superglue("choice", "WSC", "", "", layout="wsc"),
    # named entities
    "conll2003": _conll2003(),
    "wnut17": row(  # Derczynski et al. 2017
        "tagging", "wnut17",
        files={
            "train": "wnut17train.conll",
            "dev": "emerging.dev.conll",
            "test": ("emerging.test.annotated", "emerging.test.conll", "emerging.test"),
        },
    ),
    "bc5cdr": _words("ner/bc5cdr"),  # Li et al. 2016, chemicals and diseases alike (SciBERT)
    "bc5cdr-chem": _words("BC5CDR-chem"),  # BLURB's, as the next two
    "bc5cdr-disease": _words("BC5CDR-disease"),
    "bc2gm": _words("BC2GM"),  # Smith et al. 2008
    "ncbi-disease": _words("ner/NCBI-disease"),  # Dogan et al. 2014
    "jnlpba": _words(  # Collier and Kim 2004
        "ner/JNLPBA",
        files={
            "train": ("train.txt", "train.tsv", "Genia4ERtask1.iob2"),
            "dev": ("dev.txt", "devel.tsv"),
            "test": ("test.txt", "test.tsv", "Genia4EReval1.iob2"),
        },
    ),
    # other labels of words: PICO elements, scored by word (Nye et al. 2018), parts of speech, and
    # chunks
    "ebm-pico": _words("pico/ebmnlp", "macro_f1, accuracy", scheme="plain"),
    "conll2003-pos": _conll2003("tag=1", scheme="plain"),
    "conll2003-chunk": _conll2003("tag=2"),
    "ud-pos": row(  # Universal Dependencies (Nivre et al. 2020); other treebanks by `files`
        "tagging", "UD_English-EWT", "", "word=1, tag=3", scheme="plain",
        files={split: (f"en_ewt-ud-{split}.conllu", f"{split}.conllu") for split in SPLITS},
    ),
    # MRQA (Fisch et al. 2019), such as BERT's TriviaQA before SQuAD
    "triviaqa": _mrqa("TriviaQA-web", "TriviaQA"),
    "newsqa": _mrqa("NewsQA"),
    "searchqa": _mrqa("SearchQA"),
    "hotpotqa": _mrqa("HotpotQA"),
    "naturalqa": _mrqa("NaturalQuestionsShort", "NaturalQuestions"),
    "squad": _squad("v1.1"),
    "squad2": _squad("v2.0", unanswerable=True),
    # multi-task training, and user files
    MULTITASK: row(MULTITASK),
    "classification": row("classification", "", "accuracy, macro_f1"),
    **{kind: row(kind) for kind in ("multilabel", "regression", "choice", "tagging")},
}  # fmt: skip
TASKS: Table[TaskSpec] = Table("tasks", "task", _TASKS, ("task", "test_on", "tasks"))
# Functions from the splits train and dev to sentences that are told before a training.
_CHECKS = {"repeats": "cloze.model.tasks.notes:repeats"}
CHECKS: Table[Any] = Table("split_checks", "check of splits", _CHECKS)
TaskName = Annotated[str, known(TASKS, "no such task")]


def task_options(name: str, given: Mapping[str, Any], where: str = "options") -> TaskOptions:
    """Return the options of a task: those of `given`, else those of its row.

    Raises:
        UsageError: the task or an option is unknown.
    """
    row = TASKS.find(name)
    return parse_config(KINDS[row.kind].options, merge_options(row.options, given), where)


def max_length(name: str, options: TaskOptions) -> int:
    """Return the default maximum tokens of a sequence, for cost estimates."""
    is_race = isinstance(options, ChoiceOptions) and options.layout == "race"
    return 512 if is_race else KINDS[TASKS[name].kind].max_length


def merge_options(below: Mapping[str, Any] | None, above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options; mappings such as `columns` are merged by entry."""
    merged = {**(below or {}), **above}
    for key, value in (below or {}).items():
        if isinstance(value, Mapping) and isinstance(merged[key], Mapping):
            merged[key] = {**value, **merged[key]}
    return merged


def load_task(name: str, given: Mapping[str, Any] | None = None) -> Task[Any, Any]:
    """Return the task with this name.

    Args:
        given: options that override those of its row.

    Raises:
        UsageError: the task or an option is unknown; the message suggests the nearest name.
    """
    options, row = task_options(name, given or {}), TASKS[name]
    task: Task[Any, Any] = resolve_name(KINDS[row.kind].build)(name, options, row.metrics)
    return task
