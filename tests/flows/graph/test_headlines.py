"""The line that a terminal shows of each stage's artifact, word for word, with and without what may
be absent.
"""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.artifacts.artifact import Manifest
from cloze.flows.graph import stages
from cloze.flows.report.report_nodes import FIGURES, SETTINGS

BASE: dict[str, dict[str, Any]] = {
    "corpus": {"documents": 12_345, "bytes": 5_400_000, "dropped": {}},
    "filter": {"documents": {"good": 1200, "bad": 3400}},
    "vectors": {"documents": 1234, "size": 768},
    "semdedup": {"documents": 1234, "bytes": 2_500_000, "dropped": {"near": 1000, "same": 5}},
    "entities": {"spans": 4321, "sentences": 1234},
    "index": {"passages": 123_456, "documents": 9876, "reused": 0, "shards": 4},
    "vocab": {"size": 30_522},
    "extend-vocab": {"size": 30_600, "added": 1234},
    "task-card": {"splits": {"train": {"examples": 1234}, "dev": {"examples": 1}}, "findings": []},
    "latency": {"parameters": 4_400_000, "bytes": 17_600_000, "cells": [], "notes": []},
    "dataset": {"rows": 54_321, "tokens": 6_543_210, "shards": 3},
    "pretrain": {"loss": 2.5, "tokens_per_second": 43_210.0, "rows": 1000, "epochs": 100},
    "merge": {"merged": [1000, 2000]},
    "finetune": {"metrics": {"accuracy": 0.9126, "f1": 0.88}},
    "evaluate": {"metrics": {"accuracy": 0.5}},
    "prune": {"parameters": 4_400_000, "parameters_before": 8_800_000, "zeros": 0, "metrics": {}},
    "perplexity": {"metrics": {"loss": 2.345678, "rows": 4000}},
    "likelihood": {"metrics": {"bits_per_byte": 1.23456}, "texts": 4321},
    "score": {"metrics": {"accuracy": 0.75, "by": "phenomenon"}},
    "heads": {
        "metrics": {"positional_heads": 3, "largest_previous": 0.876, "largest_next": 0.054},
        "heads": 144,
    },
    "probe": {"metrics": {"best_layer": 7, "accuracy": 0.91234, "selectivity": None}},
    "layers": {"metrics": {"similarity_of_last": 0.51234}},
    "static-vectors": {"method": "skip-gram", "words": 12_345, "size": 300},
    "export": {},
    "import": {},
    "report": {},
    "submission": {"files": ["CoLA.tsv", "SST-2.tsv"]},
}
LEFT = ["a.weight", "b.weight", "c.weight", "d.weight", "e.weight", "f.weight"]
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("corpus", {}, "12,345 documents, 5.4MB, 0 dropped"),
    ("corpus", {"dropped": {"too_short": 12_345}}, "12,345 documents, 5.4MB, 12,345 dropped"),
    (
        "corpus",
        {"renamed": 1002},
        "12,345 documents, 5.4MB, 0 dropped; 1,002 have the id of another document, so their ids "
        "end in #2, #3, …: is the column the right one (--column id=NAME)?",
    ),
    (
        "corpus",
        {"encodings": {"cp1252": 3, "koi8_r": 1200}, "passed_over": ["2 files passed over"]},
        "12,345 documents, 5.4MB, 0 dropped; 2 files passed over; texts that are not UTF-8 were "
        "read as koi8_r 1,200, cp1252 3",
    ),
    (
        "corpus",
        {"first_unreadable": "a.txt: bad", "quarantined": {"bad_utf8": 1000, "damaged": 2}},
        "12,345 documents, 5.4MB, 0 dropped; 1,002 could not be read, such as a.txt: bad (all: "
        "unreadable.jsonl)",
    ),
    (
        "corpus",
        {"read_languages": {"de": 900, "unknown": 5000, "fr": 1}},
        "12,345 documents, 5.4MB, 0 dropped; warning: no language is set and the text is in 'de', "
        "so its rules were used; set --language de",
    ),
    (
        "corpus",
        {"read_languages": {"fr": 1000, "de": 2000}},
        "12,345 documents, 5.4MB, 0 dropped; warning: no language is set and the text is in "
        "several (de 2,000, fr 1,000 documents), so each document's own rules were used; set "
        "--language auto",
    ),
    (
        "corpus",
        {"read_languages": {"unknown": 7}},
        "12,345 documents, 5.4MB, 0 dropped; warning: no language is set and none could be told, "
        "so English rules were used; set --language",
    ),
    ("corpus", {"read_languages": {"en": 7}}, "12,345 documents, 5.4MB, 0 dropped"),
    ("filter", {"auc": 0.98765}, "1,200 good and 3,400 bad documents, AUC 0.988 on held-out ones"),
    ("vectors", {}, "1,234 vectors of 768 numbers"),
    ("semdedup", {}, "1,234 documents, 2.5MB, 1,005 dropped"),
    ("entities", {}, "4,321 spans in 1,234 sentences"),
    ("index", {}, "123k passages of 9876 documents"),
    ("index", {"reused": 3}, "123k passages of 9876 documents, 3 of 4 shards reused"),
    ("vocab", {}, "30,522 pieces"),
    ("extend-vocab", {}, "1,234 words added; 30,600 pieces"),
    (
        "extend-vocab",
        {"missing": 2000},
        "1,234 words added, 2,000 fewer than asked for; 30,600 pieces",
    ),
    ("task-card", {}, "1,234 train, 1 dev; nothing odd found"),
    ("task-card", {"findings": ["dev repeats train"]}, "1,234 train, 1 dev; dev repeats train"),
    ("latency", {}, "4.4M parameters, 17.6 MB"),
    (
        "latency",
        {"notes": ["no energy: no counter"]},
        "4.4M parameters, 17.6 MB; no energy: no counter",
    ),
    (
        "vocab",
        {"strip_accents": True, "lowercase": True, "unknown_characters": 0.01234},
        "30,522 pieces, lowercase, accents and vowel signs removed, 1.23 % of characters unknown",
    ),
    (
        "vocab",
        {"strip_accents": False, "lowercase": False, "unknown_characters": 0.0},
        "30,522 pieces, cased, accents kept, 0.00 % of characters unknown",
    ),
    (
        "vocab",
        {"miscased": ["Turkish", "Azerbaijani"]},
        "30,522 pieces, warning: the text is partly in Turkish and Azerbaijani, and lower-casing "
        "makes i of its I, as in English, instead of ı; set vocab.lowercase to false",
    ),
    ("dataset", {}, "54,321 rows, 6.54M tokens read, 3 shards"),
    (
        "dataset",
        {"warnings": ["x is off", "y too"]},
        "54,321 rows, 6.54M tokens read, 3 shards; warning: x is off; warning: y too",
    ),
    ("dataset", {"rows": 1000}, "1,000 rows, 6.54M tokens read, 3 shards"),
    (
        "dataset",
        {"rows": 999},
        "999 rows, 6.54M tokens read, 3 shards; warning: only 999 rows to train on: see what the "
        "corpus dropped, or give it more text",
    ),
    ("pretrain", {}, "loss 2.500, nothing held out; 43.2k tokens/s"),
    ("pretrain", {"loss": None}, "the last steps were skipped, nothing held out; 43.2k tokens/s"),
    ("pretrain", {"heldout_loss": 2.25}, "held-out MLM 2.250 nats; 43.2k tokens/s"),
    (
        "pretrain",
        {"heldout_loss": 2.25, "unigram_entropy": 6.5, "objectives": ["plm", "mlm"]},
        "held-out PLM 2.250 nats, 4.25 below the unigram entropy 6.500; 43.2k tokens/s",
    ),
    (
        "pretrain",
        {"heldout_loss": 6.75, "unigram_entropy": 6.5},
        "held-out MLM 6.750 nats, 0.25 above the unigram entropy 6.500; 43.2k tokens/s",
    ),
    (
        "pretrain",
        {"epochs": 1234.5},
        "loss 2.500, nothing held out; 43.2k tokens/s; warning: its 1,000 rows were read 1,234 "
        "times: give the dataset more text",
    ),
    ("merge", {}, "the mean of steps 1,000, 2,000"),
    ("finetune", {}, "accuracy 0.913, f1 0.880"),
    ("finetune", {"notes": ["a note", "b"]}, "accuracy 0.913, f1 0.880; a note; b"),
    ("evaluate", {"metrics": {}, "notes": ["no answers"]}, "no answers"),
    ("prune", {}, "4.4M of 8.8M parameters"),
    (
        "prune",
        {"zeros": 0.6, "metrics": {"accuracy": 0.5}},
        "4.4M of 8.8M parameters, 60% zeros in layers, accuracy 0.500",
    ),
    ("perplexity", {}, "loss 2.346, rows 4000"),
    ("likelihood", {}, "1.235 bits per byte of 4,321 texts"),
    ("score", {}, "accuracy 0.750"),
    (
        "heads",
        {},
        "3 positional of 144 heads; at most 88% of a head to the previous, 5% to the next token",
    ),
    ("probe", {}, "best layer 7, accuracy 0.9123"),
    ("layers", {"notes": ["few tokens"]}, "similarity of last 0.5123; few tokens"),
    ("static-vectors", {}, "skip-gram: 12,345 vectors of 300 numbers"),
    (
        "static-vectors",
        {"metrics": {"analogies": 0.123}},
        "skip-gram: 12,345 vectors of 300 numbers, 12.3 % of analogies right",
    ),
    ("export", {}, ""),
    (
        "export",
        {"max_logit_difference": 3e-6, "compared": ["span_logits", "classifier_logits"]},
        "logits within 3e-06 of transformers' (classifier, span)",
    ),
    ("export", {"not_compared": "no class"}, "logits not compared: no class"),
    (
        "import",
        {"initialized": ["pooler", "pair"], "left_out": LEFT[:4]},
        "new, with random weights: pooler, pair; left out: a.weight, b.weight, c.weight, d.weight",
    ),
    (
        "import",
        {"left_out": LEFT},
        "left out: a.weight, b.weight, c.weight, d.weight and 2 more",
    ),
    ("report", {}, ""),
    (
        "report",
        {"scores": {"pretrain": {"heldout_loss": {"n": 1, "mean": 2.5}}}},
        "pretrain heldout loss 2.500",
    ),
    (
        "report",
        {
            "scores": {
                "pretrain": {"loss": {"n": 1, "mean": 2.5}},
                "evaluate@rte": {
                    "accuracy": {"n": 1, "mean": 0.5},
                    "f1": {"n": 3, "mean": 0.6125, "best": 0.75, "best_node": "evaluate@rte-2"},
                },
            },
            "groups": {"evaluate@rte": {"score": "f1"}},
        },
        "evaluate@rte f1, best 0.750 by evaluate@rte-2, mean of 3 0.613",
    ),
    ("submission", {}, "2 of 11 files of a GLUE submission"),
    ("submission", {"files": []}, "no test files: dev only"),
]


