"""Which rank makes the others wait, told where it lasts. It costs no message: each rank's own time goes along with what is agreed on
before each step.

A rank's own time is what it does not wait for others: its batch, forward, backward, update. The slowest rank of a step costs the others
what it took longer than the median of all.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Sequence

from torch import distributed

from model.train.distributed import World

MICRO = 1_000_000
STEPS = 50  # at least, that are looked at together
SECONDS = 30.0  # likewise
SHARE = 0.2  # of the time, from which on it is told
AGAIN = 20  # such looks after which what still lasts is told again


class Waits:
    """Sums over the steps of a look. Without a second rank it does nothing.

    Where a device computes, the host of a rank waits for it in the same calls in which it waits for the others, so nothing is told apart.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._watched = world.size > 1 and world.device.type == "cpu"
        self._hosts = _hosts(world) if self._watched else []
        self._asked: tuple[float, float, float] | None = None  # when, and what was waited and aside up to then
        self._told: tuple[str, int] | None = None  # of whom, and how many looks ago
        self._lost = [0.0] * world.size  # seconds that each rank made the others wait
        self._own = [0.0] * world.size
        self._whole, self._steps = 0.0, 0
        self._line = [0.0, 0.0]  # waited by the median rank, whole; since the last log line
        self._looks = 0

    def tell(self) -> int:
        """Microseconds of this rank's own since the last call."""
        if not self._watched:
            return 0
        pulse = self._world.pulse
        now = time.monotonic(), pulse.waited, pulse.aside
        before, self._asked = self._asked, now
        if before is None:
            return 0
        return max(0, int(MICRO * (now[0] - before[0] - (now[1] - before[1]) - (now[2] - before[2]))))

    def heard(self, own: Sequence[int]) -> str | None:
        """Every rank's own time of a step. A sentence, on the first rank, where one has made the others wait for long."""
        if not self._watched or not all(own):
            return None
        seconds = [value / MICRO for value in own]
        slowest = max(range(len(seconds)), key=seconds.__getitem__)
        usual = statistics.median_low(seconds)
        self._lost[slowest] += seconds[slowest] - usual
        self._own = [before + value for before, value in zip(self._own, seconds, strict=True)]
        self._whole, self._steps = self._whole + seconds[slowest], self._steps + 1
        self._line = [self._line[0] + seconds[slowest] - usual, self._line[1] + seconds[slowest]]
        if self._steps < STEPS or self._whole < SECONDS:
            return None
        sentence = self._look() if self._world.first else None
        self._lost, self._own = [0.0] * len(own), [0.0] * len(own)
        self._whole, self._steps = 0.0, 0
        return sentence

    def line(self) -> dict[str, float]:
        """Of the steps since the last call: the share of the time that the median rank waited for the slowest."""
        lost, whole = self._line
        self._line = [0.0, 0.0]
        return {"rank_wait": round(lost / whole, 4)} if whole else {}

    def _look(self) -> str | None:
        ranks = range(len(self._lost))
        hosts = {host: [rank for rank in ranks if self._hosts[rank] == host] for host in dict.fromkeys(self._hosts)}
        groups = {f"rank {rank} on {self._hosts[rank]}": [rank] for rank in ranks}
        if len(hosts) > 1:  # a slow host's ranks take turns at being the slowest
            groups |= {f"host {host}": found for host, found in hosts.items() if len(found) > 1 and not self._one_of(found)}
        name = max(groups, key=lambda name: sum(self._lost[rank] for rank in groups[name]))
        share = sum(self._lost[rank] for rank in groups[name]) / self._whole
        if share < SHARE:
            self._told = None
            return None
        if self._told is not None and self._told[0] == name and self._told[1] < AGAIN:
            self._told = name, self._told[1] + 1
            return None
        self._told = name, 0
        theirs = statistics.fmean(self._own[rank] for rank in groups[name]) / self._steps
        others = [self._own[rank] for rank in ranks if rank not in groups[name]]
        return (
            f"{name} makes the others wait {100 * share:.0f} % of the time: it computes for {theirs:.3g} s a step, they for"
            f" {statistics.fmean(others) / self._steps:.3g} s"
        )

    def _one_of(self, ranks: Sequence[int]) -> bool:
        """Whether one of these ranks is to blame rather than all."""
        return max(self._lost[rank] for rank in ranks) > 0.8 * sum(self._lost[rank] for rank in ranks)


def _hosts(world: World) -> list[str]:
    """Every rank's host."""
    found: list[str | None] = [None] * world.size
    distributed.all_gather_object(found, socket.gethostname(), group=world.control)
    return [str(name) for name in found]
