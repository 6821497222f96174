"""Which samples a model reads whole, with masks, and which from left to right, with none: two ways of one network.

A mixture of both is GPT-BERT's (Charpentier and Samuel, "GPT or BERT: why not both?", 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.core.ragged import I64


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """How samples are read.

    Attributes:
        causal_share: the share of them that is read from left to right.
        before: whether a masked token is named at the position before it, as a next token is; else where it stands.
    """

    causal_share: float = 0.0
    before: bool = False

    def causal(self, samples: I64) -> npt.NDArray[np.bool_] | None:
        """Which are read from left to right: bool [B]; None where none ever is.

        It follows from a sample's number alone, so that resuming is exact and ranks agree; and of any n samples that follow each other
        share * n are, to within one.

        Args:
            samples: int64 [B], numbers of samples.
        """
        if not self.causal_share:
            return None
        share = self.causal_share
        found: npt.NDArray[np.bool_] = np.floor((samples + 1) * share) > np.floor(samples * share)
        return found


WHOLE = Directions()
