"""From records and the servers' state to what the page's templates show. Pure but for reading the runs' directory."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from flows.graph import record
from flows.launchers import slots
from flows.night.journal import Champion, Journal
from flows.servers import state
from flows.servers.page import files
from flows.tracking import links
from flows.tracking.spool import DIRECTORY
from flows.views.graph_picture import NodePicture, graph_svg
from pipeline.core.artifact import MANIFEST
from pipeline.core.claim import BUILDING
from pipeline.core.humanize import duration, short, si

HEADLINES = 3  # figures of a node in a line
WORDS = ("note", "step", "warning", "device", "precision", "engine")  # figures that are no measurements
STARTS = 10  # of a run, listed on its page


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node as a line of a table, everything as text but the bar."""

    name: str
    stage: str
    state: str
    after: tuple[str, ...]
    why: str
    done: float | None
    total: float | None
    progress: str
    figures: str
    took: str
    left: str
    error: str
    attempt: int
    mlflow: str | None = None
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as a line of a table, or the head of its page."""

    name: str
    state: str
    started: str
    took: str
    done: int
    total: int
    error: str
    process: str
    prefect: str | None
    nodes: tuple[NodeRow, ...]
    active: tuple[NodeRow, ...] = field(default=())


def all_runs(runs: Path, addresses: Mapping[str, Any]) -> list[RunRow]:
    """The newest start of each run, the newest first."""
    records = sorted(record.all_records(runs).values(), key=lambda found: -float(found["started"]))
    return [run_row(found, addresses) for found in records]


def run_row(found: Mapping[str, Any], addresses: Mapping[str, Any], runs: Path | None = None) -> RunRow:
    """A run's record as a row; with `runs`, the links of its nodes too."""
    nodes = tuple(_node_row(name, node, addresses, runs) for name, node in found["nodes"].items())
    prefect = addresses.get("prefect") if found.get("prefect") else None
    errors = [f"{node.name}: {node.error}" for node in nodes if node.error and node.state in ("failed", "crashed")]
    return RunRow(
        name=found["run"],
        state=found["state"],
        started=moment(found["started"]),
        took=duration((found["ended"] or time.time()) - found["started"]),
        done=sum(node.state in ("finished", "cached") for node in nodes),
        total=len(nodes),
        error=errors[0] if errors else str(found.get("error") or ""),
        process=f"process {found['pid']} on {found['host']}",
        prefect=f"{prefect}/runs/flow-run/{found['prefect']}" if prefect else None,
        nodes=nodes,
        active=tuple(node for node in nodes if node.state == "running"),
    )


def _node_row(name: str, node: Mapping[str, Any], addresses: Mapping[str, Any], runs: Path | None) -> NodeRow:
    done, total = node.get("done"), node.get("total")
    running = node["state"] == "running"
    count = "" if done is None else f"{si(done)}{f' / {si(total)}' if total else ''} {node.get('unit', '')}".strip()
    started = node.get("started")
    took = "" if started is None else duration((node.get("ended") or time.time()) - started)
    left = node.get("seconds_left")
    artifact = Path(node["artifact"])
    return NodeRow(
        name=name,
        stage=node["stage"],
        state=node["state"],
        after=tuple(node["after"]),
        why=str(node.get("why") or ""),
        done=done if running and total else None,
        total=total,
        progress=count if running else "",
        figures=headline(node),
        took=took,
        left=duration(left) if running and left is not None else "",
        error=str(node.get("error") or ""),
        attempt=int(node.get("attempt") or 1),
        mlflow=_mlflow(runs, artifact, addresses) if runs else None,
        files=tuple(files.listed(runs, artifact)) if runs else (),
    )


def headline(node: Mapping[str, Any]) -> str:
    """What a node has to say in a few figures: metrics of one that is done, what training measures of one that runs."""
    told: Mapping[str, Any] = node.get("metrics") or (node.get("figures") if node["state"] != "cached" else None) or {}
    numbers = [(key, value) for key, value in told.items() if isinstance(value, float) and key not in WORDS]
    return ", ".join(f"{key.replace('_', ' ')} {short(value)}" for key, value in numbers[:HEADLINES])


