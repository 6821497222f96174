"""Rows of tasks on texts: labels, numbers and relations. No torch.

The rows of `cloze.model.tasks.table.TASKS` with official files that are tables or JSON lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloze.model.tasks.options import TaskSpec

# Id column of GLUE's test files, needed for submissions.
_INDEXED: Mapping[str, Any] = {"columns": {"id": "index"}}


def _glue(
    folder: str,
    metrics: tuple[str, ...],
    columns: Sequence[str | int],
    labels: tuple[str, ...] = (),
    kind: str = "classification",
    **options: Any,
) -> TaskSpec:
    """Return a task in GLUE's files; columns: text, then pair unless it is on texts, and label."""
    roles = ("text", "label") if len(columns) == 2 else ("text", "pair", "label")
    options = {
        "folder": f"glue/{folder}",
        "columns": dict(zip(roles, columns, strict=True)),
        **options,
    }
    if labels:
        options["labels"] = labels
    return TaskSpec(kind=kind, metrics=metrics, options={"splits": {"test": _INDEXED}, **options})


_PAIR = ("sentence1", "sentence2", "label")
_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")

_NLI = ("entailment", "neutral", "contradiction")
SUPERGLUE = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}


def superglue(
    kind: str, folder: str, metrics: tuple[str, ...], columns: Mapping[str, str], **options: Any
) -> TaskSpec:
    """Return a task in SuperGLUE's JSON lines."""
    options = {"folder": f"superglue/{folder}", "files": SUPERGLUE, **options}
    return TaskSpec(kind=kind, metrics=metrics, options={**options, "columns": columns})


def _babylm(
    name: str,
    text: str,
    pair: str,
    labels: tuple[str, ...] = _BINARY,
    metrics: tuple[str, ...] = ("accuracy",),
) -> TaskSpec:
    """Return a task in the files of BabyLM's evaluation; `text` and `pair` are its templates."""
    options = {
        "folder": "glue_filtered",
        "files": {"train": f"{name}.train.jsonl", "dev": f"{name}.valid.jsonl"},
        "columns": {"text": text, "pair": pair, "label": "label"},
        "labels": labels,
        "empty": "keep",
    }
    return TaskSpec(kind="classification", metrics=metrics, options=options)


def _trees(values: Mapping[str, str], **options: Any) -> TaskSpec:
    """Return a task in the Stanford Sentiment Treebank (Socher et al. 2013), of whole sentences.

    `--set 'options={splits: {train: {where: {}}}}'` also trains on its phrases.
    """
    options |= {
        "folder": "trees",
        "format": "trees",
        "files": {split: f"{split}.txt" for split in ("train", "dev", "test")},
        "where": {"root": "true"},
        "values": {"label": values},
    }
    return TaskSpec(kind="classification", metrics=("accuracy",), options=options)


def _sick(kind: str, metrics: tuple[str, ...], label: str, **options: Any) -> TaskSpec:
    """Return a task in SICK (Marelli et al. 2014), which has all splits in one file."""
    splits = {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}
    options |= {
        "folder": "SICK",
        "format": "tsv",
        "columns": {"text": "sentence_A", "pair": "sentence_B", "label": label, "id": "pair_ID"},
        "files": dict.fromkeys(splits, "SICK.txt"),
        "splits": {split: {"where": {"SemEval_set": name}} for split, name in splits.items()},
    }
    return TaskSpec(kind=kind, metrics=metrics, options=options)


def _scibert(kind: str, folder: str, metrics: tuple[str, ...], **options: Any) -> TaskSpec:
    """Return a task in the files of SciBERT's repository: JSON lines that are called .txt."""
    options |= {
        "folder": folder,
        "format": "jsonl",
        "columns": {"text": "text", "label": "label"},
        "files": {split: (f"{split}.txt", f"{split}.jsonl") for split in ("train", "dev", "test")},
    }
    return TaskSpec(kind=kind, metrics=metrics, options=options)


