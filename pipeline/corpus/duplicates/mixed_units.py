"""Steps that choose the documents of a mixture (`mixing.py`), in the units of `unit_plans.py`.

CountGroups  a unit -> totals of its kept documents by source or language
(the driver chooses where each budget ends, about)
SendWindow   a unit -> totals of the documents before a window, and those in it
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.unit_plans import DecidedUnits
from cloze.pipeline.corpus.mixing import (
    GroupTotals,
    Mixture,
    Window,
    choose_mixture,
    language_name,
    order_rank,
)
from cloze.pipeline.corpus.options import MixtureOptions
from cloze.pipeline.runners.exchange import Exchange

WINDOW = pa.schema(
    [("group", pa.int64()), ("rank", pa.uint64()), ("number", pa.int64()), ("words", pa.int64())]
)


EachUnit = Callable[[str, Any], list[dict[str, Any]]]
"""Runs the job of a step on every unit, and returns the results in order."""


@dataclass(frozen=True, kw_only=True)
class CountGroups:
    """Count the training documents of a unit that stay, by group."""

    units: DecidedUnits

    def __call__(self, unit: int) -> dict[str, Any]:
        """Return `GroupTotals` by group."""
        kept = self.units.mixed(unit)
        totals = {}
        for group in np.unique(kept.groups).tolist():
            words = kept.words[(kept.groups == group) & ~kept.heldout]
            squares = float(np.square(words, dtype=np.float64).sum())
            totals[str(group)] = (int(words.sum()), len(words), squares)
        return {"groups": totals}


@dataclass(frozen=True, kw_only=True)
class SendWindow:
    """Send the training documents of a unit that are in the window of their group."""

    units: DecidedUnits
    ranks: Mapping[int, tuple[int, int]]  # lowest and highest rank of each group's window
    windows: Exchange  # exchange of WINDOW with one place

    def __call__(self, unit: int) -> dict[str, Any]:
        """Write a run; return words and number of the documents before each window."""
        kept, before = self.units.mixed(unit), {}
        ranks, inside = order_rank(kept.keys), np.zeros(len(kept.keys), bool)
        for group, (low, high) in self.ranks.items():
            own = (kept.groups == group) & ~kept.heldout
            earlier = own & (ranks < low)
            before[str(group)] = (int(kept.words[earlier].sum()), int(earlier.sum()))
            inside |= own & (ranks >= low) & (ranks <= high)
        columns = (kept.groups, ranks, kept.numbers, kept.words)
        table = pa.table([column[inside] for column in columns], schema=WINDOW)
        self.windows.write(unit, [(table, np.zeros(table.num_rows, np.int64))])
        return {"before": before}


def choose_in_units(
    build: BuildContext,
    units: DecidedUnits,
    kinds: Sequence[str],
    options: MixtureOptions,
    for_each: EachUnit,
) -> Mixture:
    """Choose among the kept documents.

    This process holds the totals of each unit, and the documents of the windows: some standard
    deviations of all, 32 bytes each.

    Args:
        kinds: kinds of sources, by the groups' numbers; empty: groups are languages.
    """
    results = for_each("mixture-count", CountGroups(units=units))
    found = {int(group) for result in results for group in result["groups"]}
    names = dict(enumerate(kinds)) if kinds else {one: language_name(one) for one in sorted(found)}
    totals = {group: GroupTotals(*_sums(results, "groups", group, 3)) for group in names}
    rounds = itertools.count()

    def look(ranks: dict[int, tuple[int, int]]) -> dict[int, Window]:
        step, runs = f"mixture-window-{next(rounds)}", units.decisions.places
        windows = Exchange(directory=storage.join(units.directory, step), runs=runs, places=1)
        results = for_each(step, SendWindow(units=units, ranks=ranks, windows=windows))
        windows.connect(build, f"connect-{step}")
        with windows.read(WINDOW, 0, 1) as rows:
            table = pa.Table.from_batches(list(rows.batches(0)), schema=WINDOW)
            groups, *columns = (table[name].to_numpy() for name in WINDOW.names)
            found = {}
            for group, (low, high) in ranks.items():
                words, documents = _sums(results, "before", group, 2)
                own = (column[groups == group] for column in columns)
                found[group] = Window(words, documents, low, high, *own)
        return found

    return choose_mixture(totals, names, options, look)


def _sums(results: Sequence[dict[str, Any]], name: str, group: int, count: int) -> list[Any]:
    """Return the sums of a group's numbers over all units."""
    numbers = [result[name].get(str(group), [0] * count) for result in results]
    return [sum(column) for column in zip(*numbers, strict=True)] or [0] * count