def picture(run: RunRow) -> str:
    """The run's graph as SVG; a click on a node leads to its line."""
    return graph_svg(
        {
            node.name: NodePicture(
                stage=node.stage,
                state=node.state,
                after=node.after,
                line=" ".join(filter(None, (node.progress, node.figures.split(", ")[0]))) or node.took,
                link=f"#{anchor(node.name)}",
            )
            for node in run.nodes
        }
    )


def anchor(name: str) -> str:
    """The id of a node's line on the run's page."""
    return f"node-{name}"


def starts(runs: Path, name: str) -> list[dict[str, str]]:
    """The last starts of a run, the newest first."""
    found = []
    for path in record.records_in(runs / name)[: -STARTS - 1 : -1]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            lasted = duration(content["ended"] - content["started"]) if content["ended"] else ""
            found.append(
                {
                    "state": content["state"],
                    "started": moment(content["started"]),
                    "took": lasted,
                    "error": content.get("error") or "",
                }
            )
    return found


def servers(runs: Path) -> list[dict[str, Any]]:
    """How each server is."""
    now, rows = state.running(runs), []
    for service in now.get("services", {}).values():
        up = service["state"] in ("up", "silent")
        rows.append(
            {
                **{key: service[key] for key in ("title", "state", "address", "restarts", "last")},
                "uptime": duration(time.time() - service["since"]) if up else "",
            }
        )
    return rows


def mended(runs: Path) -> dict[str, Any]:
    """What the sweep of the servers last did: when, what, and what went wrong."""
    swept = state.running(runs).get("swept") or {}
    return {**swept, "ago": duration(time.time() - swept["at"])} if swept.get("at") else {}


def machine(runs: Path) -> dict[str, Any]:
    """Who holds slots of this machine, and the disk."""
    taken: dict[tuple[str, str], list[str]] = {}
    for holder in slots.holders():
        taken.setdefault((holder.run, holder.node), []).append(holder.slot)
    usage = shutil.disk_usage(runs)
    return {
        "slots": [(run, node, _counted(held)) for (run, node), held in taken.items()],
        "disk": f"{usage.free / 1e9:.0f} GB of {usage.total / 1e9:.0f} GB free",
    }


def _counted(held: Iterable[str]) -> str:
    held = list(held)
    gpus = [slot for slot in held if slot.startswith(slots.GPU)]
    cores = len(held) - len(gpus)
    return ", ".join(filter(None, (" ".join(gpus), f"{cores} core{'s' if cores != 1 else ''}" if cores else "")))


def trends(runs: Path) -> list[tuple[str, str]]:
    """The trend pages of nights: whose, and where."""
    places = [path.relative_to(runs).as_posix() for path in sorted(runs.glob("*/trend.html"))]
    return [(Path(place).parent.name.removeprefix("."), place) for place in places if files.find(runs, place)]


def champion(runs: Path) -> Champion | None:
    """Whom the night's journal names as the best checkpoint."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return Journal(runs).champion()
    return None


def _mlflow(runs: Path, artifact: Path, addresses: Mapping[str, Any]) -> str | None:
    """The address of the node's run on MLflow's pages."""
    server = addresses.get("mlflow")
    for name in (MANIFEST, BUILDING) if server else ():
        with suppress(OSError):
            build = _build(artifact / name, (artifact / name).stat().st_mtime_ns)
            return links.page(runs / DIRECTORY, build, str(server)) if build else None
    return None


@lru_cache(maxsize=4096)
def _build(path: Path, changed: int) -> str | None:
    """The build id that a manifest or a claim holds; it names the node's run in MLflow."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return str(content["build"]) if isinstance(content, Mapping) and content.get("build") else None
    return None


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
