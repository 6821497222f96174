"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from pipeline.core.humanize import duration, figures, short, si


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25"), (3.0, "3"), (123.4, "123"), (9999, "9999"), (12_345, "12.3k"), (1_234_567, "1.23M"), (2e9, "2G")],
)
def test_si(value: float, text: str) -> None:
    assert si(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0.4 s"), (75, "1 min 15 s"), (7300, "2 h 01 min")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_among_values() -> None:
    assert figures({"accuracy": 0.9123, "note": "x", "f1": 1}) == "accuracy 0.912, f1 1.000"
    assert (short(0.123456), short("x")) == ("0.1235", "x")
