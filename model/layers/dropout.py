"""Dropout (Srivastava et al., 2014), with random numbers that a CPU makes quickly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16  # of the probability: 0.1 becomes 6554 / 65536 = 0.100006, and the scale is that number's
_PACKED = 4  # 16-bit numbers in the 64 bits that torch's generator gives at once


def dropout(values: Tensor, probability: float) -> Tensor:
    """Set a random share of `values` to 0 and scale the others up, so that the expectation stays.

    On CPUs torch draws one number of 64 bits for every value, on one thread: a fifth of a BERT-mini's bf16 step. 16 bits are
    enough for a yes or no, and four of them come out of one draw.

    Args:
        values: float, any shape.
        probability: of being dropped; 0: nothing is drawn and `values` come back themselves.
    """
    if not probability:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, probability)
    dropped = round(probability * LEVELS)
    kept = _kept_in_graph(values, dropped) if torch.compiler.is_compiling() else _kept(values, dropped)
    return values * kept.to(values.dtype).mul(LEVELS / (LEVELS - dropped))


def _kept(like: Tensor, dropped: int) -> Tensor:
    """Which values stay: bool of the shape of `like`, false with a chance of `dropped` in `LEVELS`."""
    count = like.numel()
    bits = torch.empty(-(-count // _PACKED), dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
    return bits[:count].view(like.shape) >= dropped - LEVELS // 2


# torch.compile would take the above apart and be slow at it. The tag keeps it from drawing once for all layers.
_kept_in_graph = torch.library.custom_op(
    "cloze::kept",
    _kept,
    mutates_args=(),
    schema="(Tensor like, int dropped) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_kept_in_graph.register_fake(lambda like, dropped: torch.empty_like(like, dtype=torch.bool))


class Dropout(nn.Module):
    """`dropout` while training, nothing otherwise.

    Args:
        probability: of a value's being dropped.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Args: values: float, any shape. Returns: the same shape and dtype."""
        return dropout(values, self.probability if self.training else 0.0)
