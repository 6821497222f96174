"""Where a run's time goes: training, waiting for data, measuring, saving. It is told and recorded, and nothing follows from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from model.data.sizes import Sizes
from model.train.timeline import OTHER, Part, Timeline
from model.train.utilisation import Utilisation
from model.train.watchdog import Watchdog
from pipeline.core.pulse import Phase, Pulse

Item = TypeVar("Item")


class Clock:
    """The clock of one session: from the start, or the last resume, to the end.

    Tokens a second are those of what the user waits for: steps and the wait for their data. Measuring and saving are told as shares.
    The first step allocates and compiles, so it takes no part in the figures of the whole session. What is no part of a step may take
    as long as it likes, and the pulse and the watchdog are told so.
    """

    def __init__(self, pulse: Pulse, watchdog: Watchdog, timeline: Timeline, utilisation: Utilisation | None) -> None:
        """Args: utilisation: of the model's arithmetic; None: nothing is told of it."""
        self._pulse, self._watchdog, self._timeline, self._utilisation = pulse, watchdog, timeline, utilisation
        self._started = time.perf_counter()
        timeline.begin()
        self._at = self._started  # when the step that runs began
        self._tokens = self._seconds = self._waited = 0.0  # since the last log line
        self._own = Sizes()  # this rank's share of these tokens
        self._all_tokens = self._all_seconds = self._all_waited = 0.0  # since the end of the first step
        self._all_own = Sizes()
        self._waiting = 0.0  # of the step that runs
        self._aside = {"evaluation": 0.0, "save": 0.0, OTHER: 0.0}
        self._aside_before = 0.0
        self._warm = False

    def waited_for(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; what the next one lets us wait is counted."""
        iterator = iter(items)
        while True:
            began = time.perf_counter()
            try:
                with self._pulse.within(Phase.DATA), self._timeline.part("data"):
                    item = next(iterator)
            except StopIteration:
                return
            self._waiting += time.perf_counter() - began
            yield item

    @contextmanager
    def aside(self, what: Part | None = None) -> Iterator[None]:
        """The block is no part of any step: `evaluation`, `save`, or something that nobody tells of."""
        began = time.perf_counter()
        try:
            with self._pulse.within(Phase.ASIDE), self._timeline.part(what) if what else nullcontext():
                yield
        finally:
            seconds = time.perf_counter() - began
            self._aside[what or OTHER] += seconds
            self._watchdog.aside(seconds)

    def begin(self) -> None:
        """The first step's data may be asked for now."""
        self._at, self._aside_before = time.perf_counter(), sum(self._aside.values())

    def step(self, tokens: int, own: Sizes) -> None:
        """A step of so many real tokens is done, of which these are this rank's."""
        now, aside = time.perf_counter(), sum(self._aside.values())
        seconds = now - self._at - (aside - self._aside_before)
        self._tokens, self._seconds, self._waited = self._tokens + tokens, self._seconds + seconds, self._waited + self._waiting
        self._own += own
        if self._warm:
            self._all_own += own
            self._all_tokens, self._all_seconds = self._all_tokens + tokens, self._all_seconds + seconds
            self._all_waited += self._waiting
        self._warm, self._waiting = True, 0.0
        self._at, self._aside_before = now, aside

    def line(self) -> dict[str, float]:
        """Of the steps since the last call: real tokens a second, and with padding; the share of the time that data was waited for; the
        share of the device's peak. How rows are padded, and how long they are, is told by this rank's own.
        """
        seconds = max(self._seconds, 1e-9)
        speed = self._tokens / seconds
        found = {"tokens_per_second": round(speed, 1), "data_wait": round(self._waited / seconds, 4)}
        if self._own.tokens:
            found["padded_tokens_per_second"] = round(speed * self._own.positions / self._own.tokens, 1)
        mfu = self._mfu(speed, self._own)
        if mfu is not None:
            found["mfu"] = mfu
        self._tokens = self._seconds = self._waited = 0.0
        self._own = Sizes()
        return found

    def _mfu(self, speed: float, own: Sizes) -> float | None:
        if self._utilisation is None or not own.tokens:
            return None
        share = self._utilisation.mfu(speed, own.seen / own.tokens)
        return None if share is None else float(f"{share:.3g}")

    def session(self) -> dict[str, float | None]:
        """Of the whole session; None where there was but one step."""
        wall = max(time.perf_counter() - self._started, 1e-9)
        return {
            "tokens_per_second": round(self._all_tokens / self._all_seconds, 1) if self._all_seconds else None,
            "data_wait": round(self._all_waited / self._all_seconds, 4) if self._all_seconds else None,
            "mfu": self._mfu(self._all_tokens / self._all_seconds, self._all_own) if self._all_seconds else None,
            "evaluation_share": round(self._aside["evaluation"] / wall, 4),
            "checkpoint_share": round(self._aside["save"] / wall, 4),
        }
