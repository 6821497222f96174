"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from cloze.core.humanize import (
    format_count,
    format_duration,
    format_metrics,
    format_number,
    labelled,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25"),
        (3.0, "3"),
        (123.4, "123"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (999_999, "1M"),
        (1_234_567, "1.23M"),
        (2e9, "2G"),
        (5e20, "500E"),
    ],
)
def test_si(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0.4 s"), (59.97, "1 min 00 s"), (75, "1 min 15 s"), (7300, "2 h 01 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_numbers_among_values() -> None:
    assert format_metrics({"accuracy": 0.9123, "note": "x", "f1": 1}) == "accuracy 0.912, f1 1.000"
    assert (format_number(0.123456), format_number("x")) == ("0.1235", "x")


def test_a_figure_has_its_name_in_words_and_its_unit() -> None:
    assert labelled("memory_bytes", 1017073664) == "memory 1.02 GB"
    assert labelled("gpu_memory_bytes", 8e9) == "GPU memory 8 GB"
    assert labelled("tokens_per_second", 4321.5) == "tokens per second 4322"
