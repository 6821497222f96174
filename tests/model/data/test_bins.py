"""Batches from length bins and from windows: every row once an epoch, found in O(1),
padding saved.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.ragged import offsets_of
from cloze.model.data.batch import collate
from cloze.model.data.mixture import make_sampler, training_shards
from cloze.model.data.sampler import LengthBins, Sampler
from cloze.model.data.shards import ShardedRows
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import made_corpus, make, rows, write_vocab

COUNTS = st.lists(st.integers(1, 120), min_size=1, max_size=5)
SEEDS = st.integers(0, (1 << 63) - 1)


def scattered(counts: list[int], pieces: int = 2) -> LengthBins:
    """Bins whose rows lie in `pieces` shards, each with all bins in it."""
    runs, place, row = [], [0] * len(counts), 0
    starts = offsets_of(np.array(counts))
    for piece in range(pieces):
        for number, count in enumerate(counts):
            size = count * (piece + 1) // pieces - count * piece // pieces
            if size:
                runs.append((int(starts[number]) + place[number], row))
                place[number] += size
                row += size
    runs.sort()
    return LengthBins(
        np.array(counts), np.array([at for at, _ in runs]), np.array([row for _, row in runs])
    )


def bin_of_rows(bins: LengthBins) -> np.ndarray:
    found = np.zeros(int(bins.counts.sum()), np.int64)
    numbers = np.arange(len(found))
    found[bins.row(numbers)] = np.searchsorted(offsets_of(bins.counts), numbers, side="right") - 1
    return found


@settings(max_examples=30, deadline=None)
@given(
    COUNTS,
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from([None, 1, 7, 64]),
    SEEDS,
    st.integers(0, 7),
)
def test_an_epoch_of_bins_visits_every_row_once(
    counts: list[int], pieces: int, group: int, window: int | None, seed: int, epoch: int
) -> None:
    bins = scattered(counts, pieces)
    total = sum(counts)
    sampler = Sampler(total, 3, seed, bins, group, window)
    found, copies = sampler.locate(np.arange(epoch * total, (epoch + 1) * total))
    assert np.array_equal(np.sort(found), np.arange(total))
    assert (copies == epoch % 3).all()


@settings(max_examples=30, deadline=None)
@given(COUNTS, st.integers(2, 40), SEEDS, st.integers(0, 400))
def test_groups_are_of_one_bin_but_for_what_is_left_over(
    counts: list[int], group: int, seed: int, first: int
) -> None:
    bins, total = scattered(counts), sum(counts)
    sampler, of_row = Sampler(total, 1, seed, bins, group), bin_of_rows(scattered(counts))
    epoch = first % 5
    numbers = np.arange(epoch * total, (epoch + 1) * total)
    found, _ = sampler.locate(numbers)
    mixed = 0
    begins = range(-(-epoch * total // group) * group, (epoch + 1) * total - group + 1, group)
    for begin in begins:
        part = of_row[found[begin - epoch * total : begin - epoch * total + group]]
        mixed += len(set(part.tolist())) > 1
    assert mixed <= len(counts) + 1


@settings(max_examples=20, deadline=None)
@given(
    COUNTS,
    st.integers(1, 40),
    st.sampled_from([None, 16]),
    SEEDS,
    st.integers(0, 900),
    st.integers(1, 90),
)
def test_any_sample_is_found_without_those_before_it(
    counts: list[int], group: int, window: int | None, seed: int, start: int, size: int
) -> None:
    sampler = Sampler(sum(counts), 4, seed, scattered(counts), group, window)
    together, _ = sampler.locate(np.arange(start, start + size))
    alone = [int(sampler.locate(np.array([sample]))[0][0]) for sample in range(start, start + size)]
    assert together.tolist() == alone


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 500), st.integers(1, 600), SEEDS, st.integers(0, 4))
def test_windows_visit_every_row_once_and_few_at_a_time(
    total: int, window: int, seed: int, epoch: int
) -> None:
    found, _ = Sampler(total, 1, seed, window=window).locate(
        np.arange(epoch * total, (epoch + 1) * total)
    )
    assert np.array_equal(np.sort(found), np.arange(total))
    for begin in range(0, total - window + 1, window):
        part = np.sort(found[begin : begin + window])
        gaps = np.diff(part, append=part[0] + total)
        assert window >= total or (gaps > 1).sum() == 1  # one run, around the end if need be


def test_orders_of_epochs_differ() -> None:
    bins = scattered([2000, 1000, 500], 3)
    sampler = Sampler(3500, 1, 7, bins, 32)
    orders = [sampler.locate(np.arange(epoch * 3500, (epoch + 1) * 3500))[0] for epoch in range(3)]
    assert all((one == other).mean() < 0.02 for one, other in pairwise(orders))
    groups = bin_of_rows(bins)[orders[0]][: 3500 // 32 * 32].reshape(-1, 32)[:, 0]
    assert (np.diff(groups) != 0).mean() > 0.3  # bins alternate


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same rows: in one bin, in four, compressed, and both."""
    directory: Path = tmp_path_factory.mktemp("bins")
    corpus, vocab = made_corpus(directory / "corpus"), write_vocab(directory)
    ways = {"plain": {}, "bins": {"length_bins": 4}, "zstd": {"compression": "zstd"}}
    ways["both"] = {**ways["bins"], **ways["zstd"]}
    return {
        name: make(corpus, vocab, directory / name, short_seq_prob=0.7, **settings).artifact
        for name, settings in ways.items()
    }


