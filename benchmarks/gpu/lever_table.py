"""Rows of the levers to one table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = (
    "| case | way | ms today | ms | times as fast | range | MFU today | MFU | loss differs by | GB "
    "| sizes | note |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def markdown(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]
) -> str:
    """The table, in the order of the names; a row that is missing says so."""
    found = {row["row"]: row for row in rows}
    head = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device")
    return "\n".join(
        [f"# Levers on {machine['device']}", "", head, "", HEAD, *(_line(n, found.get(n)) for n in names)]
    ) + "\n"  # fmt: skip


def _line(name: str, row: Mapping[str, Any] | None) -> str:
    _, case, way = name.split(": ", 2)
    if row is None or row["ok"] is not True:
        why = "not run yet" if row is None else row["error"]
        failed = "**failed**: " if row is not None and row["ok"] is False else ""
        return f"| {case} | {way} |" + " |" * 9 + f" {failed}{why} |"
    figures = row["figures"]
    low, high = figures["range"]
    cells = (
        case,
        way,
        f"{figures['today_ms']:.1f}",
        f"{figures['ms']:.1f}",
        f"{figures['ratio']:.3f}",
        f"{low:.3f} to {high:.3f}",
        _share(figures["today_mfu"]),
        _share(figures["mfu"]),
        f"{figures['loss']:.1e}",
        f"{figures['memory_gb']:.1f}" if figures["memory_gb"] else "",
        figures["sizes"],
        figures["note"],
    )
    return f"| {' | '.join(map(str, cells))} |"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
