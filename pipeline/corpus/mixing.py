"""Mixture: how much of each source or language to keep, and how often.

Documents are chosen by a hash of their keys, independent of workers and file order, from totals and
the documents near the end of each budget: no process has a number for each document. Words count in
the training split only. A group keeps the same share of its held-out documents as of its training
documents; held-out documents are never repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.ragged import I64
from cloze.pipeline.corpus.options import MixtureOptions

_ORDER, _COPY = 0x4D495854, 0x434F5059
OVER_BUDGET, NOT_IN_MIXTURE = "over_budget", "not_in_mixture"
UNKNOWN = "unknown"
FILLING = 1000  # documents to try after the first one that exceeds the budget
DEVIATIONS = 4  # of the words before a rank, on either side of a window
_RANKS = 1 << 64

Bools = npt.NDArray[np.bool_]


def language_code(language: str) -> int:
    """Return a language code as a 32-bit number; 0 for none."""
    return int.from_bytes(language.encode()[:4], "little")


def language_name(code: int) -> str:
    return code.to_bytes(4, "little").rstrip(b"\0").decode("ascii", "replace") or UNKNOWN


def copied_key(keys: random_keys.U64, copies: I64) -> random_keys.U64:
    """Return the keys of repeated documents; copy 0 keeps its key."""
    return np.where(copies == 0, keys, random_keys.fold_in(_COPY, keys, copies))


def copied_id(name: str, copy: int) -> str:
    """Return the id of a repeated document; copy 0 keeps its id."""
    return f"{name}#{copy + 1}" if copy else name


class GroupTotals(NamedTuple):
    """Totals of the training documents of a source or language."""

    words: int  # words and documents: sums
    documents: int
    squares: float  # sum of the squared words of a document


class Window(NamedTuple):
    """Training documents of a group by rank, and the totals of those before it."""

    words: int  # words and documents: totals of the documents of lower rank
    documents: int
    low: int  # low and high: lowest and highest rank, inclusive
    high: int
    # ranks, numbers and sizes: rank, number and words of each document in it
    ranks: random_keys.U64
    numbers: I64
    sizes: I64


class GroupChoice(NamedTuple):
    """The chosen documents of a source or language."""

    whole: int  # times that all its training documents are taken
    last: tuple[int, int]  # rank and number of the last of those taken once more; (-1, 0): none
    more: tuple[int, ...]  # numbers of later ones that are taken once more
    heldout_share: float  # share of the held-out documents
    words: int  # words and documents: totals of those taken once more
    documents: int

    def times(self, ranks: random_keys.U64, numbers: I64, heldout: Bools) -> I64:
        """Return how often each document of the group is taken, int64 [n]."""
        rank, number = self.last
        again = np.isin(numbers, self.more)
        if rank >= 0:
            again |= (ranks < rank) | ((ranks == rank) & (numbers <= number))
        is_taken = random_keys.uniform(ranks) < self.heldout_share
        return np.where(heldout, is_taken, self.whole + again).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The chosen documents of all groups."""

    choices: dict[int, GroupChoice]  # by group; others are left out
    # per source or language, training split: `name`, `available_words`, `words`, `documents`,
    # `share` of the words, `epochs`
    summaries: list[dict[str, Any]]

    @property
    def most(self) -> int:
        """The most times that a document may be taken, at least 1."""
        return max([1, *(one.whole + bool(one.documents) for one in self.choices.values())])

    def times(
        self, keys: random_keys.U64, numbers: I64, heldout: Bools, groups: I64
    ) -> tuple[I64, dict[str, int]]:
        """Return how often each document is taken, and the number of those left out by reason."""
        ranks, times = order_rank(keys), np.zeros(len(keys), np.int64)
        for group, choice in self.choices.items():
            own = groups == group
            times[own] = choice.times(ranks[own], numbers[own], heldout[own])
        known = np.isin(groups, list(self.choices))
        reasons = {OVER_BUDGET: known & (times == 0), NOT_IN_MIXTURE: ~known}
        return times, {reason: int(found.sum()) for reason, found in reasons.items()}


def order_rank(keys: random_keys.U64) -> random_keys.U64:
    """Return the ranks by which documents are taken, different for different keys."""
    return random_keys.fold_in(_ORDER, keys)


