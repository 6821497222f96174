"""What the last line of a dataset warns of: each share at its limit and just above, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.ranges import BUCKET_TOKENS, bin_borders, bucket_count
from cloze.pipeline.dataset.summary import losses, token_shares, warnings

REMEDY = "give longer documents, or use pairing full, without a pair task"


def total(rows: int = 1000, **given: Any) -> dict[str, Any]:
    """Counts of rows that nothing is wrong with."""
    labels = {"real": rows // 2, "random": rows // 2, "none": 0}
    return {
        "rows": rows,
        "row_tokens": 100 * rows,
        "unmasked_rows": 0,
        "pair_labels": labels,
        **given,
    }


def told(config: ExampleConfig, lost: int = 0, **given: Any) -> list[str]:
    counters = {"tokens/read": 1000, "tokens/truncated": lost}
    return losses(config, counters, total(**given))


NSP = ExampleConfig(recipe="bert", length=128)
SOP = ExampleConfig(recipe="albert", length=128)
FULL = ExampleConfig(recipe="roberta", length=128)


@pytest.mark.parametrize("config", [NSP, SOP, FULL])
def test_good_rows_are_warned_of_nothing(config: ExampleConfig) -> None:
    assert told(config) == []


def test_text_in_no_row() -> None:
    assert told(NSP, lost=50) == []
    assert told(NSP, lost=51) == [
        "5.1% of the tokens are in no row, because pairs are cut to length (128); use a larger "
        "length, more drawings, or pairing full"
    ]
    assert losses(NSP, {"tokens/read": 0, "tokens/truncated": 0}, total()) == []


def test_rows_without_masks() -> None:
    assert told(FULL, unmasked_rows=50) == []
    assert told(FULL, unmasked_rows=51) == [
        "5.1% of the rows have no masks, because their tokens are unknown or too few; use a "
        "vocabulary of this text, or longer documents"
    ]
    unmasked = ExampleConfig(recipe="roberta", length=128, masking="none")
    assert told(unmasked, unmasked_rows=1000) == []


def test_short_rows() -> None:
    short = ExampleConfig(recipe="spanbert", length=128)
    assert told(short, row_tokens=32_000) == []
    assert told(short, row_tokens=31_000) == [
        "rows have 31 of 128 tokens on average, because documents are short; use a smaller "
        "length, or pairing full or packed"
    ]
    pairs = ExampleConfig(recipe="bert", length=128, pairing="sentence-pair")
    assert told(pairs, row_tokens=31_000) == []  # its rows are two sentences, however long


@pytest.mark.parametrize(
    ("config", "name", "task", "wanted"), [(NSP, "random", "nsp", 0.5), (SOP, "swapped", "sop", 0.5)]
)  # fmt: skip
def test_labels_of_one_kind(config: ExampleConfig, name: str, task: str, wanted: float) -> None:
    def labels(count: int, other: int, none: int = 0) -> dict[str, Any]:
        return {"pair_labels": {"other": other, name: count, "none": none}}

    assert told(config, **labels(600, 400)) == []
    assert told(config, **labels(400, 600)) == []
    for count in (601, 399):
        assert told(config, **labels(count, 1000 - count)) == [
            f"{count / 1000:.1%} of the {task} labels are {name}, not {wanted:.0%}, because "
            f"documents have few sentences or a corpus shard has one document; {REMEDY}"
        ]
    assert told(config, **labels(400, 400, 200)) == []
    assert told(config, **labels(400, 399, 201)) == [
        f"20.1% of the rows have no {task} label, because their documents have one sentence, or "
        f"a corpus shard has one document; {REMEDY}"
    ]
    (alone,) = told(config, **labels(0, 0, 1000))  # of no labels no share is told
    assert alone.startswith(f"100.0% of the rows have no {task} label")


def test_a_share_that_was_asked_for_is_none_to_warn_of() -> None:
    rare = ExampleConfig(recipe="bert", length=128, random_next_prob=0.1)
    assert told(rare, pair_labels={"real": 900, "random": 100, "none": 0}) == []
    (warned,) = told(rare, pair_labels={"real": 500, "random": 500, "none": 0})
    assert "50.0% of the nsp labels are random, not 10%" in warned


def test_several_losses_are_told_together() -> None:
    labels = {"real": 0, "random": 100, "none": 900}
    found = told(NSP, lost=500, unmasked_rows=500, row_tokens=9000, pair_labels=labels)
    assert [message.split(",")[0] for message in found] == [
        "50.0% of the tokens are in no row",
        "50.0% of the rows have no masks",
        "rows have 9 of 128 tokens on average",
        "90.0% of the rows have no nsp label",
        "100.0% of the nsp labels are random",
    ]


def test_a_dataset_without_rows_divides_by_nothing() -> None:
    labels = {"real": 0, "random": 0, "none": 0}
    assert told(FULL, rows=0, row_tokens=0, pair_labels=labels) == [
        "rows have 0 of 128 tokens on average, because documents are short; use a smaller length, "
        "or pairing full or packed"
    ]


def test_a_maximum_that_cuts_masks() -> None:
    most = ExampleConfig(recipe="bert", length=128).default_max_predictions
    fewer = ExampleConfig(recipe="bert", length=128, max_predictions=most - 1)
    quiet = [one for one in fewer.warnings() if "max_predictions" in one]
    assert quiet == []
    assert warnings(fewer, {"masks/capped_rows": 10}, 1000) == fewer.warnings()
    assert warnings(fewer, {"masks/capped_rows": 11}, 1000) == [
        *fewer.warnings(),
        f"max_predictions ({most - 1}) cuts the masks of 11 of 1,000 rows below mask_rate (0.15); "
        f"leave it out, or set a larger one",
    ]
    usual = ExampleConfig(recipe="bert", length=128)
    assert warnings(usual, {"masks/capped_rows": 999}, 1000) == usual.warnings()
    assert warnings(fewer, {}, 0) == fewer.warnings()


def test_tokens_are_told_by_what_became_of_them() -> None:
    counters = {
        "tokens/read": 200, "tokens/in_rows": 150, "tokens/truncated": 50, "tokens/again": 30,
        "documents": 7,
    }  # fmt: skip
    assert token_shares(counters) == {
        "tokens_in_rows_share": 0.75,
        "tokens_by_reason": {
            "in_rows": {"tokens": 150, "share": 0.75},
            "truncated": {"tokens": 50, "share": 0.25},
        },
        "tokens_used_again": 30,
    }
    assert token_shares({"tokens/in_rows": 0}) == {
        "tokens_in_rows_share": 0.0,
        "tokens_by_reason": {"in_rows": {"tokens": 0, "share": 0.0}},
        "tokens_used_again": 0,
    }
    assert token_shares({})["tokens_in_rows_share"] == 0.0


@pytest.mark.parametrize(
    ("tokens", "parts", "shards", "buckets"),
    [
        (0, 1, 1, 1),
        (1e6, 1, 1, 8),  # several a shard, though few tokens
        (1e6, 1, 4, 32),
        (100 * BUCKET_TOKENS, 1, 1, 100),
        (128 * 32 * 10 * 3, 10, 1, 3),  # of many files each bucket takes rows that are worth a seek
        (128 * 32 * 10 * 3 - 1, 10, 1, 2),
        (1 << 36, 10**9, 1, 1 << 10),  # but none is larger than memory
    ],
)
def test_buckets_are_neither_too_large_nor_too_many(
    tokens: float, parts: int, shards: int, buckets: int
) -> None:
    assert bucket_count(tokens, 128, parts, shards) == buckets


@pytest.mark.parametrize(
    ("length", "bins", "borders"),
    [
        (128, 1, (128,)),
        (128, 4, (32, 64, 96, 128)),
        (10, 3, (4, 7, 10)),
        (2, 5, (1, 2)),  # no more bins than lengths
    ],
)
def test_bins_end_at_equal_lengths(length: int, bins: int, borders: tuple[int, ...]) -> None:
    assert bin_borders(length, bins) == borders
