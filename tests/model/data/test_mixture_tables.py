"""What several datasets are together, of what each of them is, and the order of their samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from cloze.core.errors import UsageError
from cloze.model.data.mixture import (
    BLOCK,
    LENGTH_GROUP,
    ConcatenatedRows,
    MixtureAssignment,
    MixtureSampler,
    check_compatible,
    quotas,
)
from cloze.model.data.shards import ShardedRows
from cloze.model.train.loop import data
from cloze.model.train.spec.interfaces import StartPosition
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.tokenizer.special import SpecialTokens
from tests.model.train.ranks import config


class Part:
    """A dataset of so many rows, of at most so many predictions."""

    def __init__(self, rows: int, most: int = 1, binned: bool = False) -> None:
        self.rows, self.most, self.is_binned, self.info = rows, most, binned, f"info of {rows}"

    def __len__(self) -> int:
        return self.rows

    def most_predictions(self) -> int:
        return self.most


def together(*parts: Part, shares: tuple[float, ...] = ()) -> Any:
    named = {f"p{number}": part for number, part in enumerate(parts)}
    return ConcatenatedRows(
        cast("dict[str, ShardedRows]", named), shares or [1 / len(parts)] * len(parts)
    )


@pytest.mark.parametrize("binned", [(False, False), (True, False), (False, True), (True, True)])
def test_one_dataset_in_bins_makes_groups_of_all(
    binned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = together(*(Part(100, binned=one) for one in binned))
    assert mixed.is_binned is any(binned)
    monkeypatch.setattr(data, "make_sampler", lambda part, *options: (part, options))
    opened: Any = object.__new__(data.TrainingData)
    for name, value in {"train": mixed, "fingerprints": {"p0": "f", "p1": "g"}}.items():
        object.__setattr__(opened, name, value)
    for batch in (8, 1000):
        group = min(LENGTH_GROUP, batch) if any(binned) else 1
        start = StartPosition(places={"f": 3 * group + 1, "other": 5})
        sampler: Any = opened.order(config(global_batch=batch, seed=5), start)
        assert isinstance(sampler, MixtureSampler)
        assert (sampler.draw.group, sampler.draw.seed) == (group, 5)
        assert sampler.firsts == (4 * group if group > 1 else 4, 0), "a group begins as a whole"
        options = (5, False, batch)
        made: Any = sampler.samplers
        assert made == tuple((part, options) for part in mixed.parts.values())


def test_a_mixture_has_the_rows_of_all() -> None:
    mixed = together(Part(10, 3), Part(20, 7), Part(5, 2), shares=(0.5, 0.3, 0.2))
    assert len(mixed) == 35
    assert mixed.info == "info of 10"
    assert mixed.most_predictions() == 7
    rows = np.array([0, 9, 10, 29, 30, 34])
    assert mixed.source(rows).tolist() == [0, 0, 1, 1, 2, 2]
    assert mixed.local(rows).tolist() == [0, 9, 0, 19, 0, 4]
    assert mixed.by_source(rows[:3], np.array([1, 2, 4])) == [3, 4, 0]
    assert mixed.shares == {"p0": 0.5, "p1": 0.3, "p2": 0.2}


INFO = DatasetInfo(
    recipe="bert", length=128, copies=10, vocab_size=8192, special=SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4),
    pair_task="nsp", seed=7, tokenizer="a" * 64, masks={"rate": 0.15},
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("tokenizer", "b" * 64, "tokenizer (aaaaaaaaaaaa… and bbbbbbbbbbbb…)|make both with one --tokenizer"),
        ("tokenizer", "b" * 16, "tokenizer (aaaaaaaaaaaa… and bbbbbbbbbbbbbbbb)|make both with one --tokenizer"),
        ("vocab_size", 9, "vocabulary (8192 and 9)|make both with one --tokenizer"),
        ("special", SpecialTokens(pad=9, unk=1, cls=2, sep=3, mask=4), "special tokens|make both with one --tokenizer"),
        ("length", 64, "length (128 and 64)|make both with one --length"),
        ("recipe", "lm", "recipe (bert and lm)|make both with one --recipe"),
        ("pair_task", None, "pair task (nsp and None)|make both with one --recipe"),
        ("packed", True, "packing (False and True)|make both with one --recipe"),
        ("masks", None, "masking|make both with the same masking options"),
    ],
)  # fmt: skip
def test_what_differs_is_named(field: str, value: Any, told: str) -> None:
    what, remedy = told.split("|")
    other = replace(INFO, **{field: value})
    with pytest.raises(UsageError) as refused:
        check_compatible({"a": INFO, "b": INFO, "c": other})
    assert (
        str(refused.value)
        == f"datasets a and c differ in their {what} and cannot be mixed; {remedy}"
    )


def test_copies_and_seeds_may_differ() -> None:
    check_compatible({"a": INFO, "b": replace(INFO, copies=1, seed=8)})


def test_quotas_are_rounded_by_largest_remainders() -> None:
    assert quotas([1, 1, 1]) == (21846, 21845, 21845)
    assert quotas([0.5, 0.25, 0.25]) == (32768, 16384, 16384)
    assert quotas([3, 2, 2, 1e-4]) == (28087, 18724, 18724, 1)
    assert quotas([5, 3, 1, 1]) == (32768, 19661, 6554, 6553)
    with pytest.raises(ValueError, match="2"):
        quotas([1, 1, 1e-6])


def test_samples_go_in_groups_through_blocks() -> None:
    assignment = MixtureAssignment(quotas=quotas([3, 1]), seed=5, group=2)
    samples = np.arange(2 * BLOCK - 40, 2 * BLOCK + 41)
    sources, numbers = assignment.locate(samples)
    assert (sources[:-1:2] == sources[1::2]).all(), "a unit is of one dataset"
    first, last = int(samples[0]), int(samples[-1])
    for source in (0, 1):
        own = numbers[sources == source]
        start, stop = assignment.before(first)[source], assignment.before(last)[source]
        assert own.tolist()[: stop - start] == list(range(start, stop))
    assert [sum(assignment.before(n)) for n in (0, 7, 2 * BLOCK, 2 * BLOCK + 3)] == [
        0,
        7,
        2 * BLOCK,
        2 * BLOCK + 3,
    ]
    assert assignment.before(2 * BLOCK) == [2 * quota for quota in assignment.quotas]
