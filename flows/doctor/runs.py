"""What runs, and what is left of what ran: servers, stuck runs, slots, orphans, records that MLflow refused."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from flows.doctor.finding import Finding
from flows.graph import record, sweep
from flows.graph.plan import runs_directory
from flows.launchers import slots
from flows.servers import processes, state
from flows.servers.child import answers
from flows.servers.services import grace_seconds, without_user
from flows.tracking.refused import FILE, refused, send_again
from flows.tracking.spool import DIRECTORY
from pipeline.core.humanize import duration
from pipeline.core.processes import PARENT_PID


def servers() -> Iterator[Finding]:
    """Those of `cloze ui`, and those that the environment names."""
    runs = runs_directory()
    now = state.running(runs)
    for service in now.get("services", {}).values():
        up = service["state"] == "up"
        fix = f"see {service['log']}; when its cause is mended, end `cloze ui` (process {now['pid']}) and start it again"
        yield Finding(
            check=service["title"], found=_told(service), ok=up or service["state"] in ("starting", "waiting"), fix=fix
        )
    if not now:
        yield Finding(check="servers", found=f"none run for {runs.resolve()}; `cloze ui` starts them")
    for variable, path in (("PREFECT_API_URL", "/health"), ("MLFLOW_TRACKING_URI", "/health")):
        address = os.environ.get(variable, "").rstrip("/")
        if address.startswith("http"):
            address = without_user(address)
            fine = answers(f"{address}{path}")
            yield Finding(
                check=variable,
                found=f"{address} {'answers' if fine else 'does not answer'}",
                ok=fine,
                fix=f"start that server (`cloze ui` starts one here), or unset {variable}",
            )


def stuck() -> Iterator[Finding]:
    """Runs that are said to go on and whose process is gone, in our records and in Prefect."""
    runs = runs_directory()
    api = os.environ.get("PREFECT_API_URL") or state.running(runs).get("api")
    reachable = api if api and answers(f"{api.rstrip('/')}/health") else None
    for line in sweep.sweep(runs, reachable, mark=False):
        yield Finding(
            check="stuck run",
            found=line,
            ok=False,
            fix="mark it, so that what it held is free and it can go on (`cloze resume RUN`)",
            mend=partial(sweep.sweep, runs, reachable),
        )


def held_slots() -> Iterator[Finding]:
    """Who computes; a holder whose run is over is stuck."""
    runs = runs_directory()
    by_holder: dict[tuple[int, str, str], list[slots.Holder]] = {}
    for holder in slots.holders():
        by_holder.setdefault((holder.pid, holder.run, holder.node), []).append(holder)
    for (pid, run, node), held in by_holder.items():
        since = duration(max(0.0, time.time() - held[0].since))
        found = f"{', '.join(holder.slot for holder in held)}: {node} of run {run}, process {pid}, for {since}"
        known = record.newest(runs / run)
        over = known is not None and known["pid"] == pid and known["state"] != record.RUNNING
        fix = f"the run is over and its process holds on to them; end it (kill {pid})"
        yield Finding(check="slots", found=found, ok=not over, fix=fix, mend=partial(_end, [pid]) if over else None)


def orphans() -> Iterator[Finding]:
    """Processes of ours whose parent, named in their environment, is gone; and servers without a supervisor."""
    runs = runs_directory()
    left = {process.pid: "a server of a `cloze ui` that is gone" for process in _leftovers(runs)}
    for process in _mine():
        with suppress(psutil.Error, OSError):
            parent = process.environ().get(PARENT_PID, "")
            if parent.isdigit() and not psutil.pid_exists(int(parent)) and _same_world(process.pid):
                left.setdefault(process.pid, f"its run's process {parent} is gone")
    for pid, why in left.items():
        with suppress(psutil.Error):
            line = " ".join(psutil.Process(pid).cmdline())[:60]
            yield Finding(
                check="orphan",
                found=f"process {pid} ({line}): {why}",
                ok=False,
                fix=f"end it (kill {pid})",
                mend=partial(_end, [pid]),
            )


def refused_records() -> Iterator[Finding]:
    """What MLflow has refused to record, with the most frequent reason."""
    spools = runs_directory() / DIRECTORY
    reasons = refused(spools)
    if not reasons:
        return
    (reason, _), *others = reasons.most_common()
    more = f" (and {len(others)} more reasons, in {spools / FILE})" if others else ""
    yield Finding(
        check="records",
        found=f"{reasons.total():,} refused by MLflow: {reason}{more}",
        ok=False,
        fix="mend the cause, then send them again with --fix; what is refused once more is set aside once more",
        mend=partial(send_again, spools),
    )


def _told(service: dict[str, object]) -> str:
    parts = [str(service["state"]), str(service["address"] or "")]
    if service["restarts"]:
        parts.append(f"started again {service['restarts']} times, last it {service['last']}")
    return ", ".join(part for part in parts if part)


def _leftovers(runs: Path) -> list[psutil.Process]:
    if state.is_running(runs):
        return []
    return [*processes.recorded(state.read(runs).get("services", {})), *processes.marked(state.directory(runs))]


def _mine() -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["uids"]):
        uids = process.info["uids"]
        if uids is not None and uids.real == os.getuid() and process.pid != os.getpid():
            yield process


def _same_world(pid: int) -> bool:
    """Whether a process counts processes as this one does: not so in a container, seen from outside."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    return False


def _end(pids: list[int]) -> None:
    with suppress(psutil.NoSuchProcess):
        processes.end([psutil.Process(pid) for pid in pids], grace_seconds())
