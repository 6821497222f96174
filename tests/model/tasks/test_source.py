"""Fine-tuning's batches: every sample once an epoch, the same on any number of ranks, a function of
the step alone.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.source import BLANK, EpochSource


def samples(lengths: list[int]) -> TextSamples:
    """Samples whose pieces are their own number."""
    return TextSamples(
        sequences=tuple(
            np.full(length, number, dtype=np.int32) for number, length in enumerate(lengths)
        ),
        second=np.array(lengths, dtype=np.int64),
        truncated=0,
        pad=-1,
        targets={"number": np.arange(len(lengths))},
    )


def taken(source: EpochSource, step: int, world: int) -> tuple[list[int], list[int], int]:
    """The samples of a step over all ranks, the numbers of its micro-batches, and its tokens."""
    works = [source.step_batches(step, rank, world) for rank in range(world)]
    assert len({len(work.micro_batches) for work in works}) == 1
    batches = [item for work in works for item in work.micro_batches]
    found = [
        number
        for item in batches
        if BLANK not in item.batch
        for number in item.batch["number"].tolist()
    ]
    return (
        found,
        [item.first for item in batches if BLANK not in item.batch],
        sum(work.tokens for work in works),
    )


drawn = st.tuples(
    st.lists(st.integers(1, 40), min_size=1, max_size=90),
    st.integers(1, 20),
    st.integers(1, 7),
    st.integers(1, 4),
)


@given(drawn, st.integers(0, 2**63 - 1))
@settings(max_examples=40, deadline=None)
def test_every_sample_comes_once_an_epoch_however_it_is_cut(values, seed):
    lengths, batch_size, micro_batch, world = values
    source = EpochSource(
        samples(lengths), batch_size=batch_size, seed=seed, micro_batch=micro_batch
    )
    whole = EpochSource(samples(lengths), batch_size=batch_size, seed=seed, micro_batch=batch_size)
    seen: list[int] = []
    for step in range(2 * source.steps_per_epoch):
        found, firsts, tokens = taken(source, step, world)
        assert found == taken(whole, step, 1)[0] == source.row_ids(step)["rows"]
        assert tokens == sum(lengths[number] for number in found)
        assert source.samples(step) == len(seen)
        assert firsts[0] == len(
            seen
        )  # counted over the run, so that no two micro-batches have the same dropout
        assert len(set(firsts)) == len(firsts)
        seen += found
        assert source.samples(step + 1) == len(seen)
    assert sorted(seen[: len(lengths)]) == sorted(seen[len(lengths) :]) == list(range(len(lengths)))


def test_micro_batches_are_no_larger_than_asked_and_a_rank_without_samples_gets_a_blank_one():
    source = EpochSource(samples([5] * 9), batch_size=8, seed=1, micro_batch=3)
    sizes = [
        [len(item.batch["number"]) for item in source.step_batches(step, 0, 1).micro_batches]
        for step in (0, 1)
    ]
    assert sorted(map(sum, sizes)) == [1, 8]
    assert max(map(max, sizes)) <= 3
    small = min((0, 1), key=lambda step: sum(sizes[step]))
    blanks = [
        BLANK in item.batch
        for rank in range(2)
        for item in source.step_batches(small, rank, 2).micro_batches
    ]
    assert sorted(blanks) == [False, True]


def test_a_step_is_the_same_in_whatever_order_it_is_asked_for():
    def ids(source: EpochSource, step: int) -> torch.Tensor:
        return source.step_batches(step, 0, 1).micro_batches[0].batch["input_ids"]

    steps = list(range(12))
    forward, backward = (
        EpochSource(samples(list(range(3, 40))), batch_size=10, seed=4, micro_batch=10)
        for _ in range(2)
    )
    found = {step: ids(forward, step) for step in steps}
    assert all(torch.equal(ids(backward, step), found[step]) for step in reversed(steps))
