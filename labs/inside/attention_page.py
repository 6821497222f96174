"""Views of attention maps: the page of `cloze attention`, and its table for a terminal."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.humanize import templates_in

if TYPE_CHECKING:
    from rich.table import Table

TEMPLATES = Path(__file__).parent / "templates"
MAX_WEIGHTS = 32_000_000  # of a page, which has 4/3 bytes per weight


class AttentionPage:
    """One HTML file with the maps of texts, which loads nothing else."""

    def __init__(self) -> None:
        self._texts: list[dict[str, Any]] = []
        self._weights = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add a text: `tokens`, `second` and `maps` as the command prints them.

        Raises:
            UsageError: the page would have more than `MAX_WEIGHTS`.
        """
        rows = [row for layer in answer["maps"] for head in layer for row in head]
        weights = bytes(round(255 * weight) for row in rows for weight in row)
        self._weights += len(weights)
        if self._weights > MAX_WEIGHTS:
            raise UsageError(
                f"the page would have more than {MAX_WEIGHTS:,} weights, too many for a browser; "
                f"give fewer or shorter texts"
            )
        self._texts.append(
            {
                "tokens": answer["tokens"],
                "second": answer["second"],
                "heads": [len(layer) for layer in answer["maps"]],
                "weights": base64.b64encode(weights).decode(),
            }
        )

    def write(self, path: str, checkpoint: str) -> int:
        """Write the page; return the number of texts. Args: checkpoint: its name for readers."""
        content = {"checkpoint": checkpoint, "texts": self._texts}
        data = json.dumps(content).replace("<", "\\u003c")
        page = templates_in(TEMPLATES).get_template("attention.html").render(data=data)
        storage.write_bytes(path, page.encode())
        return len(self._texts)


def head_table(answer: Mapping[str, Any]) -> Table:
    """Return a line per head: mean weights of neighbours, entropy, and the largest weight."""
    from cloze.flows.views import terminal

    tokens = answer["tokens"]
    names = ("head", "previous", "next", "itself", "first", "last", "entropy", "largest weight")
    table = terminal.table_of(names, right=names[:-1])
    for layer, heads in enumerate(answer["maps"], 1):
        for head, rows in enumerate(heads, 1):
            cells = [f"{layer}.{head}"]
            for offset in (-1, 1, 0):
                at = [
                    row[query + offset]
                    for query, row in enumerate(rows)
                    if 0 <= query + offset < len(row)
                ]
                cells.append(f"{sum(at) / max(1, len(at)):.2f}")
            for position in (0, -1):
                cells.append(f"{sum(row[position] for row in rows) / len(rows):.2f}")
            entropy = -sum(weight * math.log(weight) for row in rows for weight in row if weight)
            cells.append(f"{entropy / len(rows):.2f}")
            weight, query, key = max(
                (weight, query, key)
                for query, row in enumerate(rows)
                for key, weight in enumerate(row)
            )
            link = f"{tokens[query].strip()} → {tokens[key].strip()} {weight:.2f}"
            table.add_row(*cells, terminal.ellipsized(link))
    return table
