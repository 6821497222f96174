"""How a mixture was chosen in one process, the reference; and the product's choice in parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloze.core import random_keys
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.ragged import I64
from cloze.pipeline.corpus.mixing import (
    FILLING,
    NOT_IN_MIXTURE,
    OVER_BUDGET,
    Bools,
    GroupTotals,
    Window,
    _target_words,
    choose_mixture,
    order_rank,
)
from cloze.pipeline.corpus.options import MixtureOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSelection:
    """The chosen documents.

    Attributes:
        numbers: int64 [n], indices into the given arrays; repeated documents occur several times.
        copies: int64 [n], number of the repetition, from 0.
        groups: per source or language, training split: `name`, `available_words`, `words`,
            `documents`, `share` of the words, `epochs`.
        dropped: documents by reason.
    """

    numbers: I64
    copies: I64
    groups: list[dict[str, Any]]
    dropped: Counter[str]


def sample_mixture(
    keys: random_keys.U64,
    words: I64,
    heldout: Bools,
    groups: I64,
    names: Sequence[str],
    options: MixtureOptions,
) -> MixtureSelection:
    """Choose documents according to the mixture.

    Args:
        keys: uint64 [n], document keys.
        words: int64 [n], words per document.
        heldout: bool [n].
        groups: int64 [n], indices into `names`.
        names: sources or languages.

    Raises:
        UsageError: too few words, or a weighted group without documents.
    """
    weighed = [
        number
        for number, name in enumerate(names)
        if not options.mixture or name in options.mixture
    ]
    train = ~heldout
    available = np.bincount(groups[train], words[train], minlength=len(names)).astype(np.int64)
    left = [name for name, count in zip(names, available, strict=True) if count]
    missing = sorted(options.mixture.keys() - set(left))
    if missing:
        raise UsageError(
            f"mixture has a weight for {missing[0]!r}, but no documents of it are left to train "
            f"on; {did_you_mean(missing[0], left, 'remove the weight, or relax the filters')}"
        )
    targets = _target_words(
        {number: int(available[number]) for number in weighed}, dict(enumerate(names)), options
    )
    ranks = order_rank(keys)
    numbers: list[Any] = []
    copies: list[Any] = []
    summaries: list[dict[str, Any]] = []
    dropped = Counter({NOT_IN_MIXTURE: int((~np.isin(groups, weighed)).sum())})
    for number in weighed:
        own = np.flatnonzero(groups == number)
        own = own[np.lexsort((keys[own], ranks[own]))]
        trained, heldout_rows = own[train[own]], own[heldout[own]]
        whole, rest = divmod(targets[number], max(1, int(available[number])))
        again = trained[_prefix(words[trained], rest)]
        share = 1.0 if whole else rest / max(1, int(available[number]))
        heldout_rows = heldout_rows[random_keys.uniform(ranks[heldout_rows]) < share]
        repeated = [np.full(trained.size, copy) for copy in range(whole)]
        numbers += [*([trained] * whole), again, heldout_rows]
        copies += [*repeated, np.full(again.size, whole), np.zeros(heldout_rows.size, np.int64)]
        sampled_words = whole * int(available[number]) + int(words[again].sum())
        dropped[OVER_BUDGET] += int(
            own.size - (trained.size if whole else again.size) - heldout_rows.size
        )
        summaries.append(
            {
                "name": names[number],
                "available_words": int(available[number]),
                "words": sampled_words,
                "documents": whole * trained.size + again.size,
                "epochs": round(sampled_words / max(1, int(available[number])), 4),
            }
        )
    total_words = max(1, sum(summary["words"] for summary in summaries))
    shares = [
        {**summary, "share": round(summary["words"] / total_words, 6)} for summary in summaries
    ]
    return MixtureSelection(
        numbers=np.concatenate(numbers).astype(np.int64) if numbers else np.zeros(0, np.int64),
        copies=np.concatenate(copies).astype(np.int64) if copies else np.zeros(0, np.int64),
        groups=sorted(shares, key=lambda summary: str(summary["name"])),
        dropped=+dropped,
    )


def _prefix(words: I64, budget: int) -> I64:
    """Return the longest prefix within the budget, then later documents that still fit."""
    running = np.cumsum(words)
    count = int(np.searchsorted(running, budget, side="right"))
    left, more = budget - (int(running[count - 1]) if count else 0), []
    for at in range(count, min(count + FILLING, len(words))):
        if words[at] <= left:
            more.append(at)
            left -= int(words[at])
    return np.concatenate([np.arange(count), np.array(more, np.int64)])


def choose_in_parts(
    keys: random_keys.U64,
    words: I64,
    heldout: Bools,
    groups: I64,
    names: Sequence[str],
    options: MixtureOptions,
    part: I64 | None = None,
    looks: list[int] | None = None,
) -> MixtureSelection:
    """Choose as the corpus does: each part tells its totals, its windows, and takes its share.

    Args:
        part: int64 [n], the part of each document. Default: one.
        looks: gets the number of documents of each window.
    """
    numbers = np.arange(len(keys))
    parts = [numbers] if part is None else [np.flatnonzero(part == one) for one in np.unique(part)]
    looks = [] if looks is None else looks

    def sums(own: Bools) -> tuple[int, int, float]:
        found = [(words[rows][own[rows]]) for rows in parts]
        return (
            sum(int(one.sum()) for one in found),
            sum(len(one) for one in found),
            sum(float(np.square(one, dtype=np.float64).sum()) for one in found),
        )

    def look(ranges: dict[int, tuple[int, int]]) -> dict[int, Window]:
        windows, ranks = {}, order_rank(keys)
        for group, (low, high) in ranges.items():
            own = (groups == group) & ~heldout
            inside = [rows[(own & (ranks >= low) & (ranks <= high))[rows]] for rows in parts]
            found = np.concatenate([np.zeros(0, np.int64), *inside[::-1]])  # in any order
            before = sums(own & (ranks < low))[:2]
            windows[group] = Window(*before, low, high, ranks[found], found, words[found])
            looks.append(len(found))
        return windows

    totals = {
        group: GroupTotals(*sums((groups == group) & ~heldout)) for group in range(len(names))
    }
    mixture = choose_mixture(totals, dict(enumerate(names)), options, look)
    chosen, copies, dropped = [], [], Counter[str]()
    for rows in parts:
        times, left = mixture.times(keys[rows], rows, heldout[rows], groups[rows])
        chosen.append(np.repeat(rows, times))
        copies += [np.arange(count) for count in times]
        dropped.update(left)
    found = MixtureSelection(
        numbers=np.concatenate([np.zeros(0, np.int64), *chosen]),
        copies=np.concatenate([np.zeros(0, np.int64), *copies]),
        groups=mixture.summaries,
        dropped=+dropped,
    )
    assert mixture.most == found.copies.max(initial=0) + 1
    return found
