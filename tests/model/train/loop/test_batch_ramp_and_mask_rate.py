"""Batches that grow and masks that thin out: which samples a step has, that resuming is exact, and
what is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.model.data.masks import MaskRateSchedule
from cloze.model.data.rows import MaskedRows
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.train.config import PretrainConfig
from cloze.model.train.loop.data import DatasetSource
from cloze.model.train.loop.rollback import pass_over
from cloze.model.train.spec.schedules import BatchSizeSchedule
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, digests, here

WEIGHTS = "model.safetensors", "training/optimizer.safetensors"
MASKS = {"rule": "token", "rate": 0.15}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", masks=MASKS)


@given(st.integers(1, 40), st.integers(2, 20), st.integers(1, 300))
def test_a_batch_grows_level_by_level(first: int, levels: int, steps: int) -> None:
    batches = BatchSizeSchedule(first * levels, first, steps)
    sizes = [batches.size(step) for step in range(steps + 3)]
    assert sizes == sorted(sizes)
    assert sizes[steps:] == [first * levels] * 3
    assert all(size % first == 0 for size in sizes)

    assert [batches.samples_before(step) for step in range(steps + 3)] == [
        sum(sizes[:step]) for step in range(steps + 3)
    ]
    if steps >= levels:
        assert set(sizes) == {first * (level + 1) for level in range(levels)}


def test_a_batch_that_does_not_grow_is_the_same_throughout() -> None:
    assert [BatchSizeSchedule(8).samples_before(step) for step in range(4)] == [0, 8, 16, 24]


def test_masks_thin_out_in_a_straight_line(dataset: str) -> None:
    thinning = MaskRateSchedule(last=0.5, first=100, steps=1000, seed=3)
    assert [thinning.share_at(step) for step in (0, 100, 600, 1100, 2000)] == [
        1.0,
        1.0,
        0.75,
        0.5,
        0.5,
    ]
    shards = ShardedRows(dataset)
    samples = np.arange(5000)
    rows = shards.take(samples % 96, samples % 2)
    for step in (0, 600, 1100):
        thin = thinning.subsample(rows, samples, step)
        assert len(thin.positions) / len(rows.positions) == pytest.approx(
            thinning.share_at(step), abs=0.01
        )
        assert int(thin.counts.sum()) == len(thin.positions) == len(thin.replacements)
    everything = {tuple(item) for item in _masks(rows, samples)}
    some, fewer = (
        set(_masks(thinning.subsample(rows, samples, step), samples)) for step in (600, 1100)
    )
    assert (
        fewer < some < everything
    )  # what was left out once stays out: no token is told and then asked
    alone = thinning.subsample(shards.take(np.array([7]), np.array([1])), np.array([7]), 600)
    assert set(_masks(alone, np.array([7]))) == {
        item for item in some if item[0] == 7
    }  # whatever else is in the batch


@settings(max_examples=40)
@given(
    growing=st.booleans(),
    passed=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), max_size=2),
    step=st.integers(0, 20),
    ranks=st.integers(1, 3),
)
def test_rows_that_are_passed_over_move_no_schedule(
    dataset: str, growing: bool, passed: list[tuple[int, int]], step: int, ranks: int
) -> None:
    """After a rollback other rows are read; sizes, shares of masks and clocks go by the step."""
    shards = ShardedRows(dataset)
    batches = BatchSizeSchedule(12, 4, 15) if growing else BatchSizeSchedule(12)
    source = DatasetSource(
        shards=shards,
        info=shards.info,
        sampler=Sampler(rows=len(shards), copies=2, seed=3),
        batches=batches,
        micro_batch=3,
        thinning=MaskRateSchedule(last=0.5, first=0, steps=20, seed=3),
    )
    ranges = tuple(sorted(passed))
    moved = pass_over(source, ranges)
    starts = [moved.samples(number) for number in range(step + 2)]
    for number, start in enumerate(starts[:-1]):
        jump = sum(
            batches.samples_before(first + count) - batches.samples_before(first)
            for first, count in ranges
            if number + 1 == first
        )
        assert starts[number + 1] - start == batches.size(number) + jump
    rows = moved.row_ids(step)["rows"]
    assert len(rows) == batches.size(step)
    works = [moved.step_batches(step, rank, ranks).micro_batches for rank in range(ranks)]
    plain = [source.step_batches(step, rank, ranks).micro_batches for rank in range(ranks)]
    assert [[item.batch["step"].item() for item in own] for own in works] == [
        [item.batch["step"].item() for item in own] for own in plain
    ]
    expected = source.sampler.locate(np.arange(starts[step], starts[step] + batches.size(step)))[0]
    assert rows == expected.tolist()
    if not any(first <= step for first, _ in ranges):
        assert starts[step] == source.samples(step)


def _masks(rows: MaskedRows, samples: np.ndarray) -> list[tuple[int, int, int]]:
    each = np.repeat(samples, rows.counts)
    return list(
        zip(each.tolist(), rows.positions.tolist(), rows.replacements.tolist(), strict=True)
    )


GROWING = {
    "global_batch": 12,
    "initial_batch": 4,
    "batch_ramp_steps": 6,
    "final_mask_rate": 0.05,
    "steps": 9,
}


def test_a_run_that_was_stopped_is_the_same(dataset: str, tmp_path: Path) -> None:
    whole = here(config(**GROWING), dataset, tmp_path / "whole")
    here(config(**GROWING, log_every=1), dataset, tmp_path / "parts", stop_at=4)
    parts = here(config(**GROWING, log_every=1), dataset, tmp_path / "parts")
    assert [digests(parts.checkpoint)[name] for name in WEIGHTS] == [
        digests(whole.checkpoint)[name] for name in WEIGHTS
    ]
    assert whole.outcome is not None
    assert whole.outcome.rows == 2 * (4 + 8 + 12) + 3 * 12
    assert whole.said("micro_batch").splitlines()[0] == "4 x 3 x 1"
    tokens = [line["tokens"] for line in lines(tmp_path / "parts" / "metrics.jsonl")]
    assert np.diff([0, *tokens])[[0, 8]] / [4, 12] == pytest.approx([24, 24], abs=5)


def test_how_it_is_cut_changes_nothing(dataset: str, tmp_path: Path) -> None:
    at_once = here(config(**GROWING, model=STILL), dataset, tmp_path / "once")
    in_parts = here(config(**GROWING, model=STILL), dataset, tmp_path / "parts", micro_batch=2)
    assert at_once.outcome is not None
    assert in_parts.outcome is not None
    assert in_parts.outcome.summary["loss"] == pytest.approx(
        at_once.outcome.summary["loss"], abs=1e-5
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"initial_batch": 8}, "give batch_ramp_steps, too"),
        ({"batch_ramp_steps": 8}, "give initial_batch, too"),
        (
            {"initial_batch": 24, "batch_ramp_steps": 8, "global_batch": 64},
            r"global_batch \(64\) is no multiple of initial_batch \(24\)",
        ),
        ({"initial_batch": 64, "batch_ramp_steps": 8, "global_batch": 64}, "that is more"),
        (
            {"initial_batch": 8, "batch_ramp_steps": 80, "global_batch": 64, "steps": 9},
            r"batch_ramp_steps \(80\) is more than steps \(9\)",
        ),
        (
            {"final_mask_rate": 0.1, "max_time": "5m"},
            "final_mask_rate goes by steps, and max_time says how long",
        ),
    ],
)
def test_what_cannot_grow_is_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_config(PretrainConfig, values, "pretrain")


def test_masks_that_cannot_be_thinned_are_refused(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"final_mask_rate \(0.2\) is not below the dataset's mask_rate \(0.15\)"
    ):
        here(config(final_mask_rate=0.2), dataset, tmp_path / "more")
    words = write_dataset(tmp_path / "words", masks={"rule": "whole-word", "rate": 0.15})
    with pytest.raises(
        UsageError,
        match="this one's is whole-word; leave it out, or make the dataset with masking token",
    ):
        here(config(final_mask_rate=0.1), words, tmp_path / "refused")


def test_a_source_that_is_no_dataset_passes_whole_steps_over() -> None:
    """Fine-tuning's: from a step on it reads so many steps further, for every range before."""

    class Numbers:
        """Each step is its own number."""

        def step_batches(self, step: int, rank: int, world_size: int) -> Any:
            return step, rank, world_size

        def samples(self, steps: int) -> int:
            return 10 * steps

        def row_ids(self, step: int) -> dict[str, list[int]]:
            return {"rows": [step]}

    source: Any = Numbers()
    moved = pass_over(source, [(3, 2), (5, 1)])
    steps = [0, 1, 2, 5, 6, 8, 9]
    assert [moved.row_ids(step)["rows"][0] for step in range(7)] == steps
    assert [moved.samples(step) for step in range(7)] == [10 * step for step in steps]
    assert [moved.step_batches(step, 1, 4) for step in range(7)] == [(n, 1, 4) for n in steps]
    assert pass_over(source, []) is source
