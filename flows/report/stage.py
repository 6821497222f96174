"""Stage `report`: the manifests of a run in, one `report.html` out that needs no network and no other file.

It runs in the flow's own process: it reads JSON and draws; only the filled masks start a model's process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.graph.tools import run_tool
from pipeline.core import artifact, storage
from pipeline.core.config import StageConfig
from pipeline.core.errors import DataError
from pipeline.core.stage import Build, Outcome, Stage

VERSION = 1
FILE = "report.html"


class ReportConfig(StageConfig):
    """What the page shows beside the figures."""

    masked: tuple[str, ...] = (
        "Paris is the [MASK] of France.",
        "A river carries water from the hills to the [MASK].",
        "The lamp was lit every evening before [MASK].",
        "Returns the [MASK] of the array along the given axis.",
        "The moon moves around the [MASK].",
    )
    """Sentences with one [MASK] each, filled by the pretrained encoder; by default sentences of the sample."""

    top_k: int = Field(default=5, ge=1)
    """Candidates a mask."""


def run(config: ReportConfig, build: Build) -> Outcome:
    """Write the page from the artifacts among `build.inputs`; any of them may be missing."""
    from flows.report.page import render

    manifests = {manifest.stage: manifest for manifest in map(artifact.read_manifest, build.inputs.values())}
    history: list[dict[str, Any]] = []
    masks: list[dict[str, Any]] = []
    if "pretrain" in manifests:
        build.report.progress(0, 2, "parts", {"step": "masks"})
        checkpoint = next(path for path in build.inputs.values() if artifact.read_manifest(path).stage == "pretrain")
        filled = run_tool("fill-mask", {"texts": list(config.masked), "top_k": config.top_k}, {"checkpoint": checkpoint})
        masks = [{"text": text, "candidates": found} for text, found in zip(config.masked, filled["predictions"], strict=True)]
        history = _history(Path(checkpoint))
    build.report.progress(1, 2, "parts", {"step": "page"})
    page = render(manifests, history, masks)
    storage.write_bytes(build.file(FILE), page.encode())
    return Outcome(summary={"report": FILE, "masks": masks})


def _history(pretrain: Path) -> list[dict[str, Any]]:
    path = pretrain / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{path} has a damaged line ({error}); remove the line, or the directory to train again") from error


STAGE = Stage(
    name="report",
    version=VERSION,
    config=ReportConfig,
    run=run,
    gathers=True,
    volatile=(FILE,),
    outputs=("report",),
)
