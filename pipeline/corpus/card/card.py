"""The data card: `card.json`, and `card.html`, a page without scripts or network access.

The same corpus gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloze.core.humanize import format_bytes, format_count, most_first, templates_in
from cloze.pipeline.corpus.document import join_sentences
from cloze.pipeline.corpus.files.intermediate import documents_at
from cloze.pipeline.corpus.provenance import UNKNOWN, Origin, merge_origins
from cloze.pipeline.corpus.readers.base import IN_ARCHIVES, counted
from cloze.pipeline.corpus.signatures import jaccard
from cloze.pipeline.corpus.statistics import (
    DOCUMENT_BINS,
    FIGURES,
    SENTENCE_BINS,
    add_up,
    added,
)
from cloze.pipeline.corpus.steps.chain import STEPS

if TYPE_CHECKING:
    from cloze.pipeline.corpus.config import CorpusConfig
    from cloze.pipeline.corpus.duplicates.plan import CorpusPlan
    from cloze.pipeline.corpus.sources import SliceGroup

Rows = list[dict[str, Any]]
Results = Sequence[Mapping[str, Any]]
FORMAT = 4
EXAMPLES = 3  # per reason
EXCERPT = 400  # characters


def collect(
    config: CorpusConfig,
    groups: Sequence[SliceGroup],
    results: Results,
    plan: CorpusPlan,
    shards: Results,
    counters: Mapping[str, int],
    parts: tuple[str, ...],
) -> dict[str, Any]:
    """Return the content of `card.json`.

    Args:
        results: results of `ReadSliceGroup`, one per group.
        shards: statistics of each shard, from `WriteShards`.
        parts: paths of the intermediate files without endings.
    """
    counters = {name: count for name, count in counters.items() if count}
    retained = add_up(shards)
    sources = _sources(groups, results, plan, retained["sources"])
    totals = {name: sum(source[name] for source in sources) for name in FIGURES}
    sampled = sum(retained["languages"].values())
    return {
        "format": FORMAT,
        "totals": {
            **totals,
            "read_documents": counters.get("read/documents", 0),
            "read_bytes": counters.get("read/bytes", 0),
            "heldout_documents": plan.heldout,
            "heldout_share": round(plan.heldout / max(1, totals["documents"]), 6),
            "shards": plan.shards,
        },
        "sources": _shares(sources, config, plan),
        "passed_over": [
            *config.listing().describe(),
            *(
                f"{count:,} members of archives passed over"
                for name, count in counters.items()
                if name.endswith(f"/{IN_ARCHIVES}")
            ),
        ],
        "origins": _origins(retained["origins"], results),
        "licences": [
            {
                "licence": licence or UNKNOWN,
                **{name: figures[name] for name in ("documents", "words", "bytes")},
            }
            for (licence,), figures in sorted(
                added(retained["origins"], "licence").items(),
                key=lambda entry: (-entry[1]["words"], entry[0]),
            )
        ],
        "mixture": plan.mixed,
        "histograms": {
            "document_words": {"limits": list(DOCUMENT_BINS), "counts": retained["documents"]},
            "sentence_words": {"limits": list(SENTENCE_BINS), "counts": retained["sentences"]},
        },
        **{
            name: most_first(counted(counters, f"{name}/"))
            for name in ("dropped", "dropped_lines", "dropped_files", "quarantined")
        },
        "encodings": most_first(counted(counters, "encoding/")),
        "examples": _examples(results),
        "duplicates": _duplicates(config, plan, parts),
        "decontamination": _decontamination(config, results, counters),
        "personal_data": {
            "kinds": list(config.mask_personal_data),
            "allowed": config.personal_data_allowed,
            "documents": counters.get("dropped/personal_data", 0),
            **{
                done: {
                    kind: counters.get(f"dropped_lines/{done}_{kind}", 0)
                    for kind in config.mask_personal_data
                }
                for done in ("masked", "dropped")
            },
        },
        "languages": {
            "sampled": sampled,
            "shares": {
                language: round(count / sampled, 4)
                for language, count in retained["languages"].items()
            },
        },
        "infoboxes": retained["infoboxes"],
        "samples": retained["samples"],
        "settings": config.model_dump(mode="json", exclude=set(config.path_fields())),
    }


def _sources(
    groups: Sequence[SliceGroup],
    results: Results,
    plan: CorpusPlan,
    retained: Mapping[str, Mapping[str, int]],
) -> Rows:
    rows: dict[str, dict[str, Any]] = {}
    files: dict[str, set[str]] = {}
    for group, result in zip(groups, results, strict=True):
        kind = group.kind
        columns = ("files", "read_documents", "read_bytes", "dropped_reading", "duplicates")
        row = rows.setdefault(kind, {"kind": kind, **dict.fromkeys(columns, 0)})
        files.setdefault(kind, set()).update(single.slice.name for single in group.slices)
        row["read_documents"] += result["counters"].get("read/documents", 0)
        row["read_bytes"] += result["counters"].get("read/bytes", 0)
        row["dropped_reading"] += sum(counted(result["counters"], "dropped/").values())
    for (kind, _, _), count in plan.pairs.items():
        rows[kind]["duplicates"] += count
    nothing = dict.fromkeys(FIGURES, 0)
    return [
        {**row, "files": len(files[kind]), **retained.get(kind, nothing)}
        for kind, row in sorted(rows.items())
    ]


def _origins(rows: Results, results: Results) -> Rows:
    """Return the kept documents by origin and licence, with what is known of each origin."""
    known: dict[str, set[Origin]] = {}
    for result in results:
        for origin in (Origin(**fields) for fields in result["origins"]):
            known.setdefault(origin.label, set()).add(origin)
    by_label = {label: merge_origins(origins) for label, origins in known.items()}
    return [
        {
            "kind": row["kind"],
            **{name: getattr(by_label[row["origin"]], name) for name in ("name", "url", "date")},
            **{name: row[name] for name in ("licence", "documents", "words", "bytes")},
        }
        for row in rows
    ]


def _shares(sources: Rows, config: CorpusConfig, plan: CorpusPlan) -> Rows:
    """Add to each source its share of the words and how often it was repeated."""
    words = max(1, sum(source["words"] for source in sources))
    groups = plan.mixed if config.mixture_by == "source" else []
    epochs = {group["name"]: group["epochs"] for group in groups}
    default = None if plan.mixed and not epochs else 1.0
    return [
        {
            **source,
            "share": round(source["words"] / words, 6),
            "epochs": epochs.get(source["kind"], default),
        }
        for source in sources
    ]


def _examples(results: Results) -> list[dict[str, str]]:
    """Return the first examples of each reason by hash, over all results."""
    by_reason: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for result in results:
        for scope, reason, rank, title, text in result["examples"]:
            by_reason.setdefault((scope, reason), []).append((rank, title, text))
    return [
        {"scope": scope, "reason": reason, "title": title, "text": text}
        for (scope, reason), examples in sorted(by_reason.items())
        for _, title, text in sorted(examples)[:EXAMPLES]
    ]


def _duplicates(config: CorpusConfig, plan: CorpusPlan, parts: tuple[str, ...]) -> dict[str, Any]:
    minhash = config.minhash()
    between = Counter[tuple[str, str]]()
    for (kind, of, _), count in plan.pairs.items():
        between[kind, of] += count
    return {
        "method": config.dedup,
        "bands": config.dedup_bands,
        "rows": config.dedup_rows,
        "ngram": config.dedup_ngram,
        "similarity": config.dedup_similarity,
        "half_found_at": round(minhash.threshold, 3) if minhash else None,
        "exact": plan.dropped.get("exact_duplicate", 0),
        "near": plan.dropped.get("near_duplicate", 0),
        "same_id": plan.dropped.get("duplicate_id", 0),
        "renamed": plan.renamed,
        "unconfirmed": plan.unconfirmed,
        "split": plan.split,
        "groups": plan.groups,
        "largest": plan.largest,
        "between": [
            {"duplicate": kind, "of": of, "documents": count}
            for (kind, of), count in sorted(between.items())
        ],
        "pairs": _pairs(config, plan, parts),
    }


def _pairs(config: CorpusConfig, plan: CorpusPlan, parts: tuple[str, ...]) -> Rows:
    """Return example pairs of duplicate and kept document, with their exact similarity."""
    pairs = []
    for reason, duplicate, of in plan.examples:
        positions = [np.array(values, dtype=np.int32) for values in zip(duplicate, of, strict=True)]
        documents = documents_at(parts, *positions)
        texts = [join_sentences(each["sentences"], each["paragraphs"]) for each in documents]
        shown = [
            {name: each[name] for name in ("id", "title", "split")}
            | {"characters": len(text), "text": text[:EXCERPT]}
            for each, text in zip(documents, texts, strict=True)
        ]
        similarity = round(jaccard(texts[0], texts[1], config.dedup_ngram), 3)
        pairs.append(
            {"reason": reason, "similarity": similarity, "duplicate": shown[0], "kept": shown[1]}
        )
    return pairs


def _decontamination(
    config: CorpusConfig, results: Results, counters: Mapping[str, int]
) -> dict[str, Any]:
    tasks = Counter({name: 0 for name, _, _ in config.task_files()} if config.decontaminate else {})
    for result in results:
        tasks.update(result["tasks"])
    return {
        "words": config.decontaminate_words,
        "minimum_words": config.decontaminate_minimum_words,
        "unit": config.decontaminate_unit,
        "documents": counters.get("dropped/contaminated", 0),
        "paragraphs": counters.get("dropped_lines/contaminated", 0),
        "tasks": [{"name": name, "documents": count} for name, count in most_first(tasks).items()],
    }


# The page.

TEMPLATES = Path(__file__).parent / "templates"

# What reasons of readers and of the plan mean; a cleaning step says its own (`reasons`).
MEANINGS = {
    "duplicate_id": "another version of a page, by its id",
    "exact_duplicate": "the same words as another document",
    "near_duplicate": "nearly the same words as another document",
    "over_budget": "beyond max_words or the mixture",
    "not_in_mixture": "in a language without a weight in the mixture",
    "redirect": "a page that redirects to another",
    "namespace": "a page outside of the namespaces that are read",
    "encoding": "in no encoding that is stated or sure",
    "of_crawler": "a log, a list or a text that the crawler wrote itself, and no page",
    "not_stored": "a repeated or continued visit, whose page is in another record",
    "disambiguation": "a list of the meanings of a title",
}


def render(card: Mapping[str, Any]) -> str:
    """Return the HTML page of a card."""
    environment = templates_in(TEMPLATES)
    environment.filters |= {
        "short": format_count,
        "bytes": format_bytes,
        "thousands": "{:,}".format,
        "percent": "{:.1%}".format,
        "largest": largest,
        "bins": bins,
        "pairs": lambda rows, name, value: {row[name]: row[value] for row in rows},
    }
    duplicates = sum(card["duplicates"][name] for name in ("exact", "near", "same_id"))
    totals = card["totals"]
    flow = {
        "kept for training": totals["documents"] - totals["heldout_documents"],
        "held out": totals["heldout_documents"],
        "duplicates of others": duplicates,
        "dropped on reading": sum(card["dropped"].values()) - duplicates,
    }
    meanings = dict(MEANINGS)
    for kind in STEPS.loaded().values():
        meanings |= kind.reasons
    return environment.get_template("card.html").render(
        card=card,
        totals=totals,
        duplicates=duplicates,
        meanings=meanings,
        examples=_by_reason(card),
        flow=[(name, count) for name, count in flow.items() if count],
    )


def largest(values: Mapping[str, float], most: int) -> list[tuple[str, float]]:
    """Return the positive values, largest first; those beyond `most` are added up."""
    positive = {name: value for name, value in values.items() if value > 0}
    entries = list(most_first(positive).items())
    rest = entries[most - 1 :] if len(entries) > most else []
    others = [(f"{len(rest)} others", sum(value for _, value in rest))] if rest else []
    return [*entries[: len(entries) - len(rest)], *others]


def bins(histogram: Mapping[str, list[int]]) -> list[tuple[str, str, int]]:
    """Return (label, range, count) of the bins; the last one is open."""
    limits, counts = histogram["limits"], histogram["counts"]
    closed = [
        (f"≤{format_count(limit)}", f"{below + 1:,} to {limit:,}", count)
        for below, limit, count in zip([0, *limits], limits, counts, strict=False)
    ]
    last = f">{format_count(limits[-1])}", f"more than {limits[-1]:,}", counts[-1]
    return [*closed, last]


def _by_reason(card: Mapping[str, Any]) -> list[tuple[str, str, int, list[dict[str, str]]]]:
    """Return (scope, reason, count, examples): documents before lines, most frequent first."""
    by_reason: dict[tuple[str, str], list[dict[str, str]]] = {}
    for example in card["examples"]:
        by_reason.setdefault((example["scope"], example["reason"]), []).append(example)
    counts = {"document": card["dropped"], "line": card["dropped_lines"]}
    rows = [
        (scope, reason, counts[scope].get(reason, 0), examples)
        for (scope, reason), examples in by_reason.items()
    ]
    return sorted(rows, key=lambda row: (row[0], -row[2], row[1]))
