"""Stage "dataset", last: what is told of a dataset, from what its units counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.stage import Build, Outcome
from pipeline.dataset.append import Base, added
from pipeline.dataset.config import ExampleConfig
from pipeline.dataset.masking.draw import Masks
from pipeline.dataset.pairs.segments import NO_LABEL
from pipeline.dataset.pairs.table import label_names
from pipeline.dataset.rows import RowBlock
from pipeline.dataset.schema import DatasetInfo

HISTOGRAM_BINS = 16
TOKENS = "tokens/"  # opens the counters of pieces of text: read, in_rows, and why the others are in none
AGAIN = "random_next"  # of them: pieces that stand in rows a second time, as another document's random next
CAPPED = "masks/capped_rows"
CAPPED_SHARE = 0.01  # of the rows may lose predictions to the cap without a warning


@dataclass(slots=True, kw_only=True)
class ShardCounts:
    """What is counted of a shard while it is written.

    Attributes:
        length: the most tokens of a row.
        row_tokens: tokens of all rows, special ones included.
        masked: predictions, in all copies.
        labels: rows of pair label 0, of label 1, and of none.
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
        return cls(length=length, labels=np.zeros(3, np.int64), histogram=np.zeros(HISTOGRAM_BINS, np.int64))

    def add(self, block: RowBlock, masks: Masks) -> None:
        self.histogram += np.bincount((block.lengths - 1) * HISTOGRAM_BINS // self.length, minlength=HISTOGRAM_BINS)
        self.labels += [(block.pair_label == label).sum() for label in (0, 1, NO_LABEL)]
        self.rows += len(block)
        self.row_tokens += len(block.input_ids)
        self.masked += len(masks.positions)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "labels": self.labels.tolist(), "histogram": self.histogram.tolist()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of the new shards.

    Attributes:
        config: what was asked for.
        info: what every shard says.
        rows: by split.
        documents: documents read, of both splits.
        shards: of the training split.
    """

    config: ExampleConfig
    info: DatasetInfo
    rows: Mapping[str, int]
    documents: int
    shards: int

    def outcome(self, build: Build, written: list[dict[str, Any]], base: Base | None, known: int) -> Outcome:
        """The summary: of the training split, but for `heldout_rows`, `documents` and what is said of text tokens.

        Args:
            build: its counters are those of the new shards; those of `base` are added to them.
            written: the counts of the shards of the training split.
            base: what was appended to.
            known: documents of the corpus that it held already.
        """
        total: Counter[str] = Counter()
        for counts in written:
            total.update({name: counts[name] for name in ("row_tokens", "masked")})
        labels = np.sum([counts["labels"] for counts in written], axis=0).tolist()
        new: dict[str, Any] = {
            "rows": self.rows["train"],
            "heldout_rows": self.rows["heldout"],
            "tokens": build.counters[f"{TOKENS}read"],
            "row_tokens": total["row_tokens"],
            "masked": total["masked"],
            "shards": self.shards,
            "documents": self.documents,
            "pair_labels": dict(zip((*label_names(self.info.pair_task), "none"), labels, strict=True)),
            "length_histogram": np.sum([counts["histogram"] for counts in written], axis=0).tolist(),
        }
        appended = {}
        if base is not None:
            appended = {"appended": {name: new[name] for name in ("rows", "heldout_rows", "tokens", "shards", "documents")}}
            new = added(base.manifest.summary, new)
            build.counters["dropped/already_in_dataset"] += known
            build.counters.update(base.manifest.counters)
        rows, tokens = max(1, new["rows"]), max(1, new["row_tokens"])
        summary = {
            **new,
            "copies": self.info.copies,
            "length": self.info.length,
            "masked_share": round(new["masked"] / (self.info.copies * tokens), 6),
            "mean_length": round(new["row_tokens"] / rows, 3),
            "padding_share": round(1 - new["row_tokens"] / (rows * self.info.length), 6),
            "vocab_size": self.info.vocab_size,
            **token_shares(build.counters),
            **appended,
            "warnings": warnings(self.config, build.counters, new["rows"] + new["heldout_rows"]),
        }
        for warning in summary["warnings"]:
            build.report.progress(rows, rows, "rows", {"step": "shards", "warning": warning})
        return Outcome(rows=new["rows"], tokens=new["tokens"], summary=summary)


def token_shares(counters: Mapping[str, int]) -> dict[str, Any]:
    """Where the pieces of text went, as shares of those that were read: `tokens_in_rows_share`, and `tokens_by_reason`.

    The reasons add up to what was read; `tokens_used_again` stand in rows beside.
    """
    read = counters.get(f"{TOKENS}read", 0)
    found = {name.removeprefix(TOKENS): count for name, count in counters.items() if name.startswith(TOKENS)}
    found.pop("read", None)
    again = found.pop(AGAIN, 0)
    shares = {
        name: {"tokens": count, "share": round(count / read, 6) if read else 0.0} for name, count in sorted(found.items())
    }
    in_rows = shares.get("in_rows", {}).get("share", 0.0)
    return {"tokens_in_rows_share": in_rows, "tokens_by_reason": shares, "tokens_used_again": again}


def warnings(config: ExampleConfig, counters: Mapping[str, int], rows: int) -> list[str]:
    """What is probably not meant, from the settings and from what came of them."""
    found = config.warnings()
    capped = counters.get(CAPPED, 0)
    if capped > CAPPED_SHARE * rows and not any("max_predictions" in warning for warning in found):
        found.append(
            f"max_predictions ({config.max_predictions}) cuts the masks of {capped:,} of {rows:,} rows below mask_rate"
            f" ({config.mask_rate:g}); leave it out, or set a larger one"
        )
    return found
