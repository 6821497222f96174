"""Which files of the runs' directory the page hands out, and under what rules the browser shows them.

A file is handed out if, links followed, it is a plain file below the runs' directory, of a known kind, with no part of its place
beginning with `.` or `_` but for the logs of stages and the pages of the night.
"""

from __future__ import annotations

from pathlib import Path

from flows.night import journal

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".jsonl": "text/plain; charset=utf-8",
    ".tsv": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".log": "text/plain; charset=utf-8",
}
LOGS, NIGHT = "_logs", journal.DIRECTORY
HEADERS = {  # a stored page runs no script, is of no origin, and loads nothing from anywhere
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MOST_LISTED = 12


def find(runs: Path, name: str) -> Path | None:
    """The file that is handed out under that name, relative to the runs' directory; None: none is."""
    if "\0" in name or not _is_allowed(Path(name)):
        return None
    try:
        root = runs.resolve(strict=True)
        place = (root / name).resolve(strict=True)
        inside = place.relative_to(root)  # a link may lead anywhere
    except (OSError, ValueError, RuntimeError):
        return None
    return place if _is_allowed(inside) and place.is_file() else None


def _is_allowed(place: Path) -> bool:
    if place.is_absolute() or place.suffix not in TYPES or len(place.parts) < 2:
        return False
    first, *rest = place.parts
    hidden = [part for part in rest if part.startswith((".", "_"))] + (
        [first] if first.startswith((".", "_")) and first != NIGHT else []
    )
    return not hidden or (hidden == [LOGS] and place.suffix == ".log")


def listed(runs: Path, artifact: Path) -> list[tuple[str, str]]:
    """Name and place, relative to the runs' directory, of what a person may want to see of an artifact: pages first, logs last."""
    found = [path for pattern in ("*.html", "*.jsonl", "*.tsv", f"{LOGS}/*.log") for path in sorted(artifact.glob(pattern))]
    shown = []
    for path in found:
        try:
            place = path.resolve().relative_to(runs.resolve()).as_posix()
        except (OSError, ValueError):
            continue
        if find(runs, place) is not None:
            shown.append((path.name, place))
    return shown[:MOST_LISTED]
