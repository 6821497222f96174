"""Held-out losses of rare, middling and frequent pieces apart; `model.train.bands` says which are which."""

from __future__ import annotations

from torch import Tensor

from model.layers.batch import IGNORE
from model.objectives import Detail

BANDS = ("rare", "middle", "frequent")
FIELD = "bands"  # of a held-out batch: int64 [V], each piece's index in `BANDS`


def losses_by_band(losses: Tensor, labels: Tensor, bands: Tensor) -> dict[str, Detail]:
    """The summed loss in nats of the predictions whose right answer is in a band, and how many these are, as `loss_rare` and so on.

    Args:
        losses: fp32 [M], of each prediction in nats.
        labels: int64 [M], -100 where nothing is asked for.
        bands: see `FIELD`.
    """
    band = bands[labels.clamp(min=0)].masked_fill(labels == IGNORE, len(BANDS))
    return {f"loss_{name}": ((losses * (band == number)).sum(), (band == number).sum()) for number, name in enumerate(BANDS)}
