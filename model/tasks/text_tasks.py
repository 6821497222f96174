"""Rows of tasks on texts: labels, numbers and relations. No torch.

The rows of `cloze.model.tasks.table.TASKS` with official files that are tables or JSON lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.model.tasks.options import TaskSpec

SPLITS = ("train", "dev", "test")
SUPERGLUE = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
_BINARY, _TRUTH = ("0", "1"), ("false", "true")
_ENTAILED = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_TEXT, _NAMED = "text=text, label=label", "text=text, pair=pair, label=label, id=id"
_PAIR = "text=sentence1, pair=sentence2, label=label"
_GOLD = "text=sentence1, pair=sentence2, label=gold_label"
# Id column of GLUE's test files, needed for submissions.
_INDEXED: Mapping[str, Any] = {"columns": {"id": "index"}}


def row(
    kind: str, folder: str = "", metrics: str = "", columns: str = "", **options: Any
) -> TaskSpec:
    """Return a task; metrics and columns, such as `text=sentence, label=1`, have commas between."""
    given: dict[str, Any] = {**({"folder": folder} if folder else {}), **options}
    if columns:
        given["columns"] = columns_of(columns)
    names = tuple(metrics.split(", ")) if metrics else ()
    return TaskSpec(kind=kind, metrics=names, options=given)


def columns_of(text: str) -> dict[str, str | int]:
    """Return columns by role: names, or numbers in files without a header."""
    pairs = (item.split("=", 1) for item in text.split(", "))
    return {role: int(name) if name.isdigit() else name for role, name in pairs}


def _glue(
    folder: str, metrics: str, columns: str, kind: str = "classification", **options: Any
) -> TaskSpec:
    """Return a task in GLUE's files."""
    return row(kind, f"glue/{folder}", metrics, columns, **{"splits": {"test": _INDEXED}} | options)


def superglue(kind: str, folder: str, metrics: str, columns: str, **options: Any) -> TaskSpec:
    """Return a task in SuperGLUE's JSON lines."""
    return row(kind, f"superglue/{folder}", metrics, columns, files=SUPERGLUE, **options)


def _babylm(
    name: str, columns: str, metrics: str = "accuracy", labels: tuple[str, ...] = _BINARY
) -> TaskSpec:
    """Return a task in the files of BabyLM's evaluation; columns may be its templates."""
    files = {"train": f"{name}.train.jsonl", "dev": f"{name}.valid.jsonl"}
    columns += ", label=label"
    return row("classification", "glue_filtered", metrics, columns, files=files, labels=labels,
               empty="keep")  # fmt: skip


def _trees(values: Mapping[str, str], **options: Any) -> TaskSpec:
    """Return a task in the Stanford Sentiment Treebank (Socher et al. 2013), of whole sentences.

    `--set 'options={splits: {train: {where: {}}}}'` also trains on its phrases.
    """
    files = {split: f"{split}.txt" for split in SPLITS}
    return row("classification", "trees", "accuracy", format="trees", files=files,
               where={"root": "true"}, values={"label": values}, **options)  # fmt: skip


def _sick(kind: str, metrics: str, label: str, **options: Any) -> TaskSpec:
    """Return a task in SICK (Marelli et al. 2014), which has all splits in one file."""
    names = dict(zip(SPLITS, ("TRAIN", "TRIAL", "TEST"), strict=True))
    columns = f"text=sentence_A, pair=sentence_B, label={label}, id=pair_ID"
    splits = {split: {"where": {"SemEval_set": name}} for split, name in names.items()}
    files = dict.fromkeys(SPLITS, "SICK.txt")
    return row(kind, "SICK", metrics, columns, format="tsv", files=files, splits=splits, **options)


def _scibert(kind: str, folder: str, metrics: str, **options: Any) -> TaskSpec:
    """Return a task in the files of SciBERT's repository: JSON lines that are called .txt."""
    files = {split: (f"{split}.txt", f"{split}.jsonl") for split in SPLITS}
    return row(kind, folder, metrics, _TEXT, format="jsonl", files=files, **options)


