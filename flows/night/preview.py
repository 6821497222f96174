"""What a night would do: `cloze nightly --dry-run`."""

from __future__ import annotations

from typing import Any

from flows.night.looking import Found
from flows.night.night import Night
from flows.night.suite import Suite


def preview(wanted: Suite, since: str | None = None) -> dict[str, Any]:
    """What a night would do; it holds and changes nothing."""
    night = Night(wanted, since)
    choice, now = night.outcome.choice, night.journal.champion()
    night.take(choice.chosen)
    steps = [] if night.nothing else night.session().steps
    return {
        "new": [_found_json(item) for item in choice.new],
        "chosen": [item.key for item in choice.chosen],
        "waiting": [item.key for item in choice.waiting],
        "passed": [item.key for item in choice.passed],
        "nodes": [
            {"name": step.name, "stage": step.node.stage, "why": step.why, "cached": step.cached, "seconds": step.last_seconds}
            for step in steps
        ],
        "champion": now.as_json() if now else None,
    }


def _found_json(found: Found) -> dict[str, Any]:
    return {
        "key": found.key, "run": found.run, "step": found.step, "path": found.path, "written": found.written,
        "milestone": found.milestone, "newest": found.newest,
    }  # fmt: skip
