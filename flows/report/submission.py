"""Stage `submission`: what a run's models answered to GLUE's test files in, `submission.zip` as gluebenchmark.com takes it out, and the
table beside the paper's.

Of each task it hands in the answers of the model that is best on dev. It runs in the flow's own process and reads files alone.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from flows.report.gathered import Gathered, Place
from flows.report.glue import FILES, File
from flows.report.glue_table import answers, glue_table, lacking, tuned
from pipeline.core import artifact, storage
from pipeline.core.config import StageConfig, Watching
from pipeline.core.cost import PROCESS_BYTES, Computer, Cost, Costs, Facts, Pace
from pipeline.core.errors import DataError
from pipeline.core.execution import Execution
from pipeline.core.stage import Build, Outcome, Stage

VERSION = 1
ZIP, TABLE = "submission.zip", "table.md"
STAMP = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: equal answers make equal bytes
SERVER = (
    "gluebenchmark.com refuses an archive in which one of its {all} files is missing. Take the missing ones ({names}) from its sample"
    " submission (sample_submission.zip), and leave their scores out of what you report."
)


class SubmissionConfig(StageConfig):
    """What is handed in."""

    nodes: Watching[dict[str, Place]] = Field(default_factory=dict, exclude=True)
    """Where in the graph each gathered node stands; the run fills it in."""


def run(config: SubmissionConfig, build: Build) -> Outcome:
    """Write the archive and the table from the artifacts among `build.inputs`.

    The summary's `files` say whose answers each file holds; `missing`, which files are not there, and why.

    Raises:
        DataError: a prediction is none that GLUE knows.
    """
    nodes = [
        Gathered(
            name=name, path=path, manifest=artifact.read_manifest(path), place=config.nodes.get(name) or Place(section=name)
        )
        for name, path in build.inputs.items()
    ]
    files, notes = dict[str, dict[str, Any]](), list[str]()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for name, file in FILES.items():
            found = answers(nodes, file)
            if found is None:
                continue
            maker, answered = found
            lines = _lines(answered, file)
            made.writestr(zipfile.ZipInfo(name, STAMP), "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)
            files[name] = {"node": maker.name, "rows": len(lines) - 1}
            if len(lines) - 1 != file.rows:
                notes.append(f"{name} has {len(lines) - 1:,} rows, GLUE's has {file.rows:,}: the server will refuse it.")
    missing = lacking(nodes)
    if missing:
        notes.append(SERVER.format(all=len(FILES), names=", ".join(missing)))
    reasons = [f"{name}: {reason}." for name, reason in missing.items()]
    if files:
        storage.write_bytes(build.file(ZIP), archive.getvalue())
    told = glue_table(nodes, least=1)
    dev_only = [f"{name}: {reason}." for name, reason in missing.items() if tuned(nodes, FILES[name].task)]
    tables = [] if told is None else [{**told.as_json(), "notes": [*told.notes, *dev_only, *notes]}]
    text = "" if told is None else told.markdown()
    text += "\n".join(
        ["", "## submission.zip", "", *(f"- {n}: {f['node']}" for n, f in files.items()), *(f"- {r}" for r in reasons), ""]
    )
    storage.write_bytes(build.file(TABLE), (text + "".join(f"\n{note}\n" for note in notes)).encode())
    summary: dict[str, Any] = {"files": files, "missing": missing, "table": TABLE, "tables": tables}
    return Outcome(rows=sum(f["rows"] for f in files.values()), summary=summary | ({"submission": ZIP} if files else {}))


def _lines(node: Gathered, file: File) -> list[str]:
    """The file's lines, the header first."""
    path = storage.join(node.path, str(node.manifest.summary["predictions"]))
    lines = ["index\tprediction"]
    rows = csv.DictReader(io.StringIO(storage.read_text(path), newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(rows, start=2):
        said = row.get("prediction")
        if said is None or not _fits(said, file):
            known = "a number" if file.labels is None else ", ".join(file.labels)
            raise DataError(f"{path}, line {number}: prediction {said!r} is none that GLUE knows of {file.task} ({known})")
        lines.append(f"{row.get('index', number - 2)}\t{said}")
    return lines


def _fits(said: str, file: File) -> bool:
    if file.labels is not None:
        return said in file.labels
    try:
        return abs(float(said)) < float("inf")
    except ValueError:
        return False


def headline(summary: Mapping[str, Any]) -> str:
    """How much of a submission is there."""
    count = len(summary["files"])
    return f"{count} of {len(FILES)} files of a GLUE submission" if count else "no test files: dev only"


def _ahead(
    config: SubmissionConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """Files are read and packed."""
    del config, execution, computer, before
    return Cost(amount=0.0, speed=1.0, start=0.5 + 0.02 * len(inputs), disk_bytes=1 << 23, memory_bytes=PROCESS_BYTES)


def _afterwards(facts: Facts) -> Pace | None:
    """It takes what it took the last time."""
    del facts
    return None


STAGE = Stage(
    name="submission",
    version=VERSION,
    config=SubmissionConfig,
    run=run,
    gathers=True,
    outputs=("submission", "table"),
    headline=headline,
    costs=Costs(ahead=_ahead, afterwards=_afterwards),
)