@pytest.mark.parametrize(("name", "more", "line"), CASES)
def test_the_line_of_an_artifact(name: str, more: dict[str, Any], line: str) -> None:
    assert stages.stage(name).headline({**BASE[name], **more}) == line


def test_many_groups_of_a_report_are_counted() -> None:
    scores = {f"evaluate@{n}": {"f1": {"n": 2, "mean": 0.5}} for n in range(1, 10)}
    line = stages.stage("report").headline({"scores": scores})
    shown = line.count(" f1 0.500")
    assert 0 < shown < 9
    assert line == (
        ", ".join(f"evaluate@{n} f1 0.500" for n in range(1, shown + 1)) + f" and {9 - shown} more"
    )


def test_a_table_of_a_report_takes_its_place() -> None:
    tables: list[dict[str, Any]] = [
        {"title": title, "columns": ["a"], "rows": []} for title in ("A title", "Another")
    ]
    scores = {"finetune": {"f1": {"n": 1, "mean": 0.5}}}
    headline = stages.stage("report").headline
    assert headline({"scores": scores, "tables": tables}) == "2 tables"
    assert headline({"scores": scores, "tables": tables[:1]}) == "A title"
    assert headline({"scores": {"pretrain": scores["finetune"]}, "tables": tables}) == (
        "pretrain f1 0.500"
    )
    columns = ["learning_rate", "epochs", *FIGURES]
    grid = {
        "title": f"{SETTINGS}rte",
        "columns": columns,
        "rows": [
            ["1e-4", "3", "0.7512", "0.01", "0.76", "5"],
            ["1e-5", "3", "0.7", "", "0.7", "1"],
        ],
    }
    line = "rte: best with learning_rate 1e-4, epochs 3, mean 0.7512 of 5"
    assert headline({"scores": scores, "tables": [*tables, grid]}) == line
    assert headline({"scores": scores, "tables": [grid, grid]}) == "2 tables"


def test_every_stage_with_a_line_is_here_and_numbers_agree() -> None:
    with_line = {
        name
        for name in (*stages.TABLE, *stages.TOOLS)
        if stages.stage(name).headline.__module__ != "cloze.core.stages.stage"
    }
    assert with_line == BASE.keys()
    manifest = Manifest(
        version=1, stage="vectors", fingerprint="f", parents={}, config={}, files=(),
        summary={"documents": 1, "size": 4},
    )  # fmt: skip
    assert stages.headline(manifest) == "1 vector of 4 numbers"
