"""What the ranks of a training send each other in a step, and how long that takes. No torch.

Weights travel as fp32, gradients as fp32 or bf16. A ring over all ranks crosses each machine's border once, so it is as fast as the slower of the
links inside and the fabric between (NCCL's "bus bandwidth": nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from model.train.scale.hardware import Device

NUMBER = 4  # bytes of a weight, and of a gradient if nothing else is said
BUCKET = 25 << 20  # bytes of gradients that go out at once (`model.train.engines.gradients`)
REACHED = 0.8  # of a link's peak: nccl-tests' all-reduce of large messages on DGX machines reaches 75 to 90 %
MESSAGE = 15e-6  # seconds of a small all-reduce among the GPUs of a machine; grows with the logarithm of the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How ranks reach each other.

    Attributes:
        ranks: how many.
        per_node: of them on a machine.
        inside: bytes a second of a rank to its neighbours, one direction.
        between: bytes a second of a machine to others, one direction.
    """

    ranks: int
    per_node: int
    inside: float
    between: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second of a ring over all ranks."""
        slowest = self.inside if self.ranks <= self.per_node else min(self.inside, self.between)
        return REACHED * slowest


def links(device: Device, ranks: int, *, per_node: int | None = None, between: float | None = None) -> Links:
    """The links of so many devices. Args: per_node, between: as of `Links`; None: as the device usually has them."""
    return Links(ranks=ranks, per_node=per_node or device.per_node, inside=device.link, between=between or device.fabric)


def rank_bytes(parameters: int, ranks: int, zero: int, accumulation: int, gradient: int = NUMBER) -> float:
    """Bytes that a rank sends in a step (Rajbhandari et al., "ZeRO", 2020, section 7).

    Stage 0 adds gradients up: each number goes round the ring twice. Stage 1 sends them to their owner, and the new weights back: as
    much. Stage 2 sends them after every micro-batch. Stage 3 fetches the weights for every forward and backward pass besides.

    Args:
        gradient: bytes of one.
    """
    round_once = parameters * (ranks - 1) / ranks
    gradients = {0: 2.0, 1: 1.0, 2: accumulation, 3: accumulation}[zero]
    weights = {0: 0.0, 1: 1.0, 2: 1.0, 3: 2.0 * accumulation}[zero]
    return (gradient * gradients + NUMBER * weights) * round_once


def seconds(sent: float, links: Links) -> float:
    """What it takes to send so many bytes a rank, in buckets."""
    if links.ranks == 1:
        return 0.0
    return sent / links.bandwidth + sent / BUCKET * MESSAGE * math.log2(links.ranks)