_MNLI_FULL = ("diagnostic-full.tsv", "diagnostic/diagnostic-full.tsv", "AX/diagnostic-full.tsv")
_MNLI_AX = ("diagnostic.tsv", "AX.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv",
            "AX/diagnostic.tsv")  # fmt: skip
_XNLI_TRAIN = ("multinli.train.en.tsv", "multinli/multinli.train.en.tsv",
               "XNLI-MT-1.0/multinli/multinli.train.en.tsv")  # fmt: skip

TEXT_TASKS: dict[str, TaskSpec] = {
    # GLUE (Wang et al. 2019, table 1), in the files of its archive
    "sst2": _glue("SST-2", "accuracy", "text=sentence, label=label", labels=_BINARY),
    "cola": _glue(
        "CoLA", "matthews, accuracy", "text=3, label=1", labels=_BINARY, header=False,
        splits={"test": {"header": True,
                         "columns": columns_of("text=sentence, label=label, id=index")}},
    ),
    "mrpc": _glue(
        "MRPC", "f1, accuracy", "text=#1 String, pair=#2 String, label=Quality", labels=_BINARY,
        files={"test": ("test.tsv", "msr_paraphrase_test.txt")}, format="tsv",
    ),
    "qqp": _glue(
        "QQP", "f1, accuracy", "text=question1, pair=question2, label=is_duplicate", labels=_BINARY,
        irregular="drop",  # train.tsv has some questions that are broken over two lines
        empty="keep",  # some questions are empty
        splits={"test": {"columns": {"id": "id"}}},
    ),
    "mnli": _glue(
        "MNLI",
        "accuracy, matthews",  # the second one is that of the diagnostic set
        _GOLD, labels=_NLI, empty="keep",
        unlabelled=("-",),  # in the corpus' own files: the annotators disagree
        files={"dev": ("dev_matched.tsv",), "test": ("test_matched.tsv",), "ax": _MNLI_AX,
               "ax_full": _MNLI_FULL},
        splits={
            **dict.fromkeys(("test", "test_matched", "test_mismatched", "ax"), _INDEXED),
            "ax_full": {"columns": columns_of("text=Premise, pair=Hypothesis, label=Label")},
        },
    ),
    "qnli": _glue("QNLI", "accuracy", "text=question, pair=sentence, label=label",
                  labels=_ENTAILED),
    "rte": _glue("RTE", "accuracy", _PAIR, labels=_ENTAILED),
    # Adversarial: a premise's pairs in dev have the opposite labels of those in train, so accuracy
    # below the majority's is this trap and no bug. RoBERTa reads WSC instead.
    "wnli": _glue("WNLI", "accuracy", _PAIR, labels=_BINARY),
    "stsb": _glue(
        "STS-B", "pearson, spearman", "text=sentence1, pair=sentence2, label=score",
        "regression", lowest=0.0, highest=5.0,
    ),
    # natural language inference and similarity
    "snli": row(  # Bowman et al. 2015
        "classification", "snli_1.0", "accuracy", _GOLD, labels=_NLI, unlabelled=("-",),
        files={split: (f"snli_1.0_{split}.jsonl", f"snli_1.0_{split}.txt") for split in SPLITS},
        suffixes={".txt": "tsv"}, empty="keep",
    ),
    "xnli": row(  # Conneau et al. 2018; options.where.language: that of dev and test
        "classification", "XNLI", "accuracy", _GOLD, labels=_NLI, empty="keep",
        files={
            "train": _XNLI_TRAIN,
            "dev": ("xnli.dev.tsv", "XNLI-1.0/xnli.dev.tsv"),
            "test": ("xnli.test.tsv", "XNLI-1.0/xnli.test.tsv"),
        },
        splits={"train": {"where": {},
                          "columns": columns_of("text=premise, pair=hypo, label=label")}},
        where={"language": "en"}, values={"label": {"contradictory": "contradiction"}},
    ),
    "sick-e": _sick("classification", "accuracy", "entailment_label",
                    labels=tuple(map(str.upper, _NLI))),
    "sick-r": _sick("regression", "pearson, spearman", "relatedness_score",
                    lowest=1.0, highest=5.0),
    # sentiment, from trees
    "sst5": _trees({}, labels=("0", "1", "2", "3", "4")),
    "sst2-trees": _trees({"1": "0", "3": "1", "4": "1"}, labels=_BINARY, unlabelled=("2",)),
    # SuperGLUE (Wang et al. 2019)
    "boolq": superglue("classification", "BoolQ", "accuracy",
                       "text=question, pair=passage, label=label, id=idx", labels=_TRUTH),
    "cb": superglue("classification", "CB", "macro_f1, accuracy",
                    "text=premise, pair=hypothesis, label=label, id=idx", labels=_NLI),
    "multirc": superglue("answers", "MultiRC", "", _NAMED, labels=_BINARY, format="multirc"),
    # BabyLM (babylm-org/babylm-eval): pairs of texts, and at most 10,000 of MNLI and QQP
    "babylm-boolq": _babylm("boolq", "text=question, pair=passage"),
    "babylm-mnli": _babylm("mnli", "text=premise, pair=hypothesis", labels=("0", "1", "2")),
    "babylm-mrpc": _babylm("mrpc", "text=sentence1, pair=sentence2", "f1, accuracy"),
    "babylm-multirc": _babylm(
        "multirc", "text=Question: {question} Answer: {answer}, pair=paragraph"
    ),
    "babylm-qqp": _babylm("qqp", "text=question1, pair=question2", "f1, accuracy"),
    "babylm-rte": _babylm("rte", "text=sentence1, pair=sentence2"),
    "babylm-wsc": _babylm(
        "wsc", 'text=Does "{span2_text}" refer to "{span1_text}" in this passage?, pair=text'
    ),
    # citation intent (Cohan et al. 2019; Jurgens et al. 2018)
    "scicite": _scibert("classification", "scicite", "macro_f1, accuracy",
                        labels=("background", "method", "result")),
    # in the files of SciCite's repository
    "acl-arc": row("classification", "acl-arc", "macro_f1, accuracy", "text=text, label=intent"),
}  # fmt: skip

