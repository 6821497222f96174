"""GLUE submission: the official files of the models, or ensembles, that are best on dev.

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
from cloze.core.stages.stage import BuildContext, Stage, StageResult, role_of
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """Answers to a split, and who gave them.

    Attributes:
        name: node of the model, or of the evaluation if several models answer together.
        models: names of the models.
        score: their first metric on dev; of an ensemble that has no evaluation on dev, None.
    """

    name: str
    models: tuple[str, ...]
    answers: ReportNode
    score: float | None


def members(node: ReportNode) -> tuple[str, ...]:
    """Return the names of the models that an evaluation reads, sorted."""
    inputs = node.placement.inputs.items()
    return tuple(
        sorted(of.partition("/")[0] for role, of in inputs if role_of(role) == "checkpoint")
    )


def candidates(nodes: Sequence[ReportNode], file: SubmissionFile) -> list[Candidate]:
    """Return the answers to the file's split, by models alone and by ensembles."""
    models = {node.name: node for node in tuned(nodes, file.task) if node.scores}
    evaluations = [
        node
        for node in nodes
        if node.stage == "evaluate" and members(node) and set(members(node)) <= models.keys()
    ]
    on_dev = {
        members(node): score(node)
        for node in evaluations
        if node.scores and (node.manifest.summary.get("split") or "dev") == "dev"
    }
    return [
        Candidate(own[0], own, node, score(models[own[0]]))
        if len(own) == 1
        else Candidate(node.name, own, node, on_dev.get(own))
        for node in evaluations
        if node.manifest.summary.get("split") in file.splits
        for own in (members(node),)
    ]


# Stage `submission`: `submission.zip` for gluebenchmark.com, and what is in it.

VERSION = 3
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
            found = candidates(nodes, file)
            unscored = [own.name for own in found if own.score is None]
            best = max(
                (own for own in found if own.score is not None),
                key=lambda own: own.score or 0.0,
                default=None,
            )
            if unscored:
                notes.append(
                    f"{name}: {', '.join(unscored)} has no score on dev and was not compared; add "
                    f"dev to the splits of its section."
                )
            if best is None:
                missing[name] = f"task {file.task} is not in this run"
                if tuned(nodes, file.task):
                    missing[name] = f"no {file.splits[0]} file of {file.task}: dev only"
                continue
            lines = _lines(best.answers, file)
            zip_file.writestr(
                zipfile.ZipInfo(name, STAMP), "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED
            )
            files[name] = {"node": best.name, "rows": len(lines) - 1}
            if len(best.models) > 1:
                files[name]["members"] = list(best.models)
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
            *((name, _shown(entry)) for name, entry in files.items()),
            *((name, reason) for name, reason in missing.items()),
        ],
        notes=notes,
    )
    summary = {"files": files, "missing": missing, "tables": [table.as_json()]}
    return StageResult(
        rows=sum(entry["rows"] for entry in files.values()),
        summary=summary | ({"submission": ZIP} if files else {}),
    )


def _shown(entry: Mapping[str, Any]) -> str:
    """Return the node of a file, and of an ensemble its models."""
    models = entry.get("members", ())
    return f"{entry['node']} ({', '.join(models)})" if models else str(entry["node"])


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
