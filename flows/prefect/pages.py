"""The pages that a flow run shows in Prefect: the plan, and of each node its figures and where everything lies. Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.graph import addresses, plan
from flows.session import Session
from flows.tracking import links
from flows.tracking.spool import DIRECTORY, tracking_uri
from pipeline.core.execute import Result
from pipeline.core.humanize import duration, short
from pipeline.core.secrets import masked

MOST_ROWS = 200


def plan_page(session: Session) -> str:
    """What of the run is to be made, and why."""
    rows = [
        (
            step.name,
            "–" if step.cached else "**run**",
            step.why,
            "" if step.last_seconds is None else duration(step.last_seconds),
        )
        for step in session.steps
    ]
    return f"Run `{session.config.name}` in `{session.directory.resolve()}`\n\n" + _table(
        ("node", "what", "why", "last time"), rows
    )


def node_page(session: Session, step: plan.Step, result: Result, build_id: str | None) -> str:
    """A node's figures, and the links to its artifact, its run in MLflow and the report.

    Args:
        build_id: names its run in MLflow, where it has one from this time.
    """
    manifest = result.manifest
    places = [f"artifact: `{Path(result.artifact).resolve()}`"]
    mlflow = addresses.mlflow(plan.runs_directory())
    if mlflow and build_id:
        known = links.page(plan.runs_directory() / DIRECTORY, build_id, mlflow)
        places.append(f"MLflow: [{step.name}]({known or mlflow})")
    elif mlflow:
        places.append(f"MLflow: [{mlflow}]({mlflow})")
    else:
        places.append(f"MLflow: `{masked(tracking_uri(plan.runs_directory()))}`")
    page = addresses.page(plan.runs_directory())
    if page:
        places.append(f"run: [{session.config.name}]({page}/runs/{quote(session.config.name)})")
    report = manifest.summary.get("report")
    if report:
        file = Path(result.artifact).resolve() / report
        below = f"{page}/files/{quote(f'{session.config.name}/{Path(result.artifact).name}/{report}')}"
        places.append(f"report: [{report}]({below})" if page else f"report: `{file}`")
    facts = [("made in", duration(manifest.seconds)), ("rows", f"{manifest.rows:,}" if manifest.rows else "")]
    figures = [*facts, *flat(manifest.summary), *((f"count {key}", f"{n:,}") for key, n in manifest.counters.items())]
    rows = [(name, value) for name, value in figures if value != ""]
    return "\n".join(f"- {place}" for place in places) + "\n\n" + _table(("figure", "value"), rows)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested figures by dotted name; lists as JSON, cut."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield name, json.dumps(value)[:200]
        elif value is not None:
            yield name, short(value)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"\n… and {len(rows) - MOST_ROWS} more")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that stays in its cell and is text: what a document says is no markup."""
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(sign, written)
    return text
