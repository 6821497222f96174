"""Checks of servers, zombie runs, slots, orphaned processes and rejected MLflow records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

import psutil

from cloze.core.artifacts import lock
from cloze.core.errors import ClozeError
from cloze.core.humanize import format_bytes, format_duration
from cloze.core.places import runs_directory
from cloze.core.processes import PARENT_PID, process_state
from cloze.flows.doctor.machine import Finding, problem
from cloze.flows.machine import slots
from cloze.flows.prefect import sweep
from cloze.flows.run import server_addresses, status_file
from cloze.flows.run.server_addresses import answers, why_silent
from cloze.flows.tracking import database
from cloze.flows.tracking.spool import DIRECTORY, FLUSH_SECONDS, SENDER_LOG, tracking_uri
from cloze.flows.tracking.spool_sender import unsent
from cloze.flows.tracking.spool_state import FILE, URI, count_dead_letters, requeue
from cloze.flows.ui import processes
from cloze.flows.ui.services import grace_seconds, without_user

# variable with a server's address -> path that answers while the server is up
SERVERS = {"PREFECT_API_URL": "/health", "MLFLOW_TRACKING_URI": "/health", "AWS_ENDPOINT_URL": "/"}


def servers() -> Iterator[Finding]:
    """Check the servers of `cloze ui` and those named in the environment."""
    runs = runs_directory()
    current = server_addresses.servers(runs)
    for service in server_addresses.observed(current).values():
        is_up = service["state"] == "up"
        fix = (
            f"read {service['log']}, remove the cause, then end `cloze ui` "
            f"(process {current['pid']}) and start it again"
        )
        is_starting = service["state"] in ("starting", "waiting") and not service["restarts"]
        phrases = [service["state"], service["address"]]
        if service["restarts"]:
            phrases.append(f"restarted {service['restarts']} times; last: {service['last']}")
        observed = ", ".join(filter(None, phrases))
        yield Finding(service["title"], observed, ok=is_up or is_starting, fix=fix)
    if process_state(current.get("pid", 0)) == "T":
        observed = f"process {current['pid']} is stopped: it restarts no server and ends none"
        yield problem("cloze ui", observed, f"kill -CONT {current['pid']}")
    if not current:
        yield Finding("servers", f"none run for {runs.resolve()}; `cloze ui` starts them")
    for variable, path in SERVERS.items():
        address = os.environ.get(variable, "").rstrip("/")
        if address and "://" not in address and variable != URI:
            fix = f"set {variable} to http://HOST:PORT with the path, or unset it"
            yield problem(variable, f"{address!r} is not the address of a server", fix)
        if address.startswith("http"):
            address = without_user(address)
            silence = why_silent(f"{address}{path}")
            is_prefect = silence is None and variable == "PREFECT_API_URL"
            refusal = _refusal(address) if is_prefect else ""
            if is_prefect and why_silent(f"{address}/ready"):
                refusal = f"{address} answers, but it cannot reach its database"
            yield Finding(
                variable,
                refusal or f"{address} {silence or 'answers'}",
                ok=silence is None and not refusal,
                fix=f"start that server (a team's with `make up`, one here with "
                f"`cloze ui`), or unset {variable}",
            )


def _refusal(api: str) -> str:
    """Return why the running Prefect at `api` rejects this user; empty: it does not."""
    from cloze.flows.prefect.client import connected

    try:
        with connected(api):
            return ""
    except ClozeError as error:
        return str(error)


def stuck() -> Iterator[Finding]:
    """Find runs in progress whose process has ended, in local records and in Prefect."""
    runs = runs_directory()
    api = server_addresses.api(runs)
    reachable = api if api and answers(f"{api.rstrip('/')}/health") and not _refusal(api) else None
    records = {**status_file.all_records(runs), **status_file.command_records(runs)}
    for name, record in records.items():
        if record["state"] == status_file.UNREADABLE:
            path, _, fix = record["error"].partition("; ")
            yield problem("run", f"{name}: {path}", fix)
    for message in sweep.sweep(runs, reachable, mark=False):
        yield problem(
            "stuck run",
            message,
            "mark it as crashed, to free its slots; then continue with `cloze resume RUN`",
            partial(sweep.sweep, runs, reachable),
        )


def occupied_slots() -> Iterator[Finding]:
    """List slot holders; a holder whose run is over is stuck."""
    runs = runs_directory()
    by_holder: dict[tuple[int, str, str], list[slots.Holder]] = {}
    for holder in slots.holders():
        by_holder.setdefault((holder.pid, holder.run, holder.node), []).append(holder)
    for (pid, run, node), holders in by_holder.items():
        age = format_duration(max(0.0, time.time() - holders[0].since))
        names = ", ".join(holder.slot for holder in holders)
        description = f"{names}: {node} of run {run}, process {pid}, for {age}"
        record = status_file.newest(status_file.directory_of(runs, run))
        is_over = (
            record is not None
            and (record["pid"], lock.is_this_machine(record)) == (pid, True)
            and record["state"] != status_file.RUNNING
        )
        fix = f"the run has ended, but its process still occupies the slots; end it (kill {pid})"
        yield Finding(
            "slots",
            description,
            ok=not is_over,
            fix=fix,
            repair=partial(_end, [pid]) if is_over else None,
        )


def orphans() -> Iterator[Finding]:
    """Find Cloze processes whose parent (by their environment) has ended, and leftover servers."""
    runs = runs_directory()
    leftover = (
        []
        if server_addresses.is_running(runs)
        else processes.marked_processes(server_addresses.directory(runs))
    )
    orphaned = {process.pid: "server of an ended `cloze ui`" for process in leftover}
    for process in psutil.process_iter(["uids"]):
        uids = process.info["uids"]
        if uids is None or uids.real != os.getuid() or process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            parent = process.environ().get(PARENT_PID, "")
            if parent.isdigit() and not psutil.pid_exists(int(parent)):
                spaces = {os.readlink(f"/proc/{pid}/ns/pid") for pid in (process.pid, "self")}
                if len(spaces) == 1:  # not in a container, where ids mean other processes
                    orphaned.setdefault(process.pid, f"the process {parent} of its run is gone")
    for pid, reason in orphaned.items():
        with suppress(psutil.Error):
            command = " ".join(psutil.Process(pid).cmdline())[:60]
            yield problem(
                "orphan",
                f"process {pid} ({command}): {reason}",
                f"end it (kill {pid})",
                partial(_end, [pid]),
            )


def mlflow_database() -> Iterator[Finding]:
    """Open the database that runs are recorded in, and name those that were set aside."""
    runs = runs_directory()
    path = database.path_of(tracking_uri(runs))
    if path is None or find_spec("mlflow") is None:
        return
    for aside in sorted(path.parent.glob(f"{path.name}{database.ASIDE}*")):
        observed = f"{aside} could not be mended and was set aside; delete it if nothing is missed"
        yield Finding("records", observed)
    for copy in sorted(path.parent.glob(f"{path.name}{database.BEFORE}*")):
        observed = (
            f"{copy} is the database before MLflow migrated it; delete it if nothing is missed"
        )
        yield Finding("records", observed)
    if path.exists() and database.is_older(path):
        observed = f"{path} is of an older MLflow; the next run migrates it, and keeps a copy"
        yield Finding("records", observed)
    elif path.exists():
        try:
            reason, can_mend = database.why_closed(path)
        except database.SlowDatabaseError as error:
            yield Finding("records", str(error))
            return
        fix = "migrate it, or else set it aside: waiting records go to a new one (--fix)"
        yield Finding(
            "records",
            f"{path} cannot be opened: {reason}" if reason else f"{path} opens",
            ok=not reason,
            fix=fix
            if can_mend
            else "upgrade MLflow, end what holds it, or make it writable for this account",
            repair=partial(database.mend, path, runs / DIRECTORY) if can_mend else None,
        )


def waiting_records() -> Iterator[Finding]:
    """Report records that MLflow does not take, with the last reason."""
    spools, uri = runs_directory() / DIRECTORY, tracking_uri(runs_directory())
    size, since = unsent(spools)
    if since is None or time.time() - since < FLUSH_SECONDS:
        return
    log = spools / SENDER_LOG
    told = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    last = f"; last: {told[-1][:300]}" if told else ""
    age = format_duration(time.time() - since)
    yield problem(
        "records",
        f"{format_bytes(size)} wait for MLflow at {without_user(uri)} for {age}{last}",
        "remove the cause; the next run sends them",
    )


def refused_records() -> Iterator[Finding]:
    """Report the number of records that MLflow rejected, with the first reason."""
    spools = runs_directory() / DIRECTORY
    reasons = count_dead_letters(spools)
    if not reasons:
        return
    reason, *other_reasons = reasons
    more = f" (and {len(other_reasons)} more reasons, in {spools / FILE})" if other_reasons else ""
    yield problem(
        "records",
        f"{reasons.total():,} refused by MLflow: {reason}{more}",
        "remove the cause, then send them again with --fix; records that are refused again are"
        " kept",
        partial(requeue, spools),
    )


def _end(pids: list[int]) -> None:
    with suppress(psutil.NoSuchProcess):
        processes.end([psutil.Process(pid) for pid in pids], grace_seconds())


CHECKS = (
    servers, orphans, stuck, occupied_slots, mlflow_database, waiting_records,
    refused_records,
)  # fmt: skip
