"""The files that fine-tuning and evaluation write beside the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.core import storage

METRICS = "metrics.json"


def write_json(path: str, content: Mapping[str, Any]) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())
