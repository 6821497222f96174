"""The page of `cloze explain`: the last lines, of duplicates and of the outcome, word for word."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from cloze.flows.views.inspection import page

DOCUMENT: dict[str, Any] = {
    "id": "d1", "title": "Rome", "file": "a.xml", "url": "", "origin": "", "licence": "",
    "raw_bytes": 2000, "paragraphs": ["Rome is old."], "reader": {}, "steps": [], "infobox": None,
    "sentences": [], "dropped_sentences": [], "duplicate_of": None, "duplicates": [],
    "duplicates_in_all": 0, "outcome": "near_duplicate",
}  # fmt: skip


def other(name: str, **facts: Any) -> dict[str, Any]:
    found = {"id": name, "title": "", "reason": "near_duplicate", "similarity": 0.914}
    return {**found, "characters": 1234, **facts}


def lines_of_duplicates(**facts: Any) -> list[str]:
    """What stands below the heading, above the box of the outcome."""
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(page({**DOCUMENT, **facts}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    if "duplicates ─" not in text:
        return []
    lines = text.partition("duplicates ─")[2].splitlines()[1:]
    return [line.rstrip() for line in lines[: next(i for i, x in enumerate(lines) if "╭" in x)]]


def test_a_document_without_duplicates_has_no_section() -> None:
    assert lines_of_duplicates() == []


def test_a_duplicate_names_its_original() -> None:
    assert lines_of_duplicates(duplicate_of=other("d7", title="Roma")) == [
        "  a duplicate of Roma  d7  near duplicate, similarity 0.91, 1,234 characters"
    ]


def test_an_original_names_what_was_dropped_for_it() -> None:
    one = other("d8", reason="exact_duplicate", similarity=1.0)
    assert lines_of_duplicates(duplicates=[one], duplicates_in_all=1) == [
        "  1 document dropped in its favour:",
        "    d8  d8  exact duplicate, similarity 1.00, 1,234 characters",
    ]


def test_a_document_may_be_both_and_says_how_many_are_not_shown() -> None:
    found = lines_of_duplicates(
        duplicate_of=other("d7"), duplicates=[other("d8"), other("d9")], duplicates_in_all=1005
    )
    assert found == [
        "  a duplicate of d7  d7  near duplicate, similarity 0.91, 1,234 characters",
        "  1,005 documents dropped in its favour:",
        "    d8  d8  near duplicate, similarity 0.91, 1,234 characters",
        "    d9  d9  near duplicate, similarity 0.91, 1,234 characters",
        "    … 1,003 more",
    ]