def test_every_way_of_storing_gives_the_same_rows(datasets: dict[str, str]) -> None:
    class Made:
        def __init__(self, artifact: str) -> None:
            self.artifact = artifact

    for path in datasets.values():
        shards, plain = ShardedRows(path), rows(Made(path))  # type: ignore[arg-type]
        order = np.random.default_rng(0).permutation(len(shards))
        taken = shards.take(order, order % 3)
        ids, positions = (
            np.split(taken.ids, np.cumsum(taken.lengths)[:-1]),
            np.split(taken.positions, np.cumsum(taken.counts)[:-1]),
        )
        for place, row in enumerate(order.tolist()):
            assert ids[place].tolist() == plain[row]["input_ids"]
            assert positions[place].tolist() == plain[row]["masks"][row % 3]["positions"]
            assert int(taken.documents[place]) == plain[row]["source"]["document"]
            assert taken.pair_labels[place] == (
                -100 if plain[row]["pair_label"] is None else plain[row]["pair_label"]
            )


def _padding(path: str, batch: int) -> float:
    shards = training_shards(path, dynamic=False)
    order = make_sampler(shards, seed=1, dynamic=False, global_batch=batch)
    real = total = 0
    for begin in range(0, len(shards) - batch, batch):
        collated = collate(
            shards.take(*order.locate(np.arange(begin, begin + batch))), pad=0, longest=128
        )
        real += int(collated["attention_mask"].sum())
        total += collated["input_ids"].numel()
    return 1 - real / total


def test_bins_save_padding(datasets: dict[str, str], tmp_path: Path) -> None:
    documents = [
        (name, text[: 1 + number % 7]) for number, (name, text) in enumerate(made_documents(300, 7))
    ]
    corpus, vocab = write_corpus(tmp_path / "short", documents), write_vocab(tmp_path)
    settings = {"recipe": "spanbert", "length": 128}
    one = make(corpus, vocab, tmp_path / "one", **settings).artifact
    eight = make(corpus, vocab, tmp_path / "eight", **settings, length_bins=8).artifact
    assert _padding(eight, 8) < 0.5 * _padding(one, 8)
    assert ShardedRows(datasets["plain"]).bins is None
    bins = ShardedRows(datasets["bins"]).bins
    assert bins is not None
    lengths = (
        ShardedRows(datasets["bins"])
        .take(bins.row(np.arange(int(bins.counts.sum()))), np.zeros(int(bins.counts.sum()), int))
        .lengths
    )
    assert (np.diff(np.searchsorted([12, 24, 36, 48], lengths)) >= 0).all()


def test_unpacked_batches_are_few(
    datasets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked for, only so many bytes stay unpacked, and what stays is right."""
    from cloze.model.data import rows

    shards, plain = ShardedRows(datasets["both"]), ShardedRows(datasets["bins"])
    assert shards.window is not None
    assert plain.window is None
    monkeypatch.setattr(rows, "CACHE_BYTES", 20_000)
    for batch in range(30):
        wanted = np.random.default_rng(batch).integers(0, len(shards), 16)
        one, other = shards.take(wanted, wanted % 3), plain.take(wanted, wanted % 3)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.replacements, other.replacements)
    one = shards.take(np.array([0]), np.array([0]))
    assert shards.blocks.unpacked_bytes < 60_000
    assert len(shards.blocks.loaded) < len(shards.blocks.begins)
    assert (
        shards.most_predictions()
        == plain.most_predictions()
        == ShardedRows(datasets["plain"]).most_predictions()
    )
