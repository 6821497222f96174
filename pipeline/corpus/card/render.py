"""The page of the data card: one HTML file with inline SVG, without scripts or network access."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloze.core.humanize import format_bytes, format_count, templates_in

WIDTH, HEIGHT = 560, 190
LEFT, BOTTOM, TOP = 8, 34, 22
ROW = 26
COLOURS = ("#2f6f9f", "#e08e45", "#5b9a68", "#b0568b", "#8a7fc0", "#c9a227", "#4aa3a2", "#9aa5b1")


def histogram(limits: Sequence[int], counts: Sequence[int], unit: str) -> str:
    """Return an SVG histogram; bin i counts values in (limits[i - 1], limits[i]].

    Args:
        limits: upper limits of the bins; the last bin is open, so there is one more count.
        counts: counts of the bins.
        unit: unit of the limits, for the tooltips.
    """
    most, total = max(1, *counts), max(1, sum(counts))
    step = (WIDTH - 2 * LEFT) / len(counts)
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    floor = HEIGHT - BOTTOM
    for number, count in enumerate(counts):
        height = (floor - TOP) * count / most
        x = LEFT + number * step
        below = limits[number - 1] if number else 0
        name = (
            f"more than {limits[-1]:,}"
            if number == len(limits)
            else f"{below + 1 if below else 1:,} to {limits[number]:,}"
        )
        parts.append(
            f"<g><title>{name} {unit}: {count:,} ({count / total:.1%})</title>"
            f'<rect class="hover" x="{x:.1f}" y="{TOP}" width="{step:.1f}" height="{floor - TOP}"/>'
            f'<rect class="column" x="{x + 1.5:.1f}" y="{floor - height:.1f}" '
            f'width="{step - 3:.1f}" height="{height:.1f}" rx="2"/>'
        )
        if count:
            parts.append(
                f'<text class="value" x="{x + step / 2:.1f}" '
                f'y="{floor - height - 5:.1f}">{_share(count / total)}</text>'
            )
        label = (
            f"&gt;{format_count(limits[-1])}"
            if number == len(limits)
            else f"≤{format_count(limits[number])}"
        )
        parts.append(
            f'<text class="tick" x="{x + step / 2:.1f}" y="{floor + 15}">{label}</text></g>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{floor}" y2="{floor}"/>')
    parts.append(
        f'<text class="tick" x="{WIDTH / 2}" y="{HEIGHT - 4}">{html.escape(unit)}</text></svg>'
    )
    return "".join(parts)


def _share(share: float) -> str:
    return "&lt;1%" if share < 0.005 else f"{share:.0%}"


def bars(counts: Mapping[str, int], most: int = 14) -> str:
    """Return an SVG bar chart, longest bar first; bars beyond `most` are added up."""
    entries = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if len(entries) > most:
        entries = [
            *entries[: most - 1],
            (f"{len(entries) - most + 1} others", sum(count for _, count in entries[most - 1 :])),
        ]
    label, room = 168, WIDTH - 168 - 78
    longest, height = max((count for _, count in entries), default=1), ROW * len(entries) + 4
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} {height}" role="img">']
    for number, (name, count) in enumerate(entries):
        y = number * ROW + 4
        width = max(2.0, room * count / longest)
        parts.append(
            f"<g><title>{html.escape(name)}: {count:,}</title>"
            f'<text class="name" x="{label - 10}" '
            f'y="{y + 14}">{html.escape(name.replace("_", " "))}</text>'
            f'<rect class="column" x="{label}" y="{y + 2}" width="{width:.1f}" height="{ROW - 10}" '
            f'rx="2"/>'
            f'<text class="count" x="{label + width + 7:.1f}" y="{y + 14}">{count:,}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def shares(values: Mapping[str, float], most: int = 7) -> str:
    """Return shares of a whole as one SVG bar with a legend; shares beyond `most` are added up."""
    entries = sorted(
        ((name, share) for name, share in values.items() if share > 0),
        key=lambda pair: (-pair[1], pair[0]),
    )
    if len(entries) > most:
        entries = [*entries[:most], ("others", sum(share for _, share in entries[most:]))]
    total = sum(share for _, share in entries) or 1.0
    segments = []
    for number, (name, share) in enumerate(entries):
        percentage = "&lt;0.1%" if share / total < 0.001 else f"{share / total:.1%}"
        label = f"{html.escape(name)} {percentage}"
        segments.append((share / total, COLOURS[number % len(COLOURS)], label, label))
    return _stacked_bar(segments)


def flow(read: int, reading: int, duplicates: int, train: int, heldout: int) -> str:
    """Return a bar of the documents: kept, held out, duplicates, dropped on reading."""
    counts = [
        ("kept for training", train, "#2f6f9f"),
        ("held out", heldout, "#8fbcd9"),
        ("duplicates of others", duplicates, "#e08e45"),
        ("dropped on reading", reading, "#c3cad2"),
    ]
    return _stacked_bar(
        [
            (count / max(1, read), colour, f"{name}: {count:,}", f"{name} <b>{count:,}</b>")
            for name, count, colour in counts
            if count
        ]
    )


def _stacked_bar(segments: Sequence[tuple[float, str, str, str]]) -> str:
    """Return one SVG bar with a legend.

    Args:
        segments: (share of the width, colour, tooltip, legend), from left to right.
    """
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} 26" preserveAspectRatio="none" role="img">']
    legend, x = [], 0.0
    for share, colour, tooltip, label in segments:
        width = WIDTH * share
        parts.append(
            f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="26" '
            f'fill="{colour}"><title>{tooltip}</title></rect>'
        )
        legend.append(f'<span><i style="background:{colour}"></i>{label}</span>')
        x += width
    return "".join([*parts, "</svg>", f'<div class="legend">{"".join(legend)}</div>'])


TEMPLATES = Path(__file__).parent / "templates"

# Explanations of reasons whose names are not self-explanatory.
MEANINGS = {
    "too_short": "fewer characters or words than the limit",
    "too_long": "more characters than the limit",
    "not_prose": "too few letters",
    "duplicate_id": "an id that another document has",
    "exact_duplicate": "the same words as another document",
    "near_duplicate": "nearly the same words as another document",
    "over_budget": "beyond max_words or the mixture",
    "not_in_mixture": "in a language without a weight in the mixture",
    "other_licence": "under a licence that is not in the list",
    "personal_data": "more personal data than allowed",
    "blocked_words": "more blocked words than allowed",
    "contaminated": "contains text of a task",
    "redirect": "a page that redirects to another",
    "namespace": "a page outside the article namespace",
    "disambiguation": "a list of the meanings of a title",
}


def render(card: dict[str, Any]) -> str:
    """Return the HTML page of a card.

    Args:
        card: content of `card.json`.
    """
    environment = templates_in(TEMPLATES)
    environment.filters |= {"short": format_count, "bytes": format_bytes}
    totals = card["totals"]
    duplicates = sum(card["duplicates"][name] for name in ("exact", "near", "same_id"))
    reading = sum(card["dropped"].values()) - duplicates
    histograms = card["histograms"]
    return environment.get_template("card.html").render(
        card=card,
        totals=totals,
        duplicates=duplicates,
        meanings=MEANINGS,
        examples=_by_reason(card),
        figures={
            "flow": flow(
                totals["read_documents"],
                reading,
                duplicates,
                totals["documents"] - totals["heldout_documents"],
                totals["heldout_documents"],
            ),
            "documents": histogram(*_bins(histograms["document_words"]), "words a document"),
            "sentences": histogram(*_bins(histograms["sentence_words"]), "words a sentence"),
            "dropped": bars(card["dropped"]),
            "lines": bars(card["dropped_lines"]),
            "quarantined": bars(card["quarantined"]),
            "languages": shares(card["languages"]["shares"]),
            "licences": shares({one["licence"]: float(one["words"]) for one in card["licences"]}),
            "sources": shares(
                {source["kind"]: float(source["bytes"]) for source in card["sources"]}
            ),
        },
    )


def _bins(histogram: dict[str, list[int]]) -> tuple[list[int], list[int]]:
    return histogram["limits"], histogram["counts"]


def _by_reason(card: dict[str, Any]) -> list[tuple[str, str, int, list[dict[str, str]]]]:
    """Return (scope, reason, count, examples): documents before lines, most frequent first."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for example in card["examples"]:
        found.setdefault((example["scope"], example["reason"]), []).append(example)
    counts = {"document": card["dropped"], "line": card["dropped_lines"]}
    rows = [
        (scope, reason, counts[scope].get(reason, 0), examples)
        for (scope, reason), examples in found.items()
    ]
    return sorted(rows, key=lambda row: (row[0], -row[2], row[1]))
