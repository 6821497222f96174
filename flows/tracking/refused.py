"""Records that MLflow refuses: set aside with the reason, so that the others arrive, and told by `cloze doctor`.

refused/records.jsonl    {"time": Unix seconds, "reason": …, "record": …}
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path("refused") / "records.jsonl"  # below the spools' directory


def set_aside(directory: Path, record: Mapping[str, Any], reason: str) -> None:
    """Append a record that MLflow will never take."""
    path = directory / FILE
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"time": time.time(), "reason": reason, "record": record}) + "\n")


def refused(directory: Path, since: float = 0.0) -> Counter[str]:
    """How many records were set aside since a moment in Unix seconds, by reason."""
    path = directory / FILE
    if not path.exists():
        return Counter()
    found: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry["time"] >= since:
            found[entry["reason"]] += 1
    return found


def send_again(directory: Path) -> int:
    """Put what was set aside into a spool of its own, which the next run's sender takes up. Returns how many records there were."""
    path = directory / FILE
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    records = []
    for line in lines:
        try:
            record = json.loads(line)["record"]
        except (ValueError, KeyError):
            continue
        if "op" in record:  # a damaged line has nothing to send
            records.append(json.dumps(record) + "\n")
    if records:
        (directory / f"{int(time.time() * 1000)}-again.jsonl").write_text("".join(records), encoding="utf-8")
    path.unlink(missing_ok=True)
    return len(records)
