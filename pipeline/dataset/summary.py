"""The summary of the stage "dataset", of the training split.

Held-out rows, documents and text tokens cover both splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.corpus.readers.base import counted
from cloze.pipeline.dataset import append
from cloze.pipeline.dataset.append import BaseDataset
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.pairings.registry import PAIRINGS, label_names
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.dataset.shards import sum_counts

# prefix of the counters of text tokens: read, in_rows, and reasons for the others
TOKENS = "tokens/"
TRUNCATED = "tokens/truncated"  # in no row of any drawing
# of these: tokens in rows once more, in another drawing or as another document's random segment
AGAIN = "again"
CAPPED = "masks/capped_rows"
DIFFERING = "gigatoken/differing_sentences"
CAPPED_SHARE = 0.01  # share of rows that may lose predictions to the maximum without a warning


def new_counts(
    info: DatasetInfo,
    rows: Mapping[str, int],
    written: Sequence[Mapping[str, Any]],
    documents: int,
    counters: Mapping[str, int],
) -> dict[str, Any]:
    """Return the summary's counts of the new shards.

    Args:
        rows: number of new rows by split.
        written: results of `WriteDatasetShard` for the training split.
        documents: number of new documents, of both splits.
        counters: counters of the new text.
    """
    total = sum_counts(written)
    label_counts = zip((*label_names(info.pair_task), "none"), total["labels"], strict=True)
    return {
        "rows": rows[TRAIN],
        "heldout_rows": rows[HELDOUT],
        "tokens": counters[f"{TOKENS}read"],
        "row_tokens": total["row_tokens"],
        "masked": total["masked"],
        "unmasked_rows": total["unmasked_rows"],
        "shards": len(written),
        "documents": documents,
        "pair_labels": dict(label_counts),
        "length_histogram": total["histogram"],
    }


def summarize(
    config: ExampleConfig,
    info: DatasetInfo,
    build: BuildContext,
    new: dict[str, Any],
    base: BaseDataset | None,
    known: int,
) -> StageResult:
    """Return the result of the stage; its headline has the warnings.

    Args:
        build: has the counters of the new shards; those of `base` are added.
        new: counts of the new shards.
        base: dataset that was appended to, or None.
        known: number of the corpus's documents that were already in `base`.
    """
    total: dict[str, Any] = new
    appended: dict[str, Any] = {}
    if base is not None:
        names = ("rows", "heldout_rows", "tokens", "shards", "documents")
        appended = {"appended": {name: new[name] for name in names}}
        total = append.add_counts(base.manifest.summary, new)
        build.counters["dropped/already_in_dataset"] += known
        build.counters.update(base.manifest.counters)
    row_count, row_tokens = max(1, total["rows"]), max(1, total["row_tokens"])
    summary = {
        **total,
        "copies": info.copies,
        "drawings": info.drawings,
        "length": info.length,
        "masked_share": round(total["masked"] / (info.copies * row_tokens), 6),
        "mean_length": round(total["row_tokens"] / row_count, 3),
        "padding_share": round(1 - total["row_tokens"] / (row_count * info.length), 6),
        "vocab_size": info.vocab_size,
        **token_shares(build.counters),
        "words_per_token": _words_per_token(total, build.counters),
        **appended,
        "warnings": warnings(config, build.counters, total["rows"] + total["heldout_rows"])
        + losses(config, build.counters, total),
    }
    return StageResult(rows=total["rows"], tokens=total["tokens"], summary=summary)


def _words_per_token(total: Mapping[str, Any], counters: Mapping[str, int]) -> float | None:
    """Return the mean words per token of a row, special tokens included; None: unknown."""
    rows = total["rows"] + total["heldout_rows"]
    text_tokens = (counters[f"{TOKENS}in_rows"] + counters[TOKENS + AGAIN]) / rows
    if total["words"] is None:
        return None
    words = total["words"] / counters[f"{TOKENS}read"] * text_tokens
    share: float = words * total["rows"] / total["row_tokens"]
    return round(share, 6)


def token_shares(counters: Mapping[str, int]) -> dict[str, Any]:
    """Return the shares of the text tokens: `tokens_in_rows_share` and `tokens_by_reason`.

    The reasons add up to the tokens read; `tokens_used_again` come in addition.
    """
    read = counters.get(f"{TOKENS}read", 0)
    counts = counted(counters, TOKENS)
    counts.pop("read", None)
    reused = counts.pop(AGAIN, 0)
    shares = {
        name: {"tokens": count, "share": round(count / read, 6) if read else 0.0}
        for name, count in counts.items()
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
    if differing := counters.get(DIFFERING, 0):
        messages.append(
            f"gigatoken gave other ids than the tokenizer in samples of {differing:,} sentences, "
            f"which the tokenizer encoded itself; uninstall gigatoken"
        )
    capped = counters.get(CAPPED, 0)
    if (
        capped > CAPPED_SHARE * rows
        and config.max_predictions < config.default_max_predictions
        and not any("max_predictions" in warning for warning in messages)
    ):
        messages.append(
            f"max_predictions ({config.max_predictions}) cuts the masks of {capped:,} of {rows:,} "
            f"rows below mask_rate ({config.mask_rate:g}); leave it out, or set a larger one"
        )
    return messages


LOST_SHARE = 0.05  # share of tokens or rows that may be of no use without a warning
SHORT_ROWS = 0.25  # share of the length that rows have on average without a warning
UNLABELLED_SHARE = 0.2  # of rows of a pair task; short rows alone make some 9 % of ALBERT's
LABEL_DISTANCE = 0.1  # by which the share of a pair label may differ from the recipe's
EXPECTED_SHARES = {"nsp": "random_next_prob", "sop": "swap_prob"}  # option with label 1's share


def losses(
    config: ExampleConfig, counters: Mapping[str, int], total: Mapping[str, Any]
) -> list[str]:
    """Return warnings about text that is in no row, and about rows that teach too little.

    `counters`: of the text; `total`: counts of all shards, see `new_counts`.
    """
    rows, length, pairing = max(1, total["rows"]), config.length, PAIRINGS[config.pairing]
    lost = counters[TRUNCATED] / max(1, counters[f"{TOKENS}read"])
    bare, mean = total["unmasked_rows"] / rows, total["row_tokens"] / rows
    remedy = "give longer documents, or use pairing full, without a pair task"
    messages = {
        f"{lost:.1%} of the tokens are in no row, because pairs are cut to length ({length}); use "
        f"a larger length, more drawings, or pairing full": lost > LOST_SHARE,
        f"{bare:.1%} of the rows have no masks, because their tokens are unknown or too few; use "
        f"a vocabulary of this text, or longer documents": config.masking != "none"
        and bare > LOST_SHARE,
        f"rows have {mean:.0f} of {length} tokens on average, because documents are short; use a "
        f"smaller length, or pairing full or packed": mean < SHORT_ROWS * length
        and pairing.sentences is None,
    }
    if pairing.task is not None:
        (_, other), (name, count), (_, unlabelled) = total["pair_labels"].items()
        expected = float(getattr(config, EXPECTED_SHARES[pairing.task]))
        share, none = count / max(1, count + other), unlabelled / rows
        messages |= {
            f"{none:.1%} of the rows have no {pairing.task} label, because their documents have "
            f"one sentence, or a corpus shard has one document; {remedy}": none > UNLABELLED_SHARE,
            f"{share:.1%} of the {pairing.task} labels are {name}, not {expected:.0%}, because "
            f"documents have few sentences or a corpus shard has one document; {remedy}": none < 1
            and abs(share - expected) > LABEL_DISTANCE,
        }
    return [message for message, is_due in messages.items() if is_due]
