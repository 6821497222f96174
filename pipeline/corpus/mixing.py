"""Mixture: how much of each source or language to keep, and how often.

Documents are chosen by a hash of their keys, independent of workers and file order. Words count in
the training split only. A group keeps the same share of its held-out documents as of its training
documents; held-out documents are never repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloze.core import random_keys
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.ragged import I64
from cloze.pipeline.corpus.options import MixtureOptions

_ORDER, _COPY = 0x4D495854, 0x434F5059
OVER_BUDGET, NOT_IN_MIXTURE = "over_budget", "not_in_mixture"
UNKNOWN = "unknown"
FILLING = 1000  # documents to try after the first one that exceeds the budget


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
    heldout: np.ndarray[Any, Any],
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
    targets = _target_words({number: int(available[number]) for number in weighed}, names, options)
    ranks = random_keys.fold_in(_ORDER, keys)
    numbers, copies, summaries = [], [], []
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


def _target_words(
    available: Mapping[int, int], names: Sequence[str], options: MixtureOptions
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
