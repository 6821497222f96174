"""Nights that were missed: which they are, what each evaluates, and that nothing is done twice."""

from __future__ import annotations

import datetime
import functools
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.artifacts.artifact import Manifest, write_manifest
from cloze.core.errors import StoppedError, UsageError
from cloze.core.stages.execute import BuildResult
from cloze.flows.commands.nightly import _show_preview
from cloze.flows.nightly import missed, nightly_run, suite
from cloze.flows.nightly.journal import Journal
from cloze.flows.nightly.missed import Schedule
from cloze.flows.nightly.result import render_trend
from cloze.flows.nightly.suite import NightSettings
from cloze.flows.prefect import schedules
from cloze.flows.run.session import RunSession
from tests.flows.nightly.test_looking import found, training
from tests.flows.nightly.test_night import never
from tests.flows.nightly.test_night import runs as runs

DAILY = "30 3 * * * UTC"
SUITE = {"night": {"checkpoints": ["newest"], "promote_if": "not_worse"}}


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc).timestamp()


def schedule(text: str = DAILY) -> Schedule:
    return Schedule(text, functools.partial(schedules._times, [schedules.parse(text)]))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the clock of the nights; 2026-11-24 12:00 at first."""

    def set_clock(text: str) -> None:
        monkeypatch.setattr(time, "time", lambda: at(text))

    set_clock("2026-11-24T12:00")
    return set_clock


def write(place: Path, letter: str, moments: dict[int, str]) -> None:
    """A training with a checkpoint of each step at its moment."""
    training(place, letter * 64, list(moments))
    for step, moment in moments.items():
        mark = place / "checkpoints" / f"step-{step:08d}" / "checkpoint.json"
        os.utime(mark, (at(moment), at(moment)))


class Evaluations:
    """Runs sessions without any training. Attributes: held: steps by session; failing: steps."""

    def __init__(self) -> None:
        self.held: list[list[int]] = []
        self.failing: set[int] = set()

    def __call__(self, session: RunSession) -> None:
        steps = {int(str(step.node.values["of"]).split(".")[1]) for step in session.steps}
        self.held.append(sorted(steps))
        for step in session.steps:
            number = int(str(step.node.values["of"]).split(".")[1])
            if number in self.failing:
                session.failures[step.name] = RuntimeError("no space")
                continue
            metrics = {"task": "sst2", "metric": "accuracy", "metrics": {"accuracy": number / 100}}
            manifest = Manifest(
                stage="finetune", version=1, fingerprint=step.fingerprint, parents={}, config={},
                files=(), summary=metrics,
            )  # fmt: skip
            os.makedirs(step.artifact, exist_ok=True)
            write_manifest(step.artifact, manifest)
            session.results[step.name] = BuildResult(
                artifact=step.artifact, cached=False, seconds=1.0, manifest=manifest
            )


def make_up(since: str, run: Any, **settings: Any) -> Any:
    night = {**SUITE["night"], **settings}
    return nightly_run.nightly_run(
        suite.load("night", {"night": night}), since=since, schedule=schedule(), run=run
    )


WEEK = {10: "2026-11-20T12:00", 20: "2026-11-21T12:00", 25: "2026-11-21T18:00",
        30: "2026-11-23T01:00"}  # fmt: skip


def scheduled(runs: Path) -> list[float]:
    return [line["scheduled"] for line in Journal(runs).nights()]


def test_each_missed_night_evaluates_what_was_newest_then_and_once(runs: Path, now: Any) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    run = Evaluations()
    outcome = make_up("2026-11-20", run)
    assert run.held == [[10, 25, 30]]  # in one graph, side by side
    lines = sorted(Journal(runs).nights(), key=missed.time_of)
    assert [line["scheduled"] for line in lines] == [
        at(f"2026-11-{day}T03:30") for day in (21, 22, 23)
    ]
    assert [[result["step"] for result in line["results"]] for line in lines] == [[10], [25], [30]]
    assert [bool(line["champion"]) for line in lines] == [False, False, True]
    assert outcome.message == (
        "3 of 4 new checkpoints evaluated; 1 skipped: not the newest of a training; 4 nights since "
        "2026-11-20 12:00, the first checkpoint (30 3 * * * UTC): 3 to make up, 0 held, 1 "
        "without a checkpoint"
    )
    before = Journal(runs).path.read_bytes()
    again = make_up("2026-11-20", never)
    assert "0 to make up, 3 held, 1 without a checkpoint" in again.message
    assert Journal(runs).path.read_bytes() == before
    assert again.as_json()["evaluated"] == []


def test_a_night_that_was_held_is_not_made_up_though_a_later_one_saw_more(
    runs: Path, now: Any
) -> None:
    """A server that was away for two nights: the third one saw all, and evaluated the newest."""
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    now("2026-11-23T04:00")
    run = Evaluations()
    nightly_run.nightly_run(suite.load("night", SUITE), run=run)
    assert run.held == [[30]]
    now("2026-11-24T12:00")
    outcome = make_up("2026-11-20", run)
    assert run.held[1:] == [[10, 25, 30]]  # with the champion
    assert sorted(scheduled(runs)) == [0.0, at("2026-11-21T03:30"), at("2026-11-22T03:30")]
    assert "2 to make up, 1 held, 1 without" in outcome.message
    assert outcome.champion.step == 30


def test_what_failed_or_waited_in_a_night_is_tried_again(runs: Path, now: Any) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    write(runs / "two" / "pretrain-bbb", "b", {40: "2026-11-21T13:00"})
    run = Evaluations()
    run.failing = {25}
    first = make_up("2026-11-20", run, limit=1)
    assert first.errors
    assert "1 waiting for the next nightly run" in first.message
    run.failing = set()
    second = make_up("2026-11-20", run)
    assert sorted(row["step"] for row in second.evaluated) == [25, 40]
    assert "1 to make up, 2 held" in second.message
    third = make_up("2026-11-20", never)
    assert third.evaluated == []


@pytest.mark.parametrize("error", [StoppedError("stopped"), KeyboardInterrupt(), OSError("gone")])
def test_a_kill_leaves_all_to_the_next_call(runs: Path, now: Any, error: BaseException) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)

    def end(session: RunSession) -> None:
        raise error

    with pytest.raises(type(error)):
        make_up("2026-11-20", end)
    assert Journal(runs).nights() == []
    make_up("2026-11-20", Evaluations())
    assert len(scheduled(runs)) == 3


@pytest.mark.parametrize("lines", [1, 2])
def test_a_kill_between_two_lines_of_the_journal_loses_no_night(
    runs: Path, now: Any, lines: int
) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    make_up("2026-11-20", Evaluations())
    journal = Journal(runs)
    whole = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(whole[:lines]) + whole[lines][:40])
    make_up("2026-11-20", Evaluations())
    results = [result["step"] for line in journal.nights() for result in line["results"]]
    assert sorted(results) == [10, 25, 30]
    assert journal.champion().step == 30  # type: ignore[union-attr]


def test_two_at_once_and_a_night_meanwhile_are_refused(runs: Path, now: Any) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    refused = []

    def run(session: RunSession) -> None:
        for since in ("2026-11-20", None):
            with pytest.raises(UsageError, match="a nightly run is in progress") as error:
                nightly_run.nightly_run(suite.load(), since=since, run=never)
            refused.append(error)
        Evaluations()(session)

    make_up("2026-11-20", run)
    assert len(refused) == 2


@pytest.mark.parametrize(
    "since",
    ["2027-01-01", "2026-11-24T12:00:01", "tomorrow", "2026-02-29", "2026-11-31", "", " 7d", "7w",
     "9" * 30 + "d", "9999999d", "0000-01-01", "24.11.2026", "2026-11-20T25:00", "-1d", "٣٣"],
)  # fmt: skip
def test_a_time_that_is_none_or_to_come_is_refused(runs: Path, now: Any, since: str) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    with pytest.raises(UsageError, match="since") as error:
        make_up(since, never)
    assert error.value.exit_code == 2
    assert repr(since) in str(error.value)
    assert not Journal(runs).path.exists()


@pytest.mark.parametrize("since", ["1d", "2026-11-24", "2024-02-29", "0d"])
def test_without_checkpoints_there_is_no_night_to_make_up(runs: Path, now: Any, since: str) -> None:
    outcome = make_up(since, never)
    assert outcome.message.startswith("No new checkpoints; ")
    assert ": 0 to make up, 0 held, " in outcome.message
    assert "the first" not in outcome.message
    assert not Journal(runs).path.exists()


def test_a_late_run_of_the_server_still_works_after_earlier_nights_were_made_up(
    runs: Path, now: Any
) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    make_up("2026-11-20", Evaluations())
    write(runs / "two" / "pretrain-bbb", "b", {40: "2026-11-23T13:00"})
    run = Evaluations()

    def late(start: float) -> Any:
        loaded = suite.load("night", SUITE)
        return nightly_run.nightly_run(loaded, scheduled_start=start, run=run)

    assert late(at("2026-11-23T03:30")).message.startswith("Nothing to do")
    assert late(at("2026-11-24T03:30")).evaluated[0]["step"] == 40


def test_the_trend_page_has_a_made_up_night_at_its_time(runs: Path, now: Any) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    now("2026-11-23T04:00")
    nightly_run.nightly_run(suite.load("night", SUITE), run=Evaluations())
    now("2026-11-24T12:00")
    make_up("2026-11-20", Evaluations())
    journal = Journal(runs)
    page = render_trend(journal.nights(), journal.changes(), "UTC")
    rows = [page.index(f'<td class="when">2026-11-{day}') for day in (
        "23 04:00", "22 03:30", "21 03:30"
    )]  # fmt: skip
    assert rows[-3:] == sorted(rows)


def test_a_dry_run_shows_the_nights_and_changes_nothing(
    runs: Path, now: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write(runs / "demo" / "pretrain-aaa", "a", WEEK)
    before = sorted(runs.rglob("*"))
    shown = nightly_run.preview(suite.load("night", SUITE), "2026-11-20", schedule())
    assert sorted(runs.rglob("*")) == before
    assert len(set(shown["nights"].values())) == 3
    _show_preview(shown)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "demo 25 evaluate (night 2026-11-22 03:30)" in lines
    assert any("3 to make up, 0 held, 1 without a checkpoint" in line for line in lines)


@given(
    dates=st.lists(st.integers(1, 40), unique=True).map(sorted),
    moments=st.lists(st.integers(1, 50), max_size=12),
    held=st.lists(st.integers(1, 50), max_size=4),
    since=st.integers(1, 50),
)
def test_every_checkpoint_is_in_one_night_at_most_and_none_is_lost(
    dates: list[int], moments: list[int], held: list[int], since: int
) -> None:
    lines = [{"started": moment, "seen": []} for moment in held]
    journal: Any = SimpleNamespace(nights=lambda: lines, evaluated=set, failures=Counter)
    existing = [
        found(f"{number:064}", 1, written=moment, newest=True)
        for number, moment in enumerate(moments)
    ]
    settings = NightSettings(limit=99)
    times = Schedule("", lambda start, end: [date for date in dates if start <= date <= end])
    choice = missed.choose(existing, journal, settings, times, since, 50)
    assert len({item.key for item in choice.selected}) == len(choice.selected)
    for item in existing:
        night = min((date for date in dates if date >= item.written), default=None)
        is_due = item.written >= since if night is None else night >= since
        assert (item.key in {each.key for each in choice.selected}) == is_due
        assert choice.nights.get(item.key) == (night if is_due else None)


@pytest.mark.parametrize(
    ("text", "start", "end", "dates"),
    [
        ("30 2 * * * Europe/Berlin", "2026-03-28T00:00", "2026-03-30T12:00", 3),  # no 02:30
        ("30 2 * * * Europe/Berlin", "2026-10-24T00:00", "2026-10-26T12:00", 3),  # 02:30 twice
        ("30 2 * * * Europe/Berlin", "2026-03-29T00:30:01", "2026-03-31T12:00", 3),
        ("0 0 29 2 * UTC", "2019-01-01", "2029-01-01", 3),
        ("0 3 L * * UTC", "2028-02-01", "2028-04-01", 2),
        ("30 3 * * * UTC", "2020-01-01", "2026-01-01", 2192),  # more than Prefect's thousand
        ("0 * * * * America/New_York", "2026-11-01T00:00", "2026-11-01T23:59", 23),
        ("30 23 * * 1-5 Australia/Lord_Howe", "2026-04-03", "2026-04-10", 5),
    ],
)
def test_nights_are_those_that_prefect_starts(text: str, start: str, end: str, dates: int) -> None:
    times = list(schedule(text).times(at(start), at(end)))
    assert len(times) == dates
    assert times == sorted(set(times))
    assert at(start) <= times[0]
    assert times[-1] <= at(end)


@pytest.mark.parametrize(
    ("found", "origin"),
    [
        ([("nightly", "0 1 * * *"), ("own", "0 6 * * *")], "0 1 * * * UTC in Prefect"),
        ([("own", "0 6 * * *"), (None, "0 7 * * *")], "0 6 * * * UTC, 0 7 * * * UTC in Prefect"),
        ([], "30 3 * * * UTC of prefect.yaml: nightly-evaluation has no schedule in Prefect"),
    ],
)
def test_the_hour_set_in_prefect_counts_or_else_what_an_operator_has_made(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[str | None, str]], origin: str
) -> None:
    own = [SimpleNamespace(slug=slug, schedule=schedules.parse(text)) for slug, text in found]
    client = SimpleNamespace(
        read_deployment_by_name=lambda name: SimpleNamespace(id=name),
        read_deployment_schedules=lambda key: own,
    )
    monkeypatch.delenv(schedules.NIGHTLY, raising=False)
    monkeypatch.setattr(schedules, "connected", lambda api: nullcontext(client))
    known = schedules.night_schedule("http://prefect/api")
    assert known.origin == origin
    a_day = [*known.times(at("2026-11-20"), at("2026-11-21") - 1)]
    assert len(a_day) == origin.count("* * * UTC")


def test_without_a_server_the_file_or_the_environment_says_when_nights_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(schedules.NIGHTLY, raising=False)
    assert schedules.night_schedule(None).origin == (
        "30 3 * * * UTC of prefect.yaml: no Prefect server is known"
    )
    monkeypatch.setenv(schedules.NIGHTLY, "0 22 * * 1-5 Europe/Berlin")
    assert schedules.night_schedule(None).origin.startswith("0 22 * * 1-5 Europe/Berlin of CLOZE")
    away = schedules.night_schedule("http://127.0.0.1:9/api").origin
    assert "Prefect at http://127.0.0.1:9/api" in away
    monkeypatch.setenv(schedules.NIGHTLY, "0 22 31 2 *")
    with pytest.raises(UsageError, match="never comes"):
        schedules.night_schedule(None)
