"""The page of `cloze attention`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.humanize import templates_in

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
