"""GLUE as it is handed in and told: the official files, and the figures of the paper that tables stand beside.

Files, header and label names: Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding",
and the sample submission of gluebenchmark.com: TSV with the header `index`, `prediction`, and a file for each row of `FILES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENTAILMENT = ("entailment", "not_entailment")
THREE_WAYS = ("entailment", "neutral", "contradiction")
BINARY = ("0", "1")


@dataclass(frozen=True, slots=True)
class File:
    """A file of a submission.

    Attributes:
        task: of our table of tasks.
        splits: whose predictions it holds: the names that the split may have.
        labels: what a prediction may be; None: a number.
        rows: of GLUE's own test file.
    """

    task: str
    splits: tuple[str, ...]
    labels: tuple[str, ...] | None
    rows: int


FILES: dict[str, File] = {
    "CoLA.tsv": File("cola", ("test",), BINARY, 1063),
    "SST-2.tsv": File("sst2", ("test",), BINARY, 1821),
    "MRPC.tsv": File("mrpc", ("test",), BINARY, 1725),
    "STS-B.tsv": File("stsb", ("test",), None, 1379),
    "QQP.tsv": File("qqp", ("test",), BINARY, 390_965),
    "MNLI-m.tsv": File("mnli", ("test", "test_matched"), THREE_WAYS, 9796),
    "MNLI-mm.tsv": File("mnli", ("test_mismatched",), THREE_WAYS, 9847),
    "QNLI.tsv": File("qnli", ("test",), ENTAILMENT, 5463),
    "RTE.tsv": File("rte", ("test",), ENTAILMENT, 3000),
    "WNLI.tsv": File("wnli", ("test",), BINARY, 146),
    "AX.tsv": File("mnli", ("ax",), THREE_WAYS, 1104),
}
TASKS = tuple(dict.fromkeys(file.task for file in FILES.values()))

# Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding": hundredths of (base, large).
# Test: table 1, scored by GLUE's server (F1 for QQP and MRPC, Spearman's correlation for STS-B, accuracy for the others but CoLA). WNLI is not
# in it.
TEST: Mapping[tuple[str, str], tuple[float, float]] = {
    ("cola", "matthews"): (52.1, 60.5),
    ("sst2", "accuracy"): (93.5, 94.9),
    ("mrpc", "f1"): (88.9, 89.3),
    ("stsb", "spearman"): (85.8, 86.5),
    ("qqp", "f1"): (71.2, 72.1),
    ("mnli", "accuracy"): (84.6, 86.7),
    ("mnli, mismatched", "accuracy"): (83.4, 85.9),
    ("qnli", "accuracy"): (90.5, 92.7),
    ("rte", "accuracy"): (66.4, 70.1),
}
# Dev: table 6, rows 12-768-12 and 24-1024-16, means of five restarts; QNLI of base from table 5, which has no large one.
DEV: Mapping[tuple[str, str], tuple[float, float | None]] = {
    ("mnli", "accuracy"): (84.4, 86.6),
    ("mrpc", "accuracy"): (86.7, 87.8),
    ("sst2", "accuracy"): (92.9, 93.7),
    ("qnli", "accuracy"): (88.4, None),
}
CITED = (
    "BERT: Devlin et al. 2019, test: table 1 (GLUE's server); dev: table 6 (accuracy, means of five restarts), QNLI: table 5."
)
