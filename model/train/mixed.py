"""What is counted of the datasets of a mixture: rows, tokens and epochs of each; see `model.train.interfaces.Mixed`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model.data.mixture import BLOCK, MixedSampler
from model.data.sampler import Sampler
from model.train.data import Data
from model.train.interfaces import Position


@dataclass(frozen=True, slots=True)
class Counted:
    """A mixture's counts.

    Attributes:
        names: of its datasets, and prints, their fingerprints.
        sampler: the order of its rows.
        begun: where this phase begins.
    """

    names: tuple[str, ...]
    prints: tuple[str, ...]
    sampler: MixedSampler
    begun: Position

    @classmethod
    def of(cls, data: Data, sampler: Sampler | MixedSampler, begun: Position) -> Counted | None:
        """None: there is one dataset alone."""
        if not isinstance(sampler, MixedSampler) or data.prints is None:
            return None
        return cls(tuple(data.prints), tuple(data.prints.values()), sampler, begun)

    def places(self, samples: int) -> dict[str, int]:
        return dict(zip(self.prints, self.sampler.places(samples), strict=True))

    def figures(self, samples: int, tokens: Sequence[int]) -> dict[str, float]:
        return {
            f"{kind}_{one['name']}": one[kind] for one in self.told(samples, tokens) for kind in ("rows", "tokens", "epochs")
        }

    def told(self, samples: int, tokens: Sequence[int]) -> list[dict[str, Any]]:
        now, then = self.sampler.places(samples), self.sampler.places(self.begun.sample)
        counted = tokens or [0] * len(self.names)
        return [
            {
                "name": name,
                "share": round(self.sampler.draw.quotas[number] / BLOCK, 6),
                "rows": now[number] - then[number],
                "tokens": counted[number],
                "epochs": round(now[number] / self.sampler.samplers[number].rows, 4),
            }
            for number, name in enumerate(self.names)
        ]
