"""What several datasets are together, of what each of them is, and the order of their samples."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from cloze.model.data.mixture import LENGTH_GROUP, ConcatenatedRows, MixtureSampler
from cloze.model.data.shards import ShardedRows
from cloze.model.train.loop import data
from cloze.model.train.spec.interfaces import StartPosition
from tests.model.train.ranks import config


class Part:
    """A dataset of so many rows, of at most so many predictions."""

    def __init__(self, rows: int, most: int = 1, binned: bool = False) -> None:
        self.rows, self.most, self.is_binned, self.info = rows, most, binned, f"info of {rows}"

    def __len__(self) -> int:
        return self.rows

    def first(self, number: int) -> np.ndarray:
        return np.arange(min(number, self.rows))

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


def test_a_mixture_has_the_rows_of_all_and_represents_each_by_its_share() -> None:
    mixed = together(Part(10, 3), Part(20, 7), Part(5, 2), shares=(0.5, 0.3, 0.2))
    assert len(mixed) == 35
    assert mixed.info == "info of 10"
    assert mixed.most_predictions() == 7
    assert mixed.first(10).tolist() == [*range(5), *range(10, 13), 30, 31]
    assert mixed.first(100).tolist() == [*range(10), *range(10, 30), *range(30, 35)]
    rows = np.array([0, 9, 10, 29, 30, 34])
    assert mixed.source(rows).tolist() == [0, 0, 1, 1, 2, 2]
    assert mixed.local(rows).tolist() == [0, 9, 0, 19, 0, 4]
    assert mixed.by_source(rows[:3], np.array([1, 2, 4])) == [3, 4, 0]
    assert mixed.shares == {"p0": 0.5, "p1": 0.3, "p2": 0.2}
