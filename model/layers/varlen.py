"""Attention of sequences of several lengths that lie end to end, on a GPU.

The flash kernel with cumulative lengths (Dao, FlashAttention-2, 2023; `torch.ops.aten._flash_attention_forward`, which
torch.nn.attention.varlen wraps without its dropout). Nothing of it runs on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

AMPERE = (8, 0)  # the first capability that the kernel is written for
WIDEST_HEAD = 256
KERNEL = torch.ops.aten._flash_attention_forward


def runs_varlen(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether the kernel takes such tensors here."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and head_size % 8 == 0
        and head_size <= WIDEST_HEAD
        and torch.cuda.get_device_capability(device) >= AMPERE
        and torch.backends.cuda.is_flash_attention_available()
    )


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    window: int | None,
    causal: bool,
    dropout: float,
) -> Tensor:
    """Attention within each sequence.

    Args:
        query, key, value: bf16 or fp16 [T, N, H].
        bounds: int32 [S + 1], see `Packed`.
        longest: the most tokens a sequence has.
        window: how far a token sees to either side; None: all of its sequence.
        causal: whether it sees only what does not come after it.
        dropout: share of the probabilities dropped.

    Returns:
        The same dtype and shape as `query`.
    """
    side = -1 if window is None else window
    mixed: Tensor = KERNEL(
        query,
        key,
        value,
        bounds,
        bounds,
        longest,
        longest,
        dropout,
        causal,
        return_debug_mask=False,
        window_size_left=side,
        window_size_right=0 if causal else side,
    )[0]
    return mixed
