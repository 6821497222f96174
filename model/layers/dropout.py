"""Dropout (Srivastava et al., 2014), with random numbers that a CPU makes quickly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16  # of the probability: 0.1 becomes 6554 / 65536 = 0.100006, and the scale is that number's
_STRIDE = -1640531527  # 2^32 / golden ratio: rows next to each other are far apart before they are hashed
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)))  # shift and factor
_PACKED = 4  # 16-bit numbers in the 64 bits that torch's generator gives at once


def dropout(values: Tensor, probability: float) -> Tensor:
    """Set a random share of `values` to 0 and scale the others up, so that the expectation stays.

    On CPUs torch draws one number of 64 bits for every value, on one thread: a fifth of a BERT-mini's bf16 step. 16 bits are
    enough for a yes or no, and four of them come out of one draw. In a compiled graph a few draws are enough for a whole call: what
    is kept is a hash of them and of the place, computed where it is used, forward and backward, and never stored.

    Args:
        values: float, any shape.
        probability: of being dropped; 0: nothing is drawn and `values` come back themselves.
    """
    if not probability:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, probability)
    dropped = round(probability * LEVELS)
    if torch.compiler.is_compiling():
        return torch.where(_kept_by_hash(values, dropped), values * (LEVELS / (LEVELS - dropped)), 0.0)
    return values * _kept(values, dropped).mul_(LEVELS / (LEVELS - dropped))


def _kept(like: Tensor, dropped: int) -> Tensor:
    """Which values stay: 1, or 0 with a chance of `dropped` in `LEVELS`, of the shape and dtype of `like`."""
    count = like.numel()
    generator = np.random.PCG64DXSM(int(torch.randint(1 << 62, ())))  # twice as fast as torch's, which seeds it
    bits = torch.from_numpy(generator.random_raw(-(-count // _PACKED)).view(np.int16))
    kept = torch.empty_like(like, requires_grad=False)
    torch.ge(bits[:count].view(like.shape), dropped - LEVELS // 2, out=kept)  # cast on the way: one pass
    return kept


def _kept_by_hash(like: Tensor, dropped: int) -> Tensor:
    """The same from two random numbers a column, hashed with the row ("lowbias32" of C. Wellons, nullprogram.com, "Prospecting
    for Hash Functions", 2018, with one of the numbers added before each round).

    Vectorized by torch.compile, which counts along a row one by one: so of the place the hash gets a number a row alone.
    """
    rows, columns = like.numel() // like.shape[-1], like.shape[-1]
    seeds = torch.randint(-(1 << 31), (1 << 31) - 1, (2, columns), dtype=torch.int32, device=like.device)
    bits = torch.arange(rows, dtype=torch.int32, device=like.device)[:, None] * _STRIDE
    for seed, (shift, factor) in zip(seeds.unbind(), _ROUNDS, strict=True):
        bits = bits + seed
        bits = (bits ^ ((bits >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return ((bits >> 16) >= dropped - LEVELS // 2).view(like.shape)


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
