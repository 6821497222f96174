"""Stage `report`: writes one self-contained `report.html` from the manifests of a run.

It runs in the flow's process, as it only reads JSON and draws; filling masks starts a process with
the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import DataError, UsageError
from cloze.core.options import compose_config_class
from cloze.core.stages.cost import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
)
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.flows.graph.command import run_inference
from cloze.flows.report.report_nodes import (
    NodePlacement,
    ReportNode,
    best_setting,
    best_settings,
    cross_tests,
    describe_groups,
    last_pretrainings,
    multitask_versus_single,
    read_node,
    scores,
)
from cloze.flows.report.section import SECTIONS

VERSION = 4
FILE = "report.html"
MOST_FILLED = 6  # checkpoints that fill masks
MAX_SHOWN_GROUPS = 3  # groups in one line
PAGE_SECONDS, FILL_SECONDS, FILL_BYTES = 2.0, 7.0, 1 << 30


class _ReportConfig(StageConfig):
    """Options of the report page."""

    masked: tuple[str, ...] = (
        "Paris is the [MASK] of France.",
        "A river carries water from the hills to the [MASK].",
        "The lamp was lit every evening before [MASK].",
        "Returns the [MASK] of the array along the given axis.",
        "The moon moves around the [MASK].",
    )
    """Sentences with one [MASK] each, filled by the last pretrained encoders. Default: sentences
    about the sample."""

    top_k: int = Field(default=5, ge=1)
    """Candidates per [MASK]."""

    nodes: dict[str, NodePlacement] = Field(default_factory=dict, exclude=True)
    """Position of each gathered node in the graph, filled in by the run."""


if TYPE_CHECKING:
    ReportConfig = _ReportConfig
else:
    ReportConfig = compose_config_class(
        "ReportConfig", _ReportConfig, (one.options for one in SECTIONS.loaded().values())
    )
    ReportConfig.__doc__ = _ReportConfig.__doc__


def run(config: ReportConfig, build: BuildContext) -> StageResult:
    """Write the page from the artifacts among `build.inputs`; any of them may be missing.

    The summary has:

        scores: group -> metric -> `mean`, `std` (None for one instance), `best`, `best_node`, `n`.
        groups: section, task and matrix values of each group, and the axes of its mean (`over`).
        masks: filled sentences by `node`.
        tables: a paper's table, settings of a grid by score, multi-task against single-task
            training, and tests on other tasks, if any.
    """
    from cloze.flows.report.page import render

    nodes = [read_node(name, path, config.nodes) for name, path in build.inputs.items()]
    nodes = [replace(node, history=_history(node)) for node in nodes]
    encoders = last_pretrainings(nodes)
    masks: list[dict[str, Any]] = []
    for number, node in enumerate(encoders[:MOST_FILLED]):
        build.report.progress(number, len(encoders[:MOST_FILLED]) + 1, "parts", {"step": "masks"})
        masks += _filled(node, config)
    build.report.progress(0, 1, "parts", {"step": "page"})
    group_scores = scores(nodes)
    sections = SECTIONS.loaded().values()
    parts = [one.tables(config, nodes) for one in sections if one.tables is not None]
    score_tables = [table for tables, _ in parts for table in tables] or best_settings(nodes)
    figure = "".join(svg for _, svg in parts)
    score_tables += filter(None, (multitask_versus_single(nodes), cross_tests(nodes)))
    page = render(nodes, group_scores, masks, len(encoders) - MOST_FILLED, score_tables, figure)
    storage.write_bytes(build.file(FILE), page.encode())
    build.report.progress(1, 1, "parts", {"step": "page"})
    score_rows = {
        group: {metric: asdict(score) for metric, score in metrics.items()}
        for group, metrics in group_scores.items()
    }
    tables = {"tables": [table.as_json() for table in score_tables]} if score_tables else {}
    return StageResult(
        summary={
            "report": FILE,
            "scores": score_rows,
            "groups": describe_groups(nodes),
            "masks": masks,
            **tables,
        }
    )


def _filled(node: ReportNode, config: ReportConfig) -> list[dict[str, Any]]:
    """Return the sentences filled by the node's model; empty if the model cannot fill masks."""
    request = {"requests": [{"text": text} for text in config.masked], "top_k": config.top_k}
    answers: list[Mapping[str, Any]] = []
    try:
        run_inference("fill-mask", request, node.path, answers.extend)
    except UsageError:
        return []
    pairs = zip(config.masked, answers, strict=True)
    return [
        {"node": node.name, "text": text, "candidates": candidates}
        for text, answer in pairs
        for candidates in answer["predictions"]
    ]


