"""Training on drawings: one after the other, each document once in each, and exact from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.model.data.mixture import make_sampler, training_shards
from cloze.model.data.sampler import LengthBins, Sampler
from cloze.model.data.shards import ShardedRows
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import made_corpus, make, write_vocab
from tests.slices import few

D = 3
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bins": {"length_bins": 3},
    "zstd": {"compression": "zstd"},
    "both": {"length_bins": 3, "compression": "zstd"},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory: Path = tmp_path_factory.mktemp("inputs")
    return made_corpus(directory / "corpus"), write_vocab(directory)


@pytest.mark.parametrize(
    ("kind", "appended"),
    few(
        [pytest.param(kind, more, id=f"{kind}-{more}") for kind in KINDS for more in (False, True)],
        "plain-False",
        "both-True",
    ),
)
def test_an_epoch_reads_one_drawing_after_the_other(
    inputs: tuple[str, str], tmp_path: Path, kind: str, appended: bool
) -> None:
    result = make(*inputs, tmp_path / "made", drawings=D, mask_copies=2, **KINDS[kind])
    if appended:
        more = write_corpus(tmp_path / "more", [(f"n/{n}", t) for n, t in made_documents(9, 8)])
        values = {"drawings": D, "mask_copies": 2, **KINDS[kind]}
        result = make(more, inputs[1], tmp_path / "more-made", append=result.artifact, **values)
    shards = ShardedRows(result.artifact)
    assert shards.drawings == D
    sampler = make_sampler(shards, 5, False, 16)
    samples = np.arange(2 * len(shards))
    found, copies = sampler.locate(samples)
    assert (copies == samples // len(shards)).all()
    for epoch in np.split(found, 2):
        assert np.array_equal(np.sort(epoch), np.arange(len(shards)))
        drawing = shards.take(epoch, np.zeros_like(epoch)).sentences >> DRAWING_BIT
        assert (np.diff(drawing) >= 0).all()
        assert np.unique(drawing).tolist() == list(range(D))
        assert np.abs(np.diff(epoch)).mean() > 3  # within a drawing, shuffled
    assert found[: len(shards)].tolist() != found[len(shards) :].tolist()
    some = np.random.default_rng(0).choice(samples, 50)
    assert np.array_equal(sampler.locate(some)[0], found[some])


def test_fresh_masks_are_the_stored_ones(inputs: tuple[str, str], tmp_path: Path) -> None:
    result = make(*inputs, tmp_path, drawings=D, mask_copies=2)
    stored, fresh = ShardedRows(result.artifact), training_shards(result.artifact, dynamic=True)
    numbers = np.random.default_rng(0).permutation(len(stored))
    one, other = (rows.take(numbers, numbers % 2) for rows in (stored, fresh))
    for name in ("ids", "sentences", "positions", "replacements", "counts"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(st.lists(st.integers(0, 60), min_size=2, max_size=2), min_size=1, max_size=4),
    group=st.integers(1, 20),
    window=st.sampled_from([None, 7, 64]),
    seed=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, 5),
)
def test_every_row_comes_once_in_the_order_of_drawings(
    cells: list[list[int]], group: int, window: int | None, seed: int, epoch: int
) -> None:
    """`cells`: rows of each drawing in each of two length bins."""
    counts = np.array(cells)
    total = int(counts.sum())
    if not total:
        return
    bins = LengthBins(counts.ravel(), np.array([0]), np.array([0]))
    sampler = Sampler(total, 2, seed, bins, group, window, len(cells))
    found, copies = sampler.locate(np.arange(epoch * total, (epoch + 1) * total))
    assert np.array_equal(np.sort(found), np.arange(total))
    assert (copies == epoch % 2).all()
    ends = np.cumsum(counts.sum(axis=1))
    assert (np.diff(np.searchsorted(ends, found, side="right")) >= 0).all()
