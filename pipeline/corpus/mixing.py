"""Corpus stage, within its second step: how much of each source, or of each language, stays, and how often.

It knows documents by number, key and words alone. Which of a group's documents are taken follows from a hash of their keys, so neither
workers nor the order of files shows. Words are counted in the training split; of what is held out a group keeps the share that it keeps
of its training documents, and nothing is repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from pipeline.core import random_keys
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.humanize import count_of
from pipeline.core.ragged import I64
from pipeline.corpus.options import AUTO, CorpusOptions

_ORDER, _COPY = 0x4D495854, 0x434F5059
NOT_TAKEN, NOT_WEIGHED = "over_budget", "not_in_mixture"
UNKNOWN = "unknown"
FILLING = 1000  # documents that are looked at to fill what the first one that is too long leaves


class MixOptions(CorpusOptions):
    """How much of what is left."""

    words: int | None = Field(default=None, ge=1)
    """Take so many words for training, such as 10M, at most and less than a document fewer of each source; without it all."""

    mixture: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """What each kind of source, or each language, is of the words: a weight by its name; without it its own size."""

    mixture_by: Literal["source", "language"] = "source"
    """What the mixture weighs: kinds of sources, or languages."""

    mixture_temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Without weights: each source or language counts its words to the power of 1 / this; more than 1 favours the small ones."""

    mixture_epochs: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    """The most often that a source or language is taken; its documents are repeated, each under an id of its own."""

    @field_validator("words", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        found = count_of(value) if isinstance(value, str) else value
        if found is None:
            raise ValueError("no such number; write it as 10M, 2.5M, 800k or 10000000")
        return found

    @model_validator(mode="after")
    def _one_weighing(self) -> Self:
        if self.mixture and self.mixture_temperature != 1:
            raise ValueError("mixture says each weight, and mixture_temperature takes it from the size; give one of them")
        if self.mixture_by == "language" and self.language != AUTO:
            raise ValueError("mixture_by language needs to know each document's: set language to auto")
        if self.mixture_epochs > 1 and not self.mixes:
            raise ValueError(
                "mixture_epochs repeats what a mixture or words asks for; give mixture, mixture_temperature or words"
            )
        return self

    @property
    def mixes(self) -> bool:
        """Whether not simply all that is left is taken."""
        return self.words is not None or bool(self.mixture) or self.mixture_temperature != 1

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Raises ValueError where the mixture weighs kinds of sources that are not read, or not all that are."""
        if not self.mixture or self.mixture_by != "source":
            return
        for name in self.mixture:
            if name not in kinds:
                raise ValueError(f"mixture weighs {name!r}, and no source is of that kind; {did_you_mean(name, kinds)}")
        lacking = [kind for kind in kinds if kind not in self.mixture]
        if lacking:
            raise ValueError(f"mixture says no weight of {lacking[0]!r}; weigh all kinds of sources, or leave mixture out")


def language_code(language: str) -> int:
    """A language as a number of 32 bits; 0 for none."""
    return int.from_bytes(language.encode()[:4], "little")


def language_name(code: int) -> str:
    return code.to_bytes(4, "little").rstrip(b"\0").decode("ascii", "replace") or UNKNOWN


def copied_key(keys: random_keys.U64, copies: I64) -> random_keys.U64:
    """The keys of a document's repetitions; of its first standing, copy 0, its own."""
    return np.where(copies == 0, keys, random_keys.derive(_COPY, keys, copies))


def copied_id(name: str, copy: int) -> str:
    """The id of a document's repetition."""
    return f"{name}#{copy + 1}" if copy else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What stays.

    Attributes:
        numbers: int64 [n], places in the arrays that were given, one more than once where it is repeated.
        copies: int64 [n], which repetition it is.
        groups: of each source or language: `name`, `available_words`, `words`, `documents`, `share` of the words, `epochs`; of training.
        dropped: documents by reason.
    """

    numbers: I64
    copies: I64
    groups: list[dict[str, Any]]
    dropped: Counter[str]


def take(
    keys: random_keys.U64, words: I64, heldout: np.ndarray[Any, Any], groups: I64, names: Sequence[str], options: MixOptions
) -> Taken:
    """Choose among documents.

    Args:
        keys, words, heldout, groups: of each document, [n].
        names: of the groups.

    Raises:
        UsageError: there are fewer words than are asked for, or a weighed language has none.
    """
    weighed = [number for number, name in enumerate(names) if not options.mixture or name in options.mixture]
    missing = sorted(options.mixture.keys() - set(names))
    if missing:
        raise UsageError(f"mixture weighs {missing[0]!r}, of which no document is left; {did_you_mean(missing[0], names)}")
    train = ~heldout
    there = np.bincount(groups[train], words[train], minlength=len(names)).astype(np.int64)
    wanted = _wanted({number: int(there[number]) for number in weighed}, names, options)
    ranks = random_keys.derive(_ORDER, keys)
    numbers, copies, told = [], [], []
    dropped = Counter({NOT_WEIGHED: int((~np.isin(groups, weighed)).sum())})
    for number in weighed:
        own = np.flatnonzero(groups == number)
        own = own[np.lexsort((keys[own], ranks[own]))]
        trained, held = own[train[own]], own[heldout[own]]
        whole, rest = divmod(wanted[number], max(1, int(there[number])))
        again = trained[_prefix(words[trained], rest)]
        share = 1.0 if whole else rest / max(1, int(there[number]))
        held = held[random_keys.uniform(ranks[held]) < share]
        repeated = [np.full(trained.size, copy) for copy in range(whole)]
        numbers += [*([trained] * whole), again, held]
        copies += [*repeated, np.full(again.size, whole), np.zeros(held.size, np.int64)]
        taken = whole * int(there[number]) + int(words[again].sum())
        dropped[NOT_TAKEN] += int(own.size - (trained.size if whole else again.size) - held.size)
        told.append(
            {
                "name": names[number],
                "available_words": int(there[number]),
                "words": taken,
                "documents": whole * trained.size + again.size,
                "epochs": round(taken / max(1, int(there[number])), 4),
            }
        )
    together = max(1, sum(one["words"] for one in told))
    found = [{**one, "share": round(one["words"] / together, 6)} for one in told]
    return Taken(
        numbers=np.concatenate(numbers).astype(np.int64) if numbers else np.zeros(0, np.int64),
        copies=np.concatenate(copies).astype(np.int64) if copies else np.zeros(0, np.int64),
        groups=sorted(found, key=lambda one: str(one["name"])),
        dropped=+dropped,
    )


def _wanted(there: Mapping[int, int], names: Sequence[str], options: MixOptions) -> dict[int, int]:
    """The words of each group: of the budget its share; without one as many as the scarcest allows."""
    largest = max([1, *there.values()])
    raw = {
        number: options.mixture.get(names[number]) or math.pow(count / largest, 1 / options.mixture_temperature)
        for number, count in there.items()
    }
    total = sum(raw.values())
    shares = {number: weight / total if total else 0.0 for number, weight in raw.items()}
    most = {number: options.mixture_epochs * count for number, count in there.items()}
    budget = options.words or min((most[number] / share for number, share in shares.items() if share), default=0.0)
    found = {number: int(budget * share * (1 + 1e-12)) for number, share in shares.items()}
    for number, count in found.items():
        if count > math.ceil(most[number]):
            times = f"{count / max(1, there[number]):.2f} times"
            raise UsageError(
                f"{options.mixture_by} {names[number]} has {there[number]:,} words for training, and {count:,} are asked for ({times});"
                f" lower words ({options.words:,}), weigh it less, or raise mixture_epochs ({options.mixture_epochs:g})"
            )
    return found


def _prefix(words: I64, budget: int) -> I64:
    """The first documents that come to at most so many words, and of the next ones each that still fits."""
    running = np.cumsum(words)
    count = int(np.searchsorted(running, budget, side="right"))
    left, more = budget - (int(running[count - 1]) if count else 0), []
    for at in range(count, min(count + FILLING, len(words))):
        if words[at] <= left:
            more.append(at)
            left -= int(words[at])
    return np.concatenate([np.arange(count), np.array(more, np.int64)])
