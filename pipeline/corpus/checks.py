"""Corpus stage: whether enough could be read, and something is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.errors import DataError
from pipeline.corpus.bundles import Bundle
from pipeline.corpus.config import CorpusConfig

UNREADABLE = "unreadable.jsonl"

Results = Sequence[Mapping[str, Any]]  # what `ReadBundle` gave for each bundle


def counted(counters: Counter[str] | dict[str, int], prefix: str) -> dict[str, int]:
    """The counters under `prefix`, without it."""
    return {name.removeprefix(prefix): count for name, count in sorted(counters.items()) if name.startswith(prefix)}


def check_readable(config: CorpusConfig, results: Results) -> None:
    """Raise `DataError` where more could not be read than the config allows."""
    counters = sum((Counter(result["counters"]) for result in results), Counter[str]())
    bad = counted(counters, "quarantined/")
    refused, documents = sum(bad.values()), counters["read/documents"]
    share = refused / max(1, refused + documents)
    if share > config.max_rejected_share:
        told = ", ".join(f"{reason} {count:,}" for reason, count in sorted(bad.items(), key=lambda pair: (-pair[1], pair[0])))
        first = next(entry for result in results for entry in result["unreadable"])
        raise DataError(
            f"{refused:,} of {refused + documents:,} files, pages and lines could not be read ({told}; the first: {first['file']}:"
            f" {first['sentence']}), more than corpus.max_rejected_share ({config.max_rejected_share:g}) allows; mend the sources"
            f" ({UNREADABLE} in the output names each), or raise the limit"
        )


def check_not_empty(config: CorpusConfig, bundles: Sequence[Bundle], results: Results) -> None:
    """Every source must have given something to read, and something must be left of all of them."""
    for source in config.sources:
        own = [result for one, result in zip(bundles, results, strict=True) if source in one.sources]
        if not any(result["counters"].get("read/documents") for result in own):
            unreadable = [entry for result in own for entry in result["unreadable"]]
            why = f" ({unreadable[0]['file']}: {unreadable[0]['sentence']})" if unreadable else ""
            raise DataError(
                f"source {source.kind} at {source.path} holds no document{why}; check the path, or leave the source out"
            )
    if not any(result["documents"] for result in results):
        counters = sum((Counter(result["counters"]) for result in results), Counter[str]())
        reasons = counted(counters, "dropped/")
        told = ", ".join(
            f"{reason} {count:,}" for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        )
        first = config.sources[0]
        raise DataError(
            f"of the {counters['read/documents']:,} documents of {first.path}{' and other sources' if len(config.sources) > 1 else ''}"
            f" none is left ({told}); give more text, or loosen the filters of the corpus config"
        )
