"""Fresh masks in the collator are those that a dataset with more copies would store; packed and
unmasked rows collate too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.core.errors import UsageError
from cloze.model.data.batch import collate
from cloze.model.data.masks import DynamicMasker
from cloze.model.data.mixture import make_sampler, training_shards
from cloze.model.data.shards import ShardedRows
from tests.model.datasets import write_dataset
from tests.pipeline.dataset.datasets import made_corpus, make, rows, write_vocab
from tests.slices import few

RECIPES = ("bert", "spanbert", "roberta", "albert")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory: Path = tmp_path_factory.mktemp("inputs")
    return made_corpus(directory / "corpus"), write_vocab(directory)


@pytest.mark.parametrize(
    "settings",
    few(
        [
            *(pytest.param({"recipe": name}, id=name) for name in RECIPES),
            pytest.param(
                {"recipe": "bert", "random_from": "corpus", "random_share": 0.2}, id="bert-corpus"
            ),
        ],
        "spanbert",
        "bert-corpus",
    ),
)
def test_fresh_masks_are_what_more_copies_would_hold(
    inputs: tuple[str, str], tmp_path: Path, settings: dict[str, object]
) -> None:
    two = make(*inputs, tmp_path / "two", **{**settings, "mask_copies": 2})
    many = make(*inputs, tmp_path / "many", **{**settings, "mask_copies": 6})
    stored, fresh = ShardedRows(many.artifact), training_shards(two.artifact, dynamic=True)
    assert len(stored) == len(fresh)
    numbers = np.random.default_rng(0).permutation(len(stored))
    epochs = numbers % 6
    one, other = stored.take(numbers, epochs), fresh.take(numbers, epochs)
    for name in (
        "ids",
        "lengths",
        "segment_start",
        "pair_labels",
        "positions",
        "replacements",
        "counts",
    ):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert fresh.most_predictions() >= stored.most_predictions()


def test_fresh_masks_have_the_stored_ones_distribution(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    """Over 40 epochs: the rate, 80/10/10, every position of a row, and Jaccard of two epochs near
    .081 (Reference, section 1).
    """
    shards = training_shards(make(*inputs, tmp_path / "few", mask_copies=1).artifact, dynamic=True)
    assert shards.info is not None
    numbers = np.arange(len(shards))
    masked = kept = total = tokens = 0
    jaccard = []
    before: list[set[int]] = []
    for epoch in range(40):
        found = shards.take(numbers, np.full_like(numbers, epoch))
        at = np.repeat(np.cumsum(found.lengths) - found.lengths, found.counts) + found.positions
        masked += int((found.replacements == shards.info.special.mask).sum())
        kept += int((found.replacements == found.ids[at]).sum())
        total, tokens = total + len(at), tokens + len(found.ids)
        now = [
            set(part.tolist()) for part in np.split(found.positions, np.cumsum(found.counts)[:-1])
        ]
        jaccard += [
            len(a & b) / len(a | b) for a, b in zip(before, now, strict=False) if len(a | b) > 8
        ]
        before = now
    assert total / tokens == pytest.approx(0.15, abs=0.01)
    assert masked / total == pytest.approx(0.8, abs=0.01)
    assert kept / total == pytest.approx(0.1, abs=0.02)
    assert np.mean(jaccard) == pytest.approx(0.085, abs=0.015)


def test_a_dynamic_order_goes_on_with_new_copies(inputs: tuple[str, str], tmp_path: Path) -> None:
    shards = training_shards(make(*inputs, tmp_path / "few", mask_copies=2).artifact, dynamic=True)
    order = make_sampler(shards, seed=5, dynamic=True, global_batch=4)
    count = len(shards)
    for epoch in (0, 1, 2, 9):
        found, copies = order.locate(np.arange(epoch * count, (epoch + 1) * count))
        assert (copies == epoch).all()
        assert np.array_equal(np.sort(found), np.arange(count))
    around = order.locate(np.arange(3 * count - 2, 3 * count + 2))  # a batch between two epochs
    one = shards.take(*around)
    two = [
        shards.take(*order.locate(np.arange(at, at + 1)))
        for at in range(3 * count - 2, 3 * count + 2)
    ]
    assert np.array_equal(one.replacements, np.concatenate([part.replacements for part in two]))


def test_a_dataset_that_does_not_know_its_masks_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", rows=8)
    with pytest.raises(UsageError, match="does not say how its masks were drawn"):
        training_shards(dataset, dynamic=True)
    shards = ShardedRows(dataset)
    assert shards.info is not None
    with pytest.raises(UsageError):
        DynamicMasker.of(dataset, shards.info)


def test_packed_rows_bring_where_their_sequences_start(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    made = make(*inputs, tmp_path / "packed", recipe="packed", length=64)
    shards, plain = ShardedRows(made.artifact), rows(made)
    numbers = np.arange(len(shards))[::-1].copy()
    batch = collate(
        shards.take(numbers, np.zeros_like(numbers)), pad=0, longest=64, layout="packed"
    )
    starts = batch["layout"].bounds
    assert starts.dtype == torch.int32
    assert batch["layout"].max_distance == int(starts.diff().max())
    assert (
        batch["sequence_first"][batch["attention_mask"]]
        .nonzero()
        .squeeze(1)
        .equal(starts[:-1].long())
    )
    assert not batch["sequence_first"][~batch["attention_mask"]].any()
    expected, at = [], 0
    for row in numbers.tolist():
        expected += [at + begin for begin in plain[row]["boundaries"]]
        at += len(plain[row]["input_ids"])
    assert starts.tolist() == [*expected, at]
    assert len(starts) > len(numbers) + 1
    assert at == int(batch["attention_mask"].sum())
    assert not batch["token_type_ids"].any()
    tokens = batch["input_ids"][batch["attention_mask"]]
    assert (tokens[starts[:-1].long()] == 2).all()  # every sequence begins with [CLS]


def test_left_to_right_rows_have_nothing_to_predict(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    made = make(*inputs, tmp_path / "lm", recipe="lm", mask_copies=1)
    for dynamic in (False, True):
        shards = training_shards(made.artifact, dynamic)
        numbers = np.arange(len(shards))
        batch = collate(shards.take(numbers, np.zeros_like(numbers)), pad=0, longest=48)
        assert (batch["masked_labels"] == -100).all()
        plain = [token for row in rows(made) for token in row["input_ids"]]
        assert batch["input_ids"][batch["attention_mask"]].tolist() == plain
    assert shards.most_predictions() >= 0
