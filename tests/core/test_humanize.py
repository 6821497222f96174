"""Numbers as a person reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from cloze.core import humanize
from cloze.core.humanize import (
    format_bytes,
    format_count,
    format_duration,
    format_metrics,
    format_number,
    labelled,
    parse_count,
    parse_duration,
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


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 kB"), (1500, "1.5 kB"), (999_600, "1 MB"),
        (2.4e9, "2.4 GB"), (1e12, "1 TB"), (1.5e14, "150 TB"), (1.234e15, "1234 TB"),
    ],
)  # fmt: skip
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10M", 10**7), ("2.5M", 2_500_000), ("800k", 800_000), ("1G", 10**9), ("1b", 10**9),
        ("10_000", 10_000), ("10,000", 10_000), ("300e9", 300 * 10**9), (" 7 ", 7), ("0", 0),
        ("2.5", None), ("1,2", None), ("", None), ("M", None), ("-3", None), ("3 x", None),
    ],
)  # fmt: skip
def test_counts_are_parsed(text: str, count: int | None) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("10m", 600), ("10 min", 600), ("1h30m", 5400), ("1.5h", 5400), ("2H", 7200),
        ("1h1m1s", 3661), ("0s", 0), ("", None), ("90", None), ("1d", None), ("1m1h", None),
    ],
)  # fmt: skip
def test_durations_are_parsed(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (59.94, "59.9 s"), (59.95, "1 min 00 s"), (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"), (72 * 3600 - 61, "71 h 58 min"), (72 * 3600, "3 days"),
        (999 * 86400, "999 days"), (1000 * 86400, "3 years"),
    ],
)  # fmt: skip
def test_each_unit_begins_where_the_last_one_ends(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_what_has_begun_lasts_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(humanize.time, "time", lambda: 100.0)
    assert humanize.elapsed({"started": 40.0}) == 60
    assert humanize.elapsed({"started": 40.0, "ended": None}) == 60
    assert humanize.elapsed({"started": 40.0, "ended": 55.0}) == 15
    assert humanize.elapsed({"started": 140.0}) == 0  # the clock was set back


def test_words_agree_with_their_counts() -> None:
    assert [humanize.an(noun) for noun in ("corpus", "export", "Index", "")] == [
        "a corpus", "an export", "an Index", "a "
    ]  # fmt: skip
    assert humanize.agree("1 documents, 2 documents, 11 entries, 1 entries") == (
        "1 document, 2 documents, 11 entries, 1 entry"
    )
    for many, one in {
        "1 processes": "1 process", "1 batches": "1 batch", "1 caches": "1 cache",
        "1 indexes": "1 index", "1 GPUs": "1 GPU", "1 DNS": "1 DNS", "1 loss": "1 loss",
        "1 training processes, 1 data workers": "1 training process, 1 data worker",
        "2 × 128 tokens, 1 threads": "2 × 128 tokens, 1 thread", "1 more notes": "1 more note",
    }.items():  # fmt: skip
        assert humanize.agree(many) == one
    assert humanize.most_first({"a": 1, "b": 3, "c": 1}) == {"b": 3, "a": 1, "c": 1}
    assert next(iter(humanize.most_first({"c": 1, "b": 3, "a": 1}))) == "b"


def test_counts_of_a_page_agree(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '{{ 1 | counted("entries") }}, {{ 2000 | counted("entries") }}'
    )
    page = humanize.templates_in(tmp_path).get_template("a.html").render()
    assert page == "1 entry, 2,000 entries"


def test_a_long_name_keeps_both_ends() -> None:
    name = "".join(chr(97 + number % 26) for number in range(60))
    assert humanize.shortened(name[:40]) == name[:40]
    assert humanize.shortened(name[:41]) == f"{name[:20]}…{name[22:41]}"
    assert [humanize.shortened("0123456789", most) for most in (10, 9, 4)] == [
        "0123456789", "0123…789", "01…9"
    ]  # fmt: skip


def test_templates_escape_values_and_know_every_name(tmp_path: Path) -> None:
    text = '{% include "style.css" %}<p>\n  {% if x %}\n{{ x }}\n  {% endif %}\n</p>'
    (tmp_path / "page.html").write_text(text)
    templates = humanize.templates_in(tmp_path)
    assert templates is humanize.templates_in(tmp_path)
    page = templates.get_template("page.html").render(x="<b>")
    assert page.endswith("<p>\n&lt;b&gt;\n</p>")
    assert "{" in page.partition("<p>")[0]  # the style that all pages share
    with pytest.raises(UndefinedError):
        templates.get_template("page.html").render()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"), (99.5, "99.5"), (100.4, "100"), (9_999.4, "9999"), (9_999.5, "10000"),
        (10_000, "10k"), (999_499, "999k"), (999_500, "1M"), (1e9, "1G"), (999.5e9, "1T"),
        (1e12, "1T"), (1e15, "1P"), (1e18, "1E"), (1e21, "1Z"), (-12_345, "-12.3k"), (12.0, "12"),
    ],
)  # fmt: skip
def test_counts_at_the_borders_of_their_units(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999.4, "999 B"), (999.6, "1 kB"), (999_499, "999 kB"), (999_500, "1 MB"), (9.995e8, "1 GB"),
        (9.994e11, "999 GB"), (9.995e11, "1 TB"), (9.994e14, "999 TB"), (1e15, "1000 TB"),
    ],
)  # fmt: skip
def test_bytes_at_the_borders_of_their_units(count: float, text: str) -> None:
    assert format_bytes(count) == text
