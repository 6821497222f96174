"""What a training on several datasets has read of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloze.model.data.mixture import BLOCK, MixtureSampler
from cloze.model.data.sampler import Sampler
from cloze.model.train.spec.interfaces import StartPosition


@dataclass(frozen=True, slots=True)
class MixtureCounter:
    """Counters of a mixture: rows, tokens and epochs per dataset.

    Attributes:
        fingerprints: fingerprint of each dataset by its name.
        sampler: order of the mixture's rows.
        start_position: that of this phase.
    """

    fingerprints: Mapping[str, str]
    sampler: MixtureSampler
    start_position: StartPosition

    @classmethod
    def of(
        cls,
        fingerprints: Mapping[str, str] | None,
        sampler: Sampler | MixtureSampler,
        start_position: StartPosition,
    ) -> MixtureCounter | None:
        """Create the counter from the datasets' fingerprints by name; None for a single dataset."""
        if not isinstance(sampler, MixtureSampler) or fingerprints is None:
            return None
        return cls(fingerprints, sampler, start_position)

    def next_samples(self, samples: int) -> dict[str, int]:
        """Return dataset fingerprint -> its next sample, if the run's next is `samples`."""
        return dict(
            zip(self.fingerprints.values(), self.sampler.next_samples(samples), strict=True)
        )

    def figures(self, samples: int, tokens: Sequence[int]) -> dict[str, float]:
        """Return the log metrics. Args: tokens: tokens of each dataset in this phase."""
        return {
            f"{kind}_{dataset['name']}": dataset[kind]
            for dataset in self.summary(samples, tokens)
            for kind in ("rows", "tokens", "epochs")
        }

    def summary(self, samples: int, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Return `name`, `share`, `rows`, `tokens` and `epochs` of each dataset."""
        positions = self.sampler.next_samples(samples)
        start_positions = self.sampler.next_samples(self.start_position.sample)
        token_counts = tokens or [0] * len(self.fingerprints)
        return [
            {
                "name": name,
                "share": round(self.sampler.draw.quotas[index] / BLOCK, 6),
                "rows": positions[index] - start_positions[index],
                "tokens": token_counts[index],
                "epochs": round(positions[index] / self.sampler.samplers[index].rows, 4),
            }
            for index, name in enumerate(self.fingerprints)
        ]
