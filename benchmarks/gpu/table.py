"""Rows to Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def markdown(rows: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """The checks, the table, and what failed."""
    parts = [
        f"# {machine['device']}",
        ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device"),
    ]
    checks = [row for row in rows if row["row"].startswith("check: ")]
    if checks:
        parts += ["## What must be equal", "\n".join(_check(row) for row in checks)]
    speeds = [row for row in rows if not row["row"].startswith("check: ")]
    if speeds:
        parts += ["## Speed, real tokens", _table(speeds)]
    lost = [f"- {row['row']}: {row['error']}" for row in speeds if not row["ok"]]
    if lost:
        parts += ["## Without figures", "\n".join(lost)]
    return "\n\n".join(parts) + "\n"


def _check(row: Row) -> str:
    name = row["row"].removeprefix("check: ")
    how = {True: "yes", False: "NO", None: "not run"}[row["ok"]]
    more = ", ".join(f"{key} {_number(value)}" for key, value in row.get("figures", {}).items())
    return f"- {name}: **{how}** ({row.get('error') or more}; {row['took']:.0f} s)"


def _table(rows: Sequence[Row]) -> str:
    found = {row["row"]: row["figures"] for row in rows if row["ok"]}
    lines = [
        "| case | way | tokens/s | padded | MFU | GB | waits for data | × bare | × theirs | × flash |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in found.items():
        case, _, way = name.partition(": ")
        cells = [
            case,
            way,
            f"{figures['tokens_per_second']:,.0f}",
            f"{figures['padded_tokens_per_second'] or 0:,.0f}",
            _share(figures.get("mfu")),
            _number(figures.get("memory_gb")),
            _share(figures.get("data_wait")),
            *(
                _beside(figures, found.get(f"{case}: {other}")) if way != other else ""
                for other in ("bare", "theirs", "flash")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(figures: Row, other: Row | None) -> str:
    return (
        "" if other is None else f"{figures['tokens_per_second'] / other['tokens_per_second']:.2f}"
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
