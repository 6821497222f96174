"""The summary of a dataset, from the counts of its units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.dataset.append import BaseDataset, add_counts
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.masking.draw import Masks
from cloze.pipeline.dataset.pairings.registry import label_names
from cloze.pipeline.dataset.pairings.segments import NO_LABEL
from cloze.pipeline.dataset.rows import RowBlock
from cloze.pipeline.dataset.schema import DatasetInfo

HISTOGRAM_BINS = 16
TOKENS = (
    "tokens/"  # prefix of the counters of text tokens: read, in_rows, and reasons for the others
)
# of these: tokens in rows a second time, as another document's random next segment
AGAIN = "random_next"
CAPPED = "masks/capped_rows"
CAPPED_SHARE = 0.01  # share of rows that may lose predictions to the maximum without a warning


@dataclass(slots=True, kw_only=True)
class ShardCounts:
    """The counts of a shard while it is written.

    Attributes:
        length: maximum tokens per row.
        row_tokens: tokens of all rows, special tokens included.
        masked: predictions in all copies.
        labels: rows with pair label 0, with label 1, and without a label.
        histogram: rows by length, in `HISTOGRAM_BINS` bins.
    """

    length: int
    rows: int = 0
    row_tokens: int = 0
    masked: int = 0
    labels: npt.NDArray[np.int64]
    histogram: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, length: int) -> ShardCounts:
        return cls(
            length=length,
            labels=np.zeros(3, np.int64),
            histogram=np.zeros(HISTOGRAM_BINS, np.int64),
        )

    def add(self, block: RowBlock, masks: Masks) -> None:
        self.histogram += np.bincount(
            (block.lengths - 1) * HISTOGRAM_BINS // self.length, minlength=HISTOGRAM_BINS
        )
        self.labels += [(block.pair_label == label).sum() for label in (0, 1, NO_LABEL)]
        self.rows += len(block)
        self.row_tokens += len(block.input_ids)
        self.masked += len(masks.positions)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "labels": self.labels.tolist(),
            "histogram": self.histogram.tolist(),
        }


def summarize(
    config: ExampleConfig,
    info: DatasetInfo,
    build: BuildContext,
    *,
    rows: Mapping[str, int],
    documents: int,
    known: int,
    written: list[dict[str, Any]],
    base: BaseDataset | None,
) -> StageResult:
    """Return the summary of the training split.

    `heldout_rows`, `documents` and text tokens cover both splits.

    Args:
        config: requested examples.
        info: metadata of every shard.
        build: has the counters of the new shards; those of `base` are added.
        rows: number of new rows by split.
        documents: number of documents read, of both splits.
        known: number of the corpus's documents that were already in `base`.
        written: counts of the training split's new shards.
        base: dataset that was appended to, or None.
    """
    total: Counter[str] = Counter()
    for counts in written:
        total.update({name: counts[name] for name in ("row_tokens", "masked")})
    labels = np.sum([counts["labels"] for counts in written], axis=0).tolist()
    new: dict[str, Any] = {
        "rows": rows["train"],
        "heldout_rows": rows["heldout"],
        "tokens": build.counters[f"{TOKENS}read"],
        "row_tokens": total["row_tokens"],
        "masked": total["masked"],
        "shards": len(written),
        "documents": documents,
        "pair_labels": dict(zip((*label_names(info.pair_task), "none"), labels, strict=True)),
        "length_histogram": np.sum([counts["histogram"] for counts in written], axis=0).tolist(),
    }
    appended = {}
    if base is not None:
        appended = {
            "appended": {
                name: new[name]
                for name in ("rows", "heldout_rows", "tokens", "shards", "documents")
            }
        }
        new = add_counts(base.manifest.summary, new)
        build.counters["dropped/already_in_dataset"] += known
        build.counters.update(base.manifest.counters)
    row_count, row_tokens = max(1, new["rows"]), max(1, new["row_tokens"])
    summary = {
        **new,
        "copies": info.copies,
        "length": info.length,
        "masked_share": round(new["masked"] / (info.copies * row_tokens), 6),
        "mean_length": round(new["row_tokens"] / row_count, 3),
        "padding_share": round(1 - new["row_tokens"] / (row_count * info.length), 6),
        "vocab_size": info.vocab_size,
        **token_shares(build.counters),
        **appended,
        "warnings": warnings(config, build.counters, new["rows"] + new["heldout_rows"]),
    }
    for warning in summary["warnings"]:
        build.report.progress(row_count, row_count, "rows", {"step": "shards", "warning": warning})
    return StageResult(rows=new["rows"], tokens=new["tokens"], summary=summary)


def token_shares(counters: Mapping[str, int]) -> dict[str, Any]:
    """Return the shares of the text tokens: `tokens_in_rows_share` and `tokens_by_reason`.

    The reasons add up to the tokens read; `tokens_used_again` come in addition.
    """
    read = counters.get(f"{TOKENS}read", 0)
    counts = {
        name.removeprefix(TOKENS): count
        for name, count in counters.items()
        if name.startswith(TOKENS)
    }
    counts.pop("read", None)
    reused = counts.pop(AGAIN, 0)
    shares = {
        name: {"tokens": count, "share": round(count / read, 6) if read else 0.0}
        for name, count in sorted(counts.items())
    }
    in_rows = shares.get("in_rows", {}).get("share", 0.0)
    return {
        "tokens_in_rows_share": in_rows,
        "tokens_by_reason": shares,
        "tokens_used_again": reused,
    }


def warnings(config: ExampleConfig, counters: Mapping[str, int], rows: int) -> list[str]:
    """Return warnings about probably unintended settings and their results."""
    messages = config.warnings()
    capped = counters.get(CAPPED, 0)
    if capped > CAPPED_SHARE * rows and not any(
        "max_predictions" in warning for warning in messages
    ):
        messages.append(
            f"max_predictions ({config.max_predictions}) cuts the masks of {capped:,} of {rows:,} "
            f"rows below mask_rate"
            f" ({config.mask_rate:g}); leave it out, or set a larger one"
        )
    return messages
