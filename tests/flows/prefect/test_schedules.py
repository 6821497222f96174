"""Schedules that Prefect would take and never start are refused, wherever they come from."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import UsageError
from cloze.flows.prefect import schedules

NEVER = (
    "30 3 31 2 *",
    "30 3 30 2 *",
    "0 0 31 4,6,9,11 *",
    "0 0 30-31 feb *",
    "*/5 * 30 2 *",
    "0 0 31 2 1",
)
ONCE_IN_A_WHILE = ("30 3 29 2 *", "0 0 29 2 1", "0 3 L 2 *", "30 2 * * *", "0 0 31 * *")

WRONG = ("", "0", "@daily", "60 3 * * *", "30 3 0 * *", "30 3 * * * Mars/Base", "R R * * *")


@pytest.mark.parametrize("zone", ["", " Europe/Berlin", " UTC"])
@pytest.mark.parametrize("text", NEVER)
def test_a_day_that_never_comes_is_refused(
    text: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UsageError, match=r"CLOZE_NIGHTLY: .*never comes: .*change its day or month"
    ):
        schedules.parse(text + zone, schedules.NIGHTLY)
    monkeypatch.setenv(schedules.NIGHTLY, text + zone)
    entry = {"schedules": [{"slug": "nightly", "cron": "30 3 * * *"}]}
    with pytest.raises(UsageError, match="never comes"):
        schedules.desired_schedules({"nightly-evaluation": entry}, {})


@pytest.mark.parametrize("text", ONCE_IN_A_WHILE)
def test_a_day_that_comes_seldom_is_not(text: str) -> None:
    assert schedules.parse(f"{text} Europe/Berlin").cron == text


@pytest.mark.parametrize(
    "schedule",
    [
        *({"slug": "s", "cron": text} for text in (*NEVER, *WRONG)),
        {"slug": "s", "interval": 0},
        {"slug": "s", "interval": 3600},
        {"slug": "s", "rrule": "FREQ=DAILY"},
        {"slug": "s", "cron": None},
        {"cron": "30 3 31 2 *"},
        {"slug": "s", "cron": "30 3 * * *", "timezone": "Mars/Base"},
    ],
    ids=str,
)
def test_a_files_schedule_is_checked_as_the_environments(schedule: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="deployment data: a schedule"):
        schedules.desired_schedules({"data": {"schedules": [schedule]}}, {})


@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    day=st.integers(1, 31),
    month=st.integers(1, 12),
)
def test_exactly_days_of_the_calendar_are_accepted(
    minute: int, hour: int, day: int, month: int
) -> None:
    leap = datetime(2028, 1, 1)
    exists = any(
        (each.day, each.month) == (day, month)
        for each in (leap + timedelta(days=number) for number in range(366))
    )
    text = f"{minute} {hour} {day} {month} *"
    if exists:
        assert schedules.parse(text).cron == text
        return
    with pytest.raises(UsageError, match="never comes"):
        schedules.parse(text)