TEXT_TASKS: dict[str, TaskSpec] = {
    # GLUE (Wang et al. 2019, table 1), in the files of its archive
    "sst2": _glue("SST-2", ("accuracy",), ("sentence", "label"), _BINARY),
    "cola": _glue(
        "CoLA",
        ("matthews", "accuracy"),
        (3, 1),
        _BINARY,
        header=False,
        splits={
            "test": {
                "header": True,
                "columns": {"text": "sentence", "label": "label", "id": "index"},
            }
        },
    ),
    "mrpc": _glue(
        "MRPC",
        ("f1", "accuracy"),
        ("#1 String", "#2 String", "Quality"),
        _BINARY,
        files={"test": ("test.tsv", "msr_paraphrase_test.txt")},
        format="tsv",
    ),
    "qqp": _glue(
        "QQP",
        ("f1", "accuracy"),
        ("question1", "question2", "is_duplicate"),
        _BINARY,
        irregular="drop",  # train.tsv has some questions that are broken over two lines
        empty="keep",  # some questions are empty
        splits={"test": {"columns": {"id": "id"}}},
    ),
    "mnli": _glue(
        "MNLI",
        ("accuracy", "matthews"),  # the second one is that of the diagnostic set
        ("sentence1", "sentence2", "gold_label"),
        ("entailment", "neutral", "contradiction"),
        unlabelled=("-",),  # in the corpus' own files: the annotators disagree
        empty="keep",
        files={
            "dev": ("dev_matched.tsv",),
            "test": ("test_matched.tsv",),
            "ax": (
                *("diagnostic.tsv", "AX.tsv", "diagnostic/diagnostic.tsv"),
                *("AX/AX.tsv", "AX/diagnostic.tsv"),
            ),
            "ax_full": (
                *("diagnostic-full.tsv", "diagnostic/diagnostic-full.tsv"),
                "AX/diagnostic-full.tsv",
            ),
        },
        splits={
            **dict.fromkeys(("test", "test_matched", "test_mismatched", "ax"), _INDEXED),
            "ax_full": {"columns": {"text": "Premise", "pair": "Hypothesis", "label": "Label"}},
        },
    ),
    "qnli": _glue("QNLI", ("accuracy",), ("question", "sentence", "label"), _ENTAILED),
    "rte": _glue("RTE", ("accuracy",), _PAIR, _ENTAILED),
    # Adversarial: a premise's pairs in dev have the opposite labels of those in train, so accuracy
    # below the majority's is this trap and no bug. RoBERTa reads WSC instead.
    "wnli": _glue("WNLI", ("accuracy",), _PAIR, _BINARY),
    "stsb": _glue(
        "STS-B",
        ("pearson", "spearman"),
        ("sentence1", "sentence2", "score"),
        kind="regression",
        lowest=0.0,
        highest=5.0,
    ),
    # natural language inference and similarity
    "snli": TaskSpec(  # Bowman et al. 2015
        kind="classification",
        metrics=("accuracy",),
        options={
            "folder": "snli_1.0",
            "columns": {"text": "sentence1", "pair": "sentence2", "label": "gold_label"},
            "files": {
                split: (f"snli_1.0_{split}.jsonl", f"snli_1.0_{split}.txt")
                for split in ("train", "dev", "test")
            },
            "suffixes": {".txt": "tsv"},
            "labels": _NLI,
            "unlabelled": ("-",),
            "empty": "keep",
        },
    ),
    "xnli": TaskSpec(  # Conneau et al. 2018; options.where.language: that of dev and test
        kind="classification",
        metrics=("accuracy",),
        options={
            "folder": "XNLI",
            "columns": {"text": "sentence1", "pair": "sentence2", "label": "gold_label"},
            "files": {
                "train": (
                    *("multinli.train.en.tsv", "multinli/multinli.train.en.tsv"),
                    "XNLI-MT-1.0/multinli/multinli.train.en.tsv",
                ),
                "dev": ("xnli.dev.tsv", "XNLI-1.0/xnli.dev.tsv"),
                "test": ("xnli.test.tsv", "XNLI-1.0/xnli.test.tsv"),
            },
            "splits": {
                "train": {
                    "columns": {"text": "premise", "pair": "hypo", "label": "label"},
                    "where": {},
                }
            },
            "where": {"language": "en"},
            "values": {"label": {"contradictory": "contradiction"}},
            "labels": _NLI,
            "empty": "keep",
        },
    ),
    "sick-e": _sick(
        "classification",
        ("accuracy",),
        "entailment_label",
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ),
    "sick-r": _sick(
        "regression", ("pearson", "spearman"), "relatedness_score", lowest=1.0, highest=5.0
    ),
    # sentiment, from trees
    "sst5": _trees({}, labels=("0", "1", "2", "3", "4")),
    "sst2-trees": _trees({"1": "0", "3": "1", "4": "1"}, labels=_BINARY, unlabelled=("2",)),
    # SuperGLUE (Wang et al. 2019)
    "boolq": superglue(
        "classification",
        "BoolQ",
        ("accuracy",),
        {"text": "question", "pair": "passage", "label": "label", "id": "idx"},
        labels=("false", "true"),
    ),
    "cb": superglue(
        "classification",
        "CB",
        ("macro_f1", "accuracy"),
        {"text": "premise", "pair": "hypothesis", "label": "label", "id": "idx"},
        labels=_NLI,
    ),
    "multirc": superglue(
        "answers",
        "MultiRC",
        (),
        {"text": "text", "pair": "pair", "label": "label", "id": "id"},
        labels=_BINARY,
        format="multirc",
    ),
    # BabyLM (babylm-org/babylm-eval): pairs of texts, and at most 10,000 of MNLI and QQP
    "babylm-boolq": _babylm("boolq", "question", "passage"),
    "babylm-mnli": _babylm("mnli", "premise", "hypothesis", ("0", "1", "2")),
    "babylm-mrpc": _babylm("mrpc", "sentence1", "sentence2", metrics=("f1", "accuracy")),
    "babylm-multirc": _babylm("multirc", "Question: {question} Answer: {answer}", "paragraph"),
    "babylm-qqp": _babylm("qqp", "question1", "question2", metrics=("f1", "accuracy")),
    "babylm-rte": _babylm("rte", "sentence1", "sentence2"),
    "babylm-wsc": _babylm(
        "wsc", 'Does "{span2_text}" refer to "{span1_text}" in this passage?', "text"
    ),
    # citation intent (Cohan et al. 2019; Jurgens et al. 2018)
    "scicite": _scibert(
        "classification",
        "scicite",
        ("macro_f1", "accuracy"),
        labels=("background", "method", "result"),
    ),
    "acl-arc": TaskSpec(  # in the files of SciCite's repository
        kind="classification",
        metrics=("macro_f1", "accuracy"),
        options={"folder": "acl-arc", "columns": {"text": "text", "label": "intent"}},
    ),
}

