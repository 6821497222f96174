"""A lost worker costs a try where the engine allows another one; what has failed is not tried."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core import errors
from cloze.core.errors import ClozeError, DataError
from cloze.pipeline.runners import fan_out
from cloze.pipeline.runners.base import WorkerLostError

BUILD: Any = object()


def backend(monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    monkeypatch.setattr(fan_out, "open_backend", lambda build: SimpleNamespace(**given))


@pytest.mark.parametrize(
    ("retries", "losses", "tries", "ends_well"),
    [
        (0, 0, 1, True),
        (0, 1, 1, False),
        (3, 1, 2, True),
        (3, 3, 4, True),
        (3, 4, 4, False),
    ],
)
def test_as_often_as_the_engine_allows(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    retries: int,
    losses: int,
    tries: int,
    ends_well: bool,
) -> None:
    backend(monkeypatch, retries=retries)
    begun: list[int] = []

    def run() -> None:
        begun.append(1)
        if len(begun) <= losses:
            raise WorkerLostError(f"worker {len(begun)} was killed")

    with caplog.at_level(logging.WARNING):
        if ends_well:
            fan_out.retry_lost_workers(BUILD, run, "read")
        else:
            with pytest.raises(WorkerLostError, match=f"^worker {tries} was killed$"):
                fan_out.retry_lost_workers(BUILD, run, "read")
    assert len(begun) == tries
    assert caplog.messages == [
        f"retry {number} of {retries} of step read: worker {number} was killed"
        for number in range(1, tries)
    ]


def test_no_other_error_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend(monkeypatch, retries=3)
    begun: list[int] = []

    def run() -> None:
        begun.append(1)
        raise DataError("the file is cut")

    with pytest.raises(DataError, match="the file is cut"):
        fan_out.retry_lost_workers(BUILD, run, "read")
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (DataError("the file is cut"), DataError, "^the file is cut$"),
        (
            RuntimeError(f"Beam: {errors.wrap_message('unit 3 is bad')} [while running 'x']"),
            ClozeError,
            "^unit 3 is bad; run again to continue: what is finished is kept$",
        ),
        (RuntimeError("the engine has a fault"), RuntimeError, "^the engine has a fault$"),
    ],
)
def test_the_message_of_a_unit_comes_out_of_whatever_the_engine_wraps_around_it(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[Exception], says: str
) -> None:
    asked = []

    def run(construct: Any, units: int, step: str) -> None:
        asked.append((construct, units, step))
        raise raised

    backend(monkeypatch, run=run)
    construct: Any = object()
    with pytest.raises(kind, match=says) as caught:
        fan_out.run_pipeline(BUILD, construct, 7, "read")
    assert type(caught.value) is kind
    assert asked == [(construct, 7, "read")]