def choose_mixture(
    totals: Mapping[int, GroupTotals],
    names: Mapping[int, str],
    options: MixtureOptions,
    look: Callable[[dict[int, tuple[int, int]]], dict[int, Window]],
) -> Mixture:
    """Choose documents according to the mixture.

    The rank at which a group's budget ends is the budget's share of its words, about. A window of
    some standard deviations around it has the end, and is all that is looked at; should it not,
    a wider one is.

    Args:
        totals: by group, in the order of the groups' shares.
        look: returns the window of each group between two ranks, inclusive.

    Raises:
        UsageError: too few words, or a weighted group without documents.
    """
    weighed = [group for group in totals if not options.mixture or names[group] in options.mixture]
    left = [names[group] for group, total in totals.items() if total.words]
    missing = sorted(options.mixture.keys() - set(left))
    if missing:
        raise UsageError(
            f"mixture has a weight for {missing[0]!r}, but no documents of it are left to train "
            f"on; {did_you_mean(missing[0], left, 'remove the weight, or relax the filters')}"
        )
    targets = _target_words({group: totals[group].words for group in weighed}, names, options)
    choices: dict[int, GroupChoice] = {}
    width = 1.0
    while pending := [group for group in weighed if group not in choices]:
        ranges = {group: _window_ranks(totals[group], targets[group], width) for group in pending}
        for group, window in look(ranges).items():
            choice = _group_choice(totals[group], targets[group], window)
            if choice is not None:
                choices[group] = choice
        width *= 8
    return Mixture(choices, _summaries(choices, totals, names))


def _summaries(
    choices: Mapping[int, GroupChoice], totals: Mapping[int, GroupTotals], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    words = {group: one.whole * totals[group].words + one.words for group, one in choices.items()}
    whole = max(1, sum(words.values()))
    summaries = [
        {
            "name": names[group],
            "available_words": totals[group].words,
            "words": words[group],
            "documents": choice.whole * totals[group].documents + choice.documents,
            "epochs": round(words[group] / max(1, totals[group].words), 4),
            "share": round(words[group] / whole, 6),
        }
        for group, choice in choices.items()
    ]
    return sorted(summaries, key=lambda summary: str(summary["name"]))


def _window_ranks(totals: GroupTotals, target: int, width: float) -> tuple[int, int]:
    """Return the lowest and highest rank among which the budget ends, very probably."""
    words = max(1, totals.words)
    centre = target % words / words
    half = width * (
        DEVIATIONS * math.sqrt(totals.squares) / words + 2 * FILLING / max(1, totals.documents)
    )
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return int(low * _RANKS), min(int(high * _RANKS), _RANKS - 1)


def _group_choice(totals: GroupTotals, target: int, window: Window) -> GroupChoice | None:
    """Return the choice of a group; None if the window does not have the end of its budget.

    Taken are the documents up to the budget, then later ones that still fit.
    """
    words = max(1, totals.words)
    whole, budget = divmod(target, words)
    order = np.lexsort((window.numbers, window.ranks))
    ranks, numbers, sizes = (column[order] for column in window[4:])
    running = window.words + np.cumsum(sizes)
    count = int(np.searchsorted(running, budget, side="right"))
    is_end = window.high == _RANKS - 1
    if window.words > budget or (count + FILLING > len(sizes) and not is_end):
        return None
    left, last, more = budget - window.words, (window.low - 1, np.iinfo(np.int64).max), []
    if count:
        left, last = (
            budget - int(running[count - 1]),
            (int(ranks[count - 1]), int(numbers[count - 1])),
        )
    later = slice(count, count + FILLING)
    for number, size in zip(numbers[later].tolist(), sizes[later].tolist(), strict=True):
        if size <= left:
            more.append(number)
            left -= size
    return GroupChoice(
        whole=whole,
        last=last,
        more=tuple(more),
        heldout_share=1.0 if whole else budget / words,
        words=budget - left,
        documents=window.documents + count + len(more),
    )


def _target_words(
    available: Mapping[int, int], names: Mapping[int, str], options: MixtureOptions
) -> dict[int, int]:
    """Return the words per group: its share of the budget.

    Without a budget, the total is as large as the scarcest group allows. Without weights, the
    budget is at most what there is.
    """
    largest = max([1, *available.values()])
    raw = {
        number: options.mixture.get(names[number])
        or math.pow(count / largest, 1 / options.mixture_temperature)
        for number, count in available.items()
    }
    total = sum(raw.values())
    shares = {number: weight / total if total else 0.0 for number, weight in raw.items()}
    most = {number: options.mixture_epochs * count for number, count in available.items()}
    budget = options.max_words or min(
        (most[number] / share for number, share in shares.items() if share), default=0.0
    )
    if not options.mixture and options.mixture_temperature == 1:
        budget = min(budget, options.mixture_epochs * sum(available.values()))
    targets = {number: int(budget * share * (1 + 1e-12)) for number, share in shares.items()}
    for number, count in targets.items():
        if count > math.ceil(most[number]):
            times = f"{count / max(1, available[number]):.2f} times"
            raise UsageError(
                f"{options.mixture_by} {names[number]} has {available[number]:,} words for "
                f"training, but the mixture needs {count:,} ({times}). Lower max_words "
                f"({budget:,.0f}) or its weight, or raise mixture_epochs "
                f"({options.mixture_epochs:g})"
            )
    return targets
