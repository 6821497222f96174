"""The card's figures: inline SVG of our own, so that the page needs nothing from elsewhere and its bytes follow from the card alone."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 560, 190
LEFT, BOTTOM, TOP = 8, 34, 22
ROW = 26
COLOURS = ("#2f6f9f", "#e08e45", "#5b9a68", "#b0568b", "#8a7fc0", "#c9a227", "#4aa3a2", "#9aa5b1")


def short(value: float) -> str:
    """1234567 -> 1.23M; small numbers as they are."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    return f"{value:,.0f}"


def histogram(limits: Sequence[int], counts: Sequence[int], unit: str) -> str:
    """Counts a bin, as columns; bin i holds what is above limits[i - 1] and at most limits[i].

    Args:
        limits: upper limits; the last bin is open, so there is one count more.
        counts: of the bins.
        unit: of the limits, for the tooltips.
    """
    most, total = max(1, *counts), max(1, sum(counts))
    step = (WIDTH - 2 * LEFT) / len(counts)
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    floor = HEIGHT - BOTTOM
    for number, count in enumerate(counts):
        height = (floor - TOP) * count / most
        x = LEFT + number * step
        below = limits[number - 1] if number else 0
        name = f"more than {limits[-1]:,}" if number == len(limits) else f"{below + 1 if below else 1:,} to {limits[number]:,}"
        parts.append(
            f"<g><title>{name} {unit}: {count:,} ({count / total:.1%})</title>"
            f'<rect class="hover" x="{x:.1f}" y="{TOP}" width="{step:.1f}" height="{floor - TOP}"/>'
            f'<rect class="column" x="{x + 1.5:.1f}" y="{floor - height:.1f}" width="{step - 3:.1f}" height="{height:.1f}" rx="2"/>'
        )
        if count:
            parts.append(
                f'<text class="value" x="{x + step / 2:.1f}" y="{floor - height - 5:.1f}">{_share(count / total)}</text>'
            )
        label = f"&gt;{short(limits[-1])}" if number == len(limits) else f"≤{short(limits[number])}"
        parts.append(f'<text class="tick" x="{x + step / 2:.1f}" y="{floor + 15}">{label}</text></g>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{floor}" y2="{floor}"/>')
    parts.append(f'<text class="tick" x="{WIDTH / 2}" y="{HEIGHT - 4}">{html.escape(unit)}</text></svg>')
    return "".join(parts)


def _share(share: float) -> str:
    return "&lt;1%" if share < 0.005 else f"{share:.0%}"


def bars(counts: Mapping[str, int], most: int = 14) -> str:
    """Counts by name as horizontal bars, the longest first; beyond `most` they are added up."""
    named = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if len(named) > most:
        named = [*named[: most - 1], (f"{len(named) - most + 1} others", sum(count for _, count in named[most - 1 :]))]
    label, room = 168, WIDTH - 168 - 78
    longest, height = max((count for _, count in named), default=1), ROW * len(named) + 4
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} {height}" role="img">']
    for number, (name, count) in enumerate(named):
        y = number * ROW + 4
        width = max(2.0, room * count / longest)
        parts.append(
            f"<g><title>{html.escape(name)}: {count:,}</title>"
            f'<text class="name" x="{label - 10}" y="{y + 14}">{html.escape(name.replace("_", " "))}</text>'
            f'<rect class="column" x="{label}" y="{y + 2}" width="{width:.1f}" height="{ROW - 10}" rx="2"/>'
            f'<text class="count" x="{label + width + 7:.1f}" y="{y + 14}">{count:,}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def shares(values: Mapping[str, float], most: int = 7) -> str:
    """Shares of a whole as one bar with a legend; beyond `most` they are added up."""
    named = sorted(((name, share) for name, share in values.items() if share > 0), key=lambda pair: (-pair[1], pair[0]))
    if len(named) > most:
        named = [*named[:most], ("others", sum(share for _, share in named[most:]))]
    total = sum(share for _, share in named) or 1.0
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} 26" preserveAspectRatio="none" role="img">']
    legend, x = [], 0.0
    for number, (name, share) in enumerate(named):
        colour, width = COLOURS[number % len(COLOURS)], WIDTH * share / total
        told = f"{html.escape(name)} {'&lt;0.1%' if share / total < 0.001 else format(share / total, '.1%')}"
        parts.append(f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="26" fill="{colour}"><title>{told}</title></rect>')
        legend.append(f'<span><i style="background:{colour}"></i>{told}</span>')
        x += width
    return "".join([*parts, "</svg>", f'<div class="legend">{"".join(legend)}</div>'])


def flow(read: int, reading: int, duplicates: int, train: int, heldout: int) -> str:
    """Where the documents that were read went, as one bar: kept for training, held out, dropped as duplicates, dropped on reading."""
    return shares_in_order(
        [
            ("kept for training", train, "#2f6f9f"),
            ("held out", heldout, "#8fbcd9"),
            ("duplicates of others", duplicates, "#e08e45"),
            ("dropped on reading", reading, "#c3cad2"),
        ],
        read,
    )


def shares_in_order(named: Sequence[tuple[str, int, str]], total: int) -> str:
    """Counts of a whole as one bar, in the order given, each with a colour."""
    parts = [f'<svg class="figure" viewBox="0 0 {WIDTH} 26" preserveAspectRatio="none" role="img">']
    legend, x = [], 0.0
    for name, count, colour in named:
        if count:
            width = WIDTH * count / max(1, total)
            parts.append(
                f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="26" fill="{colour}"><title>{name}: {count:,}</title></rect>'
            )
            legend.append(f'<span><i style="background:{colour}"></i>{name} <b>{count:,}</b></span>')
            x += width
    return "".join([*parts, "</svg>", f'<div class="legend">{"".join(legend)}</div>'])
