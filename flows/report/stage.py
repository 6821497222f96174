"""Stage `report`: the manifests of a run in, one `report.html` out that needs no network and no other file.

It runs in the flow's own process: it reads JSON and draws; only the filled masks start a model's process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.graph.tools import run_verb
from flows.report.gathered import Gathered, Place, last_pretrainings, scores, told_groups
from flows.report.glue_table import glue_table
from flows.report.settings import best_setting, best_settings, together_and_alone
from pipeline.core import artifact, storage
from pipeline.core.config import StageConfig, Watching
from pipeline.core.cost import PROCESS_BYTES, Computer, Cost, Costs, Facts, Pace
from pipeline.core.errors import DataError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.stage import Build, Outcome, Stage

VERSION = 3
FILE = "report.html"
MOST_FILLED = 6  # checkpoints that fill masks
MOST_TOLD = 3  # groups in one line
PAGE_SECONDS, FILL_SECONDS, FILL_BYTES = 2.0, 7.0, 1 << 30


class ReportConfig(StageConfig):
    """What the page shows beside the figures."""

    masked: tuple[str, ...] = (
        "Paris is the [MASK] of France.",
        "A river carries water from the hills to the [MASK].",
        "The lamp was lit every evening before [MASK].",
        "Returns the [MASK] of the array along the given axis.",
        "The moon moves around the [MASK].",
    )
    """Sentences with one [MASK] each, filled by the last pretrained encoders; by default sentences of the sample."""

    top_k: int = Field(default=5, ge=1)
    """Candidates a mask."""

    nodes: Watching[dict[str, Place]] = Field(default_factory=dict, exclude=True)
    """Where in the graph each gathered node stands; the run fills it in."""


def run(config: ReportConfig, build: Build) -> Outcome:
    """Write the page from the artifacts among `build.inputs`; any of them may be missing.

    The summary's `scores` are group -> metric -> `mean`, `std` (None of one instance), `best`, `best_node` and `n`, where a group is a
    section, or what of it differs by seed alone: `groups` says of which section, task and values it is, and `over` what its mean is. `masks`
    are the filled sentences, by `node`. `tables`, where there are any, are the settings of a grid by their scores, and several tasks at once
    beside each alone.
    """
    from flows.report.page import render

    nodes = [_gathered(name, path, config) for name, path in build.inputs.items()]
    filling = last_pretrainings(nodes)
    masks: list[dict[str, Any]] = []
    for number, node in enumerate(filling[:MOST_FILLED]):
        build.report.progress(number, len(filling[:MOST_FILLED]) + 1, "parts", {"step": "masks"})
        masks += _filled(node, config)
    build.report.progress(0, 1, "parts", {"step": "page"})
    found = scores(nodes)
    both, glue = together_and_alone(nodes), glue_table(nodes)
    own = [*best_settings(nodes), *([both] if both else [])]
    page = render(nodes, found, masks, len(filling) - MOST_FILLED, [*([glue] if glue else []), *own])
    storage.write_bytes(build.file(FILE), page.encode())
    told = {group: {metric: score.as_json() for metric, score in metrics.items()} for group, metrics in found.items()}
    tables = {"tables": [table.as_json() for table in own]} if own else {}
    return Outcome(summary={"report": FILE, "scores": told, "groups": told_groups(nodes), "masks": masks, **tables})


def _gathered(name: str, path: str, config: ReportConfig) -> Gathered:
    manifest = artifact.read_manifest(path)
    place = config.nodes.get(name) or Place(section=name)
    history = _history(Path(path)) if manifest.stage == "pretrain" else []
    return Gathered(name=name, path=path, manifest=manifest, place=place, history=history)


def _filled(node: Gathered, config: ReportConfig) -> list[dict[str, Any]]:
    """The sentences as that node fills them; of a model that has nothing to fill masks with, none."""
    wanted = {"requests": [{"text": text} for text in config.masked], "top_k": config.top_k}
    answers: list[Mapping[str, Any]] = []
    try:
        run_verb("fill-mask", wanted, node.path, answers.extend)
    except UsageError:
        return []
    pairs = zip(config.masked, answers, strict=True)
    return [{"node": node.name, "text": text, "candidates": one} for text, found in pairs for one in found["predictions"]]


def _history(pretrain: Path) -> list[dict[str, Any]]:
    path = pretrain / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{path} has a damaged line ({error}); remove the line, or the directory to train again") from error


def headline(summary: Mapping[str, Any]) -> str:
    """The scores of what was evaluated, else fine-tuned, else pretrained, of each group by its mean.

    Of a grid it is the best setting, and of several tables of tasks what they are called.
    """
    found = summary.get("scores") or {}
    if not found:
        return ""
    groups: dict[str, dict[str, Any]] = {}
    for stage in ("evaluate", "finetune", "pretrain"):
        groups = {name: metrics for name, metrics in found.items() if name.partition("@")[0] == stage}
        if groups:
            break
    tables = summary.get("tables") or () if stage == "finetune" else ()
    if tables:
        return best_setting(tables) or (tables[0]["title"] if len(tables) == 1 else f"{len(tables)} tables")
    which = summary.get("groups") or {}
    lines = []
    for group, metrics in list(groups.items())[:MOST_TOLD]:
        # of a manifest's metrics, whose keys are in the order of the alphabet, the group says which is its score
        metric = str((which.get(group) or {}).get("score") or next(iter(metrics)))
        score = metrics[metric]
        one = len(groups) == 1 and score["n"] > 1
        several = f", best {score['best']:.3f} by {score['best_node']}, mean of {score['n']}" if one else ""
        lines.append(f"{group} {metric.replace('_', ' ')}{several} {score['mean']:.3f}")
    more = f" and {len(groups) - MOST_TOLD} more" if len(groups) > MOST_TOLD else ""
    return ", ".join(lines) + more


def _ahead(
    config: ReportConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """Each last pretraining fills masks, in a process of its own."""
    del execution, computer, before
    trained = {name for name in inputs if name.partition("@")[0] == "pretrain"}
    read = {
        origin.partition("/")[0] for name in trained if name in config.nodes for origin in config.nodes[name].inputs.values()
    }
    filling = min(len(trained - read), MOST_FILLED)
    return Cost(
        amount=float(filling),
        speed=1 / FILL_SECONDS,
        start=PAGE_SECONDS + 0.02 * len(inputs),
        disk_bytes=1 << 20,
        memory_bytes=PROCESS_BYTES + (FILL_BYTES if filling else 0),
    )


def _afterwards(facts: Facts) -> Pace | None:
    filling = len({mask.get("node") for mask in facts.get("masks", ())})
    return Pace(amount=float(filling), seconds=max(0.1, facts["seconds"] - PAGE_SECONDS)) if filling else None


STAGE = Stage(
    name="report",
    version=VERSION,
    config=ReportConfig,
    run=run,
    gathers=True,
    volatile=(FILE,),
    outputs=("report",),
    headline=headline,
    costs=Costs(ahead=_ahead, afterwards=_afterwards),
)