RELATION_TASKS: dict[str, TaskSpec] = {
    "semeval2010": TaskSpec(  # task 8 (Hendrickx et al. 2010), without a dev split: a tenth
        kind="relation",
        metrics=("directed_f1", "accuracy"),
        options={
            "folder": "SemEval2010_task8_all_data",
            "format": "semeval2010",
            "columns": {"text": "text", "label": "label", "id": "id"},
            "files": {
                **dict.fromkeys(
                    ("train", "dev"),
                    ("TRAIN_FILE.TXT", "SemEval2010_task8_training/TRAIN_FILE.TXT"),
                ),
                "test": (
                    *("TEST_FILE_FULL.TXT", "SemEval2010_task8_testing_keys/TEST_FILE_FULL.TXT"),
                    *("TEST_FILE.txt", "SemEval2010_task8_testing/TEST_FILE.txt"),
                ),
            },
            "folds": 10,
            "labels": (
                "Other",
                *(
                    f"{relation}({first},{second})"
                    for relation in (
                        *("Cause-Effect", "Component-Whole", "Content-Container"),
                        *("Entity-Destination", "Entity-Origin", "Instrument-Agency"),
                        *("Member-Collection", "Message-Topic", "Product-Producer"),
                    )
                    for first, second in (("e1", "e2"), ("e2", "e1"))
                ),
            ),
        },
    ),
    "tacred": TaskSpec(  # Zhang et al. 2017
        kind="relation",
        options={
            "folder": "tacred",
            "format": "tacred",
            "columns": {"text": "text", "label": "label", "id": "id"},
            "files": {
                split: (f"{split}.json", f"data/json/{split}.json")
                for split in ("train", "dev", "test")
            },
            "negative": "no_relation",
        },
    ),
    # Kringelum et al. 2016; Luan et al. 2018. Micro F1 of ChemProt is its accuracy.
    "chemprot": _scibert(
        "relation", "chemprot", ("accuracy", "macro_f1"), delimiters=("<<", ">>", "[[", "]]")
    ),
    "scierc": _scibert(
        "relation",
        "sciie-relation-extraction",
        ("macro_f1", "accuracy"),
        delimiters=("<<", ">>", "[[", "]]"),
    ),
    # SuperGLUE: the same word in two sentences
    "wic": superglue(
        "relation",
        "WiC",
        ("accuracy",),
        {"text": "text", "pair": "pair", "label": "label", "id": "id"},
        labels=("false", "true"),
        format="wic",
    ),
}
