"""Nights that were missed: their checkpoints, each the newest as of its night.

A night is a time of the schedule. It was held if a nightly run began between it and the next one.
Its checkpoints are those written since the night before. A checkpoint that has results, or that its
own night saw, is not evaluated again.
"""

from __future__ import annotations

import datetime
import math
import zoneinfo
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cloze.core.humanize import agree
from cloze.flows.nightly import discovery
from cloze.flows.nightly.discovery import CheckpointInfo, CheckpointSelection
from cloze.flows.nightly.journal import CHAMPION, Journal
from cloze.flows.nightly.suite import NightSettings


class Schedule(NamedTuple):
    """When nights are due."""

    origin: str = "no schedule"  # the schedule in words, and where it is from
    # all nights between two times, in Unix seconds
    times: Callable[[float, float], Sequence[float]] = lambda start, end: ()


NO_SCHEDULE = Schedule()


def time_of(line: Mapping[str, Any]) -> float:
    """Return the time of a journal's night: of one that was made up, when it was due."""
    return float(line.get("scheduled") or line["started"])


def choose(
    existing: Sequence[CheckpointInfo],
    journal: Journal,
    settings: NightSettings,
    schedule: Schedule,
    since: float,
    now: float,
) -> CheckpointSelection:
    """Select the checkpoints of the nights that were missed since then, and since the last night.

    Args:
        existing: all checkpoints, oldest first.
    """
    existing, evaluated = discovery.without_copies(existing), journal.evaluated()
    first = min((item.written for item in existing), default=since)
    dates = [-math.inf, *schedule.times(first, now)]  # no earlier night has checkpoints
    seen: dict[int, set[str]] = {}  # by number of the night
    for line in journal.nights():
        seen.setdefault(bisect_right(dates, time_of(line)) - 1, set()).update(line["seen"])

    def select(start: float, end: float, done: Collection[str]) -> CheckpointSelection:
        written = _written(existing, start, end)
        kinds, limit = settings.checkpoints, settings.limit
        return discovery.choose(written, {*evaluated, *done}, checkpoints=kinds, limit=limit)

    due = [number for number, date in enumerate(dates) if number and date >= since]
    every = {n: select(dates[n - 1], dates[n], seen.get(n, ())) for n in due}
    made_up = {number: choice for number, choice in every.items() if choice.selected}
    # No end: a file server whose clock is ahead writes in the future.
    rest = select(max(dates[-1], math.nextafter(since, -math.inf)), math.inf, ())
    choices, held = (*made_up.values(), rest), len({*due} & seen.keys() - made_up.keys())
    start = format_time(max(since, first), settings.timezone)
    return replace(
        rest,
        new=tuple(item for choice in choices for item in choice.new),
        selected=tuple(item for choice in choices for item in choice.selected),
        waiting=tuple(item for choice in choices for item in choice.waiting),
        nights={item.key: dates[n] for n, choice in made_up.items() for item in choice.new},
        about=f"{agree(f'{len(due)} nights since')} {start}"
        f"{', the first checkpoint' * (first > since)} "
        f"({schedule.origin}): {len(made_up)} to make up, {held} held, "
        f"{len(due) - len(made_up) - held} without a checkpoint",
    )


def _written(existing: Sequence[CheckpointInfo], start: float, end: float) -> list[CheckpointInfo]:
    """Return the checkpoints written after `start` and until `end`, each the newest as of then."""
    written = [item for item in existing if item.written <= end]
    steps = {item.training: item.step for item in sorted(written, key=lambda item: item.step)}
    return [
        replace(item, newest=item.step == steps[item.training])
        for item in written
        if item.written > start
    ]


def split(line: Mapping[str, Any], choice: CheckpointSelection) -> list[dict[str, Any]]:
    """Return a journal's line as one for each night that is made up, and one for what came last."""
    keys: dict[float, list[str]] = {}
    for item in choice.new:
        keys.setdefault(choice.nights.get(item.key, 0.0), []).append(item.key)
    return [
        {
            **line,
            "scheduled": night,
            "results": [each for each in line["results"] if each["key"] in own],
            "failed": {key: why for key, why in line["failed"].items() if key in own},
            **{name: [key for key in line[name] if key in own] for name in ("seen", "gone")},
            **({} if line["candidate"] in own else {"candidate": None, CHAMPION: None}),
        }
        for night, own in sorted(keys.items(), reverse=True)
    ]


def format_time(seconds: float, zone: str) -> str:
    """Return `2026-11-20 03:30`, in the time zone."""
    moment = datetime.datetime.fromtimestamp(seconds, zoneinfo.ZoneInfo(zone))
    return moment.strftime("%Y-%m-%d %H:%M")
