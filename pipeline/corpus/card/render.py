"""From the card's content to its page: one HTML file with everything inside, no script, nothing from the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.pages import templates_in
from pipeline.corpus.card import svg

TEMPLATES = Path(__file__).parent / "templates"

# What the reasons mean that are not plain from their names.
MEANINGS = {
    "too_short": "fewer characters or words than the limit",
    "too_long": "more characters than the limit",
    "not_prose": "too few letters",
    "duplicate_id": "an id that another document has",
    "exact_duplicate": "the same words as another document",
    "near_duplicate": "nearly the same words as another document",
    "over_budget": "more than the words or the mixture asked for",
    "not_in_mixture": "in a language that the mixture does not weigh",
    "other_licence": "under a licence that is not kept",
    "personal_data": "more addresses and numbers of persons than are allowed",
    "blocked_words": "more words of the list than are allowed",
    "contaminated": "holds text of a task",
    "redirect": "a page that leads to another",
    "namespace": "a page beside the articles",
    "disambiguation": "a list of what a title may mean",
}


def render(card: dict[str, Any]) -> str:
    """The page of a card, as `card.html` holds it.

    Args:
        card: the content of `card.json`.
    """
    environment = templates_in(TEMPLATES)
    environment.filters |= {"short": svg.short, "bytes": size}
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
            "flow": svg.flow(
                totals["read_documents"],
                reading,
                duplicates,
                totals["documents"] - totals["heldout_documents"],
                totals["heldout_documents"],
            ),
            "documents": svg.histogram(*_bins(histograms["document_words"]), "words a document"),
            "sentences": svg.histogram(*_bins(histograms["sentence_words"]), "words a sentence"),
            "dropped": svg.bars(card["dropped"]),
            "lines": svg.bars(card["dropped_lines"]),
            "quarantined": svg.bars(card["quarantined"]),
            "languages": svg.shares(card["languages"]["shares"]),
            "licences": svg.shares({one["licence"]: float(one["words"]) for one in card["licences"]}),
            "sources": svg.shares({source["kind"]: float(source["bytes"]) for source in card["sources"]}),
        },
    )


def size(value: float) -> str:
    """1234567 -> 1.23 MB."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"


def _bins(histogram: dict[str, list[int]]) -> tuple[list[int], list[int]]:
    return histogram["limits"], histogram["counts"]


def _by_reason(card: dict[str, Any]) -> list[tuple[str, str, int, list[dict[str, str]]]]:
    """(scope, reason, count, examples), documents before lines, the most frequent first."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for example in card["examples"]:
        found.setdefault((example["scope"], example["reason"]), []).append(example)
    counts = {"document": card["dropped"], "line": card["dropped_lines"]}
    rows = [(scope, reason, counts[scope].get(reason, 0), examples) for (scope, reason), examples in found.items()]
    return sorted(rows, key=lambda row: (row[0], -row[2], row[1]))
