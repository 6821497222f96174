"""`python -m cloze.flows.tracking.spool_sender SPOOL`: send spooled records to MLflow.

Each run has its own sender. It follows the run's spool until standard input ends, which happens
when the run ends. It also sends orphans: spools in the directory whose writer and sender are dead.
It waits for no other sender and takes no spool of a live run (`cloze.flows.tracking.spool.claim`).

`NAME.sent` next to each spool has the offset reached. A record that was sent but not noted when a
sender died is sent again. Its key, step, time and value are the same, so MLflow stores it once.
Runs, models and versions are looked up by tags before they are created.

The sender waits for a server that is down. Two kinds of records become dead letters, listed by
`cloze doctor`: those that MLflow rejects (a metric's name, a deleted run), and those that fail
`TRIES` times while MLflow accepts others.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.secrets import redact
from cloze.flows.tracking import database
from cloze.flows.tracking.mlflow_writer import METRICS_A_REQUEST, MlflowWriter
from cloze.flows.tracking.spool import TOUCH_SECONDS, adopt, claim, complete
from cloze.flows.tracking.spool_state import URI, add_dead_letter, read_line

REFUSALS = frozenset(  # MLflow's error codes that a retry cannot change
    "BAD_REQUEST INVALID_PARAMETER_VALUE INVALID_STATE MALFORMED_REQUEST RESOURCE_ALREADY_EXISTS"
    " RESOURCE_DOES_NOT_EXIST".split()
)
TRIES = 3  # for a record that fails while MLflow accepts others
LAST_PASSES = 10  # failed passes after the run has ended, while MLflow accepts others
RETRY_SECONDS = 2.0
POLL_SECONDS = 0.5
REPLACED = 75


class SpoolSender:
    """Sender of the records of one spool after another."""

    def __init__(self, sender: MlflowWriter) -> None:
        self._sender = sender
        # failures of the record at an offset of a spool
        self._failures: Counter[tuple[Path, int]] = Counter()

    def send(self, spool: Path, stream: IO[bytes], *, is_over: bool) -> bool:
        """Send new records; return whether there were any.

        `is_over`: the spool is complete; it is removed when all of it has arrived.

        Raises Exception: a record could not be sent.
        """
        if is_over:
            complete(stream, spool.parent)
        offset_file = spool.with_suffix(".sent")
        offset = _offset(offset_file)
        stream.seek(offset)
        content = stream.read()
        # The writer may be inside of a line: that one is read next time.
        lines = content[: content.rfind(b"\n") + 1]
        for size, record in _merge_metrics(lines.splitlines(keepends=True)):
            if record is None:
                line = {"line": lines[:size].decode(errors="replace")}
                self._set_aside(spool, line, "the line is damaged")
            else:
                self._send_or_set_aside(spool, offset, record)
            lines = lines[size:]
            offset += size
            # After each record, so that a kill sends one of them twice at most.
            storage.write_bytes(str(offset_file), str(offset).encode())
        if is_over:
            # The spool first: one without its offset would be sent again from its start.
            spool.unlink(missing_ok=True)
            offset_file.unlink(missing_ok=True)
        return bool(content)

    def _send_or_set_aside(self, spool: Path, offset: int, record: dict[str, Any]) -> None:
        """Send a record.

        If it is rejected, send its entries one by one, and set rejected ones aside.

        Raises Exception: the record must be sent again later.
        """
        try:
            self._sender.send(record)
        except Exception as error:
            reason = _refusal(error)
            if reason is None:
                # one that waits for a lock is not at fault
                is_writable = not isinstance(error, TimeoutError) and self._sender.is_writable()
                self._failures[spool, offset] += is_writable
                if not is_writable or self._failures[spool, offset] < TRIES:
                    raise
                reason = _first_line(error)
            entries = _split_record(record)
            if len(entries) == 1:
                self._set_aside(spool, record, reason)
                return
            for entry in entries:
                self._send_or_set_aside(spool, offset, entry)

    def _set_aside(self, spool: Path, record: Mapping[str, Any], reason: str) -> None:
        add_dead_letter(spool, record, reason)
        _log(f"refused: {reason}")


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def unsent(directory: Path) -> tuple[int, float | None]:
    """Return the size of all unsent records in bytes, and when sending from them stopped.

    The time, in Unix seconds, is the oldest of the spools with unsent records; None: all are sent.
    """
    total, stopped = 0, None
    for spool in directory.glob("*.jsonl"):
        offset_file = spool.with_suffix(".sent")
        with contextlib.suppress(OSError, ValueError):  # sent and removed meanwhile
            sent = _offset(offset_file)
            size = spool.stat().st_size - sent
            if size > 0:
                last = offset_file.stat().st_mtime if sent else _started(spool)
                total, stopped = total + size, min(last, stopped or last)
    return total, stopped


def _offset(file: Path) -> int:
    """Return the offset reached; 0 if nothing of it is left: what arrives again is stored once."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_bytes())
    return 0


