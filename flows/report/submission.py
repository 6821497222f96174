"""GLUE submission: the official files, and a table with the results of the BERT paper.

Files, header and label names: Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform
for Natural Language Understanding", and the sample submission of gluebenchmark.com: TSV with the
header `index`, `prediction`, and a file for each row of `FILES`.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.config import NoFingerprint, StageConfig
from cloze.core.errors import DataError
from cloze.core.stages.execution import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    Execution,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
)
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.flows.report.report_nodes import (
    BASELINES,
    NodePlacement,
    ReportNode,
    SummaryTable,
    scores_of,
)

ENTAILMENT = ("entailment", "not_entailment")
THREE_WAYS = ("entailment", "neutral", "contradiction")
BINARY = ("0", "1")


@dataclass(frozen=True, slots=True)
class SubmissionFile:
    """A file of a submission.

    Attributes:
        task: name in the table of tasks.
        splits: possible names of the split with the predictions.
        labels: allowed predictions; None: numbers.
        rows: number of rows in GLUE's test file.
    """

    task: str
    splits: tuple[str, ...]
    labels: tuple[str, ...] | None
    rows: int


FILES: dict[str, SubmissionFile] = {
    "CoLA.tsv": SubmissionFile("cola", ("test",), BINARY, 1063),
    "SST-2.tsv": SubmissionFile("sst2", ("test",), BINARY, 1821),
    "MRPC.tsv": SubmissionFile("mrpc", ("test",), BINARY, 1725),
    "STS-B.tsv": SubmissionFile("stsb", ("test",), None, 1379),
    "QQP.tsv": SubmissionFile("qqp", ("test",), BINARY, 390_965),
    "MNLI-m.tsv": SubmissionFile("mnli", ("test", "test_matched"), THREE_WAYS, 9796),
    "MNLI-mm.tsv": SubmissionFile("mnli", ("test_mismatched",), THREE_WAYS, 9847),
    "QNLI.tsv": SubmissionFile("qnli", ("test",), ENTAILMENT, 5463),
    "RTE.tsv": SubmissionFile("rte", ("test",), ENTAILMENT, 3000),
    "WNLI.tsv": SubmissionFile("wnli", ("test",), BINARY, 146),
    "AX.tsv": SubmissionFile("mnli", ("ax",), THREE_WAYS, 1104),
}
TASKS = tuple(dict.fromkeys(file.task for file in FILES.values()))

# Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language
# Understanding": hundredths of (base, large). Test: table 1, scored by GLUE's server (F1 for QQP
# and MRPC, Spearman's correlation for STS-B, accuracy for the others except CoLA). Without WNLI.
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
# Dev: table 6, rows 12-768-12 and 24-1024-16, means of five restarts. QNLI: table 5, base only.
DEV: Mapping[tuple[str, str], tuple[float, float | None]] = {
    ("mnli", "accuracy"): (84.4, 86.6),
    ("mrpc", "accuracy"): (86.7, 87.8),
    ("sst2", "accuracy"): (92.9, 93.7),
    ("qnli", "accuracy"): (88.4, None),
}
CITED = (
    "BERT: Devlin et al. 2019, test: table 1 (GLUE's server); dev: table 6 (accuracy, means of "
    "five restarts), QNLI: table 5."
)


# Table of GLUE scores on dev, and the choice of the submitted models.

MISMATCHED = "dev_mismatched"


def tuned(nodes: Iterable[ReportNode], task: str) -> list[ReportNode]:
    """Return the fine-tunings on a task."""
    return [
        node
        for node in nodes
        if node.stage == "finetune" and node.manifest.summary.get("task") == task
    ]


def score(node: ReportNode) -> float:
    """Return the first metric on dev, by which models of a task are compared."""
    return next(iter(node.scores.values()))


def best_submission(
    nodes: Sequence[ReportNode], file: SubmissionFile
) -> tuple[ReportNode, ReportNode] | None:
    """Return the best model on dev with predictions for the file's split, and their evaluation.

    None: no model has predictions for it.
    """
    models = {node.name: node for node in tuned(nodes, file.task)}
    candidates = []
    for node in nodes:
        model = models.get(node.placement.inputs.get("checkpoint", "").partition("/")[0])
        if (
            node.stage == "evaluate"
            and model is not None
            and model.scores
            and node.manifest.summary.get("split") in file.splits
        ):
            candidates.append((model, node))
    return max(candidates, key=lambda pair: score(pair[0]), default=None)


def glue_table(nodes: Sequence[ReportNode], least: int = 2) -> SummaryTable | None:
    """Return the GLUE scores in hundredths; None: the run has fewer than `least` GLUE tasks."""
    present = [task for task in TASKS if tuned(nodes, task)]
    if len(present) < least:
        return None
    rows: list[Sequence[str]] = []
    for task in present:
        rows += _rows(task, tuned(nodes, task))
        mismatched = [
            node
            for node in nodes
            if node.stage == "evaluate"
            and node.manifest.summary.get("task") == task
            and node.manifest.summary.get("split") == MISMATCHED
        ]
        rows += _rows(f"{task}, mismatched", mismatched)
    absent = [task for task in TASKS if task not in present]
    notes = [f"Not in this run: {', '.join(absent)}."] if absent else []
    return SummaryTable(
        title="GLUE, dev",
        columns="task,metric,mean,best,node,base dev,base test,large dev,large test".split(","),
        rows=rows,
        notes=(*notes, CITED),
    )


def _rows(name: str, nodes: Sequence[ReportNode]) -> list[Sequence[str]]:
    """Return a row per metric; `name` is the task as in `TEST` and `DEV`."""
    rows: list[Sequence[str]] = []
    for metric, metric_score in scores_of(nodes).items():
        if metric in BASELINES:
            continue
        dev, test = DEV.get((name, metric), (None, None)), TEST.get((name, metric), (None, None))
        spread = "" if metric_score.std is None else f" ± {100 * metric_score.std:.1f}"
        mean = f"{100 * metric_score.mean:.1f}{spread} (n {metric_score.n})"
        published = dev[0], test[0], dev[1], test[1]
        paper = ("" if value is None else f"{value:.1f}" for value in published)
        best, node = f"{100 * metric_score.best:.1f}", metric_score.best_node.partition("@")[2]
        rows.append((name, metric, mean, best, node, *paper))
    return rows


def missing_files(nodes: Sequence[ReportNode]) -> dict[str, str]:
    """Return the submission files that this run has no predictions for, with the reason."""
    reasons = {}
    for name, file in FILES.items():
        if best_submission(nodes, file) is None:
            models = tuned(nodes, file.task)
            reasons[name] = (
                f"no {file.splits[0]} file of {file.task}: dev only"
                if models
                else f"task {file.task} is not in this run"
            )
    return reasons


# Stage `submission`: `submission.zip` for gluebenchmark.com, and the table of scores.

VERSION = 1
ZIP, TABLE = "submission.zip", "table.md"
STAMP = (1980, 1, 1, 0, 0, 0)  # date of all files: equal predictions give equal bytes
SERVER = (
    "gluebenchmark.com refuses an archive in which one of its {all} files is missing. Take the "
    "missing ones ({names}) from its sample"
    " submission (sample_submission.zip), and leave their scores out of what you report."
)


class SubmissionConfig(StageConfig):
    """Options of the stage `submission`."""

    nodes: NoFingerprint[dict[str, NodePlacement]] = Field(default_factory=dict, exclude=True)
    """Position of each gathered node in the graph, filled in by the run."""


def run(config: SubmissionConfig, build: BuildContext) -> StageResult:
    """Write the archive and the table from the artifacts among `build.inputs`.

    The summary's `files` name the model of each file; `missing` has the reason for each missing
    file.

    Raises:
        DataError: GLUE does not allow a prediction.
    """
    nodes = [
        ReportNode(
            name=name,
            path=path,
            manifest=artifact.read_manifest(path),
            placement=config.nodes.get(name) or NodePlacement(section=name),
        )
        for name, path in build.inputs.items()
    ]
    files, notes = dict[str, dict[str, Any]](), list[str]()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zip_file:
        for name, file in FILES.items():
            best = best_submission(nodes, file)
            if best is None:
                continue
            model, evaluation = best
            lines = _lines(evaluation, file)
            zip_file.writestr(
                zipfile.ZipInfo(name, STAMP), "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED
            )
            files[name] = {"node": model.name, "rows": len(lines) - 1}
            if len(lines) - 1 != file.rows:
                notes.append(
                    f"{name} has {len(lines) - 1:,} rows, GLUE's has {file.rows:,}: the server "
                    f"will refuse it."
                )
    missing = missing_files(nodes)
    if missing:
        notes.append(SERVER.format(all=len(FILES), names=", ".join(missing)))
    if files:
        storage.write_bytes(build.file(ZIP), archive.getvalue())
    table, tables = glue_table(nodes, least=1), list[dict[str, Any]]()
    if table is not None:
        dev_only = [
            f"{name}: {reason}."
            for name, reason in missing.items()
            if tuned(nodes, FILES[name].task)
        ]
        tables = [{**table.as_json(), "notes": [*table.notes, *dev_only, *notes]}]
    items = [f"- {name}: {entry['node']}" for name, entry in files.items()]
    items += [f"- {name}: {reason}." for name, reason in missing.items()]
    text = "" if table is None else table.markdown()
    text += "\n".join(["", "## submission.zip", "", *items, ""])
    text += "".join(f"\n{note}\n" for note in notes)
    storage.write_bytes(build.file(TABLE), text.encode())
    summary: dict[str, Any] = {"files": files, "missing": missing, "table": TABLE, "tables": tables}
    return StageResult(
        rows=sum(entry["rows"] for entry in files.values()),
        summary=summary | ({"submission": ZIP} if files else {}),
    )


def _lines(node: ReportNode, file: SubmissionFile) -> list[str]:
    """Return the file's lines, the header first."""
    path = storage.join(node.path, str(node.manifest.summary["predictions"]))
    lines = ["index\tprediction"]
    rows = csv.DictReader(
        io.StringIO(storage.read_text(path), newline=""), delimiter="\t", quoting=csv.QUOTE_NONE
    )
    for number, row in enumerate(rows, start=2):
        prediction = row.get("prediction")
        if prediction is None or not _fits(prediction, file):
            allowed = "a number" if file.labels is None else ", ".join(file.labels)
            raise DataError(
                f"{path}, line {number}: prediction {prediction!r} is none that GLUE knows of "
                f"{file.task} ({allowed})"
            )
        lines.append(f"{row.get('index', number - 2)}\t{prediction}")
    return lines


def _fits(prediction: str, file: SubmissionFile) -> bool:
    if file.labels is not None:
        return prediction in file.labels
    try:
        return abs(float(prediction)) < float("inf")
    except ValueError:
        return False


def headline(summary: Mapping[str, Any]) -> str:
    """Return the number of files in the submission."""
    count = len(summary["files"])
    return (
        f"{count} of {len(FILES)} files of a GLUE submission"
        if count
        else "no test files: dev only"
    )


def _ahead(
    config: SubmissionConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate the cost of reading and packing the files."""
    del config, execution, computer, before
    return CostEstimate(
        work=0.0,
        speed=1.0,
        startup_seconds=0.5 + 0.02 * len(inputs),
        disk_bytes=1 << 23,
        memory_bytes=PROCESS_BYTES,
    )


def _afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Return None: the cost is not measured."""
    del facts
    return None


STAGE = Stage(
    name="submission",
    version=VERSION,
    config=SubmissionConfig,
    run=run,
    reads_all_nodes=True,
    outputs=("submission", "table"),
    headline=headline,
    cost_model=CostModel(estimate=_ahead, measure=_afterwards),
)
