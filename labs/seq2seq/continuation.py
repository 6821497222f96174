"""How tokens are drawn, and what was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.model.use.request import shortened

_DRAWN = 6  # random stream of the text's seed

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of the next token.

    Attributes:
        temperature: divisor of the logits; 0: the most likely token, the first of ties.
        top_k: number of most likely tokens to sample from; None: all.
        top_p: sample from the fewest tokens with this total probability (Holtzman et al., "The
            Curious Case of Neural Text Degeneration", 2020); None: all.
        seed: random seed.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1

    def token(self, logits: Floats, key: npt.ArrayLike) -> int:
        """Sample the next token from logits, float64 [V], with the random key `key`."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: self.top_k]
        weights = np.exp((logits[order] - logits[order[0]]) / self.temperature)
        cumulative = weights.cumsum() / weights.sum()
        if self.top_p is not None:
            cumulative = cumulative[: int(np.searchsorted(cumulative, self.top_p)) + 1]
        drawn = float(random_keys.uniform(random_keys.fold_in(self.seed, _DRAWN, key)))
        index = int(np.searchsorted(cumulative, drawn * cumulative[-1], side="right"))
        return int(order[min(index, len(cumulative) - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Continuation of a text.

    Attributes:
        text: decoded beginning and continuation.
        continuation: decoded new tokens.
        ids: new tokens, without the end token.
        stopped: reason: `end` of the text, number of `tokens` reached, or maximum length of the
            `model`.
        passages: passages that were read, the likeliest first: `probability`, `title`, `text` and
            their source.
    """

    text: str
    continuation: str
    ids: tuple[int, ...]
    stopped: Literal["end", "tokens", "model"]
    passages: tuple[dict[str, Any], ...] = ()


def check_length(text: str, pieces: int, longest: int, beside: str) -> None:
    """Check that a model can read a text of so many pieces with two beside them.

    Raises:
        UsageError: it has none, or too many.
    """
    if not pieces:
        raise UsageError(f"the text {shortened(text)!r} has no words in it; begin it with a word")
    if pieces + 2 > longest:
        raise UsageError(
            f"the text {shortened(text)!r} has {pieces} pieces, the model reads {longest} with "
            f"{beside}; shorten it"
        )