_SEMEVAL_RELATIONS = (
    *("Cause-Effect", "Component-Whole", "Content-Container", "Entity-Destination"),
    *("Entity-Origin", "Instrument-Agency", "Member-Collection", "Message-Topic"),
    "Product-Producer",
)
_BRACKETS = ("<<", ">>", "[[", "]]")
RELATION_TASKS: dict[str, TaskSpec] = {
    "semeval2010": row(  # task 8 (Hendrickx et al. 2010), without a dev split: a tenth
        "relation", "SemEval2010_task8_all_data", "directed_f1, accuracy",
        "text=text, label=label, id=id", format="semeval2010", folds=10,
        files={
            **dict.fromkeys(("train", "dev"), ("TRAIN_FILE.TXT",
                                               "SemEval2010_task8_training/TRAIN_FILE.TXT")),
            "test": ("TEST_FILE_FULL.TXT", "SemEval2010_task8_testing_keys/TEST_FILE_FULL.TXT",
                     "TEST_FILE.txt", "SemEval2010_task8_testing/TEST_FILE.txt"),
        },
        labels=("Other", *(f"{relation}({way})" for relation in _SEMEVAL_RELATIONS
                           for way in ("e1,e2", "e2,e1"))),
    ),
    "tacred": row(  # Zhang et al. 2017
        "relation", "tacred", "", "text=text, label=label, id=id", format="tacred",
        files={split: (f"{split}.json", f"data/json/{split}.json") for split in SPLITS},
        negative="no_relation",
    ),
    # Kringelum et al. 2016; Luan et al. 2018. Micro F1 of ChemProt is its accuracy.
    "chemprot": _scibert("relation", "text_classification/chemprot", "accuracy, macro_f1",
                         delimiters=_BRACKETS),
    "scierc": _scibert("relation", "text_classification/sciie-relation-extraction",
                       "macro_f1, accuracy", delimiters=_BRACKETS),
    # SuperGLUE: the same word in two sentences
    "wic": superglue("relation", "WiC", "accuracy", _NAMED, labels=_TRUTH, format="wic"),
}  # fmt: skip
