"""GLUE submission: the official files of the models that are best on dev.

Files, header and label names: Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform
for Natural Language Understanding", and the sample submission of gluebenchmark.com: TSV with the
header `index`, `prediction`, and a file for each row of `FILES`.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import DataError
from cloze.core.stages.cost import PROCESS_BYTES, CostEstimate, CostModel, PlannedBuild
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.flows.report.report_nodes import NodePlacement, ReportNode, SummaryTable, read_node

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


def tuned(nodes: Iterable[ReportNode], task: str) -> list[ReportNode]:
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


# Stage `submission`: `submission.zip` for gluebenchmark.com, and what is in it.

VERSION = 2
ZIP = "submission.zip"
STAMP = (1980, 1, 1, 0, 0, 0)  # date of all files: equal predictions give equal bytes
SERVER = (
    "gluebenchmark.com refuses an archive in which one of its {all} files is missing. Take the "
    "missing ones ({names}) from its sample"
    " submission (sample_submission.zip), and leave their scores out of what you report."
)


class SubmissionConfig(StageConfig):
    """Options of the stage `submission`."""

    nodes: dict[str, NodePlacement] = Field(default_factory=dict, exclude=True)
    """Position of each gathered node in the graph, filled in by the run."""


def run(config: SubmissionConfig, build: BuildContext) -> StageResult:
    """Write the archive from the artifacts among `build.inputs`.

    The summary's `files` name the model of each file; `missing` has the reason for each missing
    file.

    Raises:
        DataError: GLUE does not allow a prediction.
    """
    nodes = [read_node(name, path, config.nodes) for name, path in build.inputs.items()]
    files, missing, notes = dict[str, dict[str, Any]](), dict[str, str](), list[str]()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zip_file:
        for name, file in FILES.items():
            best = best_submission(nodes, file)
            if best is None:
                missing[name] = f"task {file.task} is not in this run"
                if tuned(nodes, file.task):
                    missing[name] = f"no {file.splits[0]} file of {file.task}: dev only"
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
    if missing:
        notes.append(SERVER.format(all=len(FILES), names=", ".join(missing)))
    if files:
        storage.write_bytes(build.file(ZIP), archive.getvalue())
    table = SummaryTable(
        title=ZIP,
        columns=("file", "model"),
        rows=[
            *((name, str(entry["node"])) for name, entry in files.items()),
            *((name, reason) for name, reason in missing.items()),
        ],
        notes=notes,
    )
    summary = {"files": files, "missing": missing, "tables": [table.as_json()]}
    return StageResult(
        rows=sum(entry["rows"] for entry in files.values()),
        summary=summary | ({"submission": ZIP} if files else {}),
    )


def _lines(node: ReportNode, file: SubmissionFile) -> list[str]:
    """Return the file's lines, the header first."""
    path = storage.join(node.path, str(node.manifest.summary["predictions"]))
    lines = ["index\tprediction"]
    for number, row in enumerate(storage.read_tsv(path), start=2):
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
    count = len(summary["files"])
    text = f"{count} of {len(FILES)} files of a GLUE submission"
    return text if count else "no test files: dev only"


def _ahead(plan: PlannedBuild[SubmissionConfig]) -> CostEstimate:
    return CostEstimate(
        work=0.0,
        speed=1.0,
        startup_seconds=0.5 + 0.02 * len(plan.inputs),
        disk_bytes=1 << 23,
        memory_bytes=PROCESS_BYTES,
    )


STAGE = Stage(
    name="submission",
    version=VERSION,
    config=SubmissionConfig,
    run=run,
    reads_all_nodes=True,
    outputs=("submission",),
    headline=headline,
    cost_model=CostModel(estimate=_ahead, measure=lambda facts: None),
)