def _started(spool: Path) -> float:
    """Return when a spool was created, in Unix seconds; its name starts with the milliseconds."""
    return int(spool.name.partition("-")[0]) / 1000


def _refusal(error: Exception) -> str | None:
    """Return why MLflow will never accept a record; None: it may."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, KeyError):
        return "MLflow has no run for it"
    if isinstance(error, DataError) or (
        isinstance(error, MlflowException) and error.error_code in REFUSALS
    ):
        return _first_line(error)
    return None


def _merge_metrics(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield records with their size in bytes; consecutive metrics of a run are merged.

    A merged record has at most METRICS_A_REQUEST metrics. A damaged line yields None.
    """
    pending: dict[str, Any] | None = None
    size = 0
    for line in lines:
        record = read_line(line)
        points = record["metrics"] if record and record["op"] == "metrics" else None
        if pending is not None and record is not None and points is not None:
            count = len(pending["metrics"]) + len(points)
            if record["run"] == pending["run"] and count <= METRICS_A_REQUEST:
                pending["metrics"] += points
                size += len(line)
                continue
        if pending is not None:
            yield size, pending
        pending, size = (None, 0) if points is None else (record, len(line))
        if points is None:
            yield len(line), record
    if pending is not None:
        yield size, pending


def _split_record(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a record into one per metric, parameter or tag."""
    if record["op"] == "metrics":
        return [{**record, "metrics": [metric]} for metric in record["metrics"]]
    if record["op"] in ("params", "tags"):
        return [
            {**record, record["op"]: {name: value}} for name, value in record[record["op"]].items()
        ]
    return [dict(record)]


def _first_line(error: Exception) -> str:
    return str(redact((str(error).strip().splitlines() or [type(error).__name__])[0]))


def follow(own: Path, uri: str, ended: threading.Event) -> int:
    """Send a run's spool and orphans until `ended` is set and nothing is left; 0: all has arrived.

    REPLACED: the database is another one now, which only a new process can open.

    Orphans go first, because the run may resume a run of theirs. After the end the run's own spool
    goes first, because the run waits for it.
    """
    writer = MlflowWriter(uri, own.parent)
    sender, is_down, failed_passes, touched = SpoolSender(writer), False, 0, 0.0
    with ExitStack() as stack:
        # None: the run died at once, and another sender took it
        own_stream = claim(own, shared=True)
        if own_stream is not None:
            stack.enter_context(own_stream)
        while True:
            if time.monotonic() > touched + TOUCH_SECONDS:
                touched = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(own)  # to hosts that do not see the lock it is alive
            if writer.is_replaced:
                database.send_again(own.parent)
                return REPLACED
            # read before the spool, so that nothing written before the end is missed
            is_last = ended.is_set()
            orphans = sorted(path for path in own.parent.glob("*.jsonl") if path != own)
            has_failed = is_down = is_down and not writer.is_writable()
            for spool in [] if is_down else [own, *orphans] if is_last else [*orphans, own]:
                try:
                    if spool != own:
                        _send_orphan(sender, spool)
                    elif own_stream is not None:
                        sender.send(own, own_stream, is_over=is_last)
                        if is_last:
                            own_stream = None
                except Exception as error:  # a failing server delays records, never the run
                    _log(f"{spool.name}: {type(error).__name__}: {redact(str(error))}")
                    has_failed, is_down = True, not writer.is_writable()
                    if is_down:  # the others would fail, too
                        break
            failed_passes += has_failed and is_last
            if is_last and (not has_failed or is_down or failed_passes == LAST_PASSES):
                return int(has_failed)
            if is_last:
                time.sleep(RETRY_SECONDS)
            else:
                ended.wait(RETRY_SECONDS if has_failed else POLL_SECONDS)


def _send_orphan(replay: SpoolSender, spool: Path) -> None:
    adopted = adopt(spool)
    stream = claim(adopted, shared=False) if adopted else None
    if adopted and stream:
        with stream:
            replay.send(adopted, stream, is_over=True)


def main() -> int:
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    code = follow(Path(sys.argv[1]), os.environ[URI], ended)
    if code == REPLACED:
        os.execv(
            sys.executable, [sys.executable, "-m", "cloze.flows.tracking.spool_sender", sys.argv[1]]
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