def _history(node: ReportNode) -> list[dict[str, Any]]:
    path = storage.join(node.path, "metrics.jsonl")
    is_logged = node.stage == "pretrain" and storage.exists(path)
    content = storage.read_at_once(path) if is_logged else b""
    lines = content.decode(errors="replace").splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(
            f"{path} has a damaged line ({error}); remove the line, or the directory to train again"
        ) from error


def headline(summary: Mapping[str, Any]) -> str:
    """Return the mean scores by group of the evaluations, or else of fine-tunings or pretrainings.

    With tables, return the best setting of a grid or the tables' titles.
    """
    scores = summary.get("scores") or {}
    for stage in ("evaluate", "finetune", "pretrain"):
        groups = {name: scores[name] for name in scores if name.partition("@")[0] == stage}
        if groups:
            break
    else:
        return ""
    tables = summary.get("tables") or () if stage == "finetune" else ()
    if tables:
        titles = tables[0]["title"] if len(tables) == 1 else f"{len(tables)} tables"
        return best_setting(tables) or titles
    descriptions = summary.get("groups") or {}
    phrases = []
    for group, metrics in list(groups.items())[:MAX_SHOWN_GROUPS]:
        # manifest keys are sorted alphabetically, so the group names its main metric
        metric = str((descriptions.get(group) or {}).get("score") or next(iter(metrics)))
        score, detail = metrics[metric], ""
        if len(groups) == 1 and score["n"] > 1:
            detail = f", best {score['best']:.3f} by {score['best_node']}, mean of {score['n']}"
        phrases.append(f"{group} {metric.replace('_', ' ')}{detail} {score['mean']:.3f}")
    more = f" and {len(groups) - MAX_SHOWN_GROUPS} more" if len(groups) > MAX_SHOWN_GROUPS else ""
    return ", ".join(phrases) + more


def _ahead(plan: PlannedBuild[ReportConfig]) -> CostEstimate:
    """Estimate the cost: each last pretraining fills masks in a process of its own."""
    config, inputs = plan.config, plan.inputs
    pretrainings = {name for name in inputs if name.partition("@")[0] == "pretrain"}
    continued = {
        origin.partition("/")[0]
        for name in pretrainings
        if name in config.nodes
        for origin in config.nodes[name].inputs.values()
    }
    filling = min(len(pretrainings - continued), MOST_FILLED)
    return CostEstimate(
        work=float(filling),
        speed=1 / FILL_SECONDS,
        startup_seconds=PAGE_SECONDS + 0.02 * len(inputs),
        disk_bytes=1 << 20,
        memory_bytes=PROCESS_BYTES + (FILL_BYTES if filling else 0),
    )


def _afterwards(facts: Metadata) -> MeasuredThroughput | None:
    filling = len({mask.get("node") for mask in facts.get("masks", ())})
    return (
        MeasuredThroughput(amount=float(filling), seconds=max(0.1, facts["seconds"] - PAGE_SECONDS))
        if filling
        else None
    )


STAGE = Stage(
    name="report",
    version=VERSION,
    config=ReportConfig,
    run=run,
    reads_all_nodes=True,
    unhashed_files=(FILE,),
    outputs=("report",),
    headline=headline,
    cost_model=CostModel(estimate=_ahead, measure=_afterwards),
)
