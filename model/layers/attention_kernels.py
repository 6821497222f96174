"""Attention kernels: pure functions; visibility is given as an additive bias.

`varlen_attention` runs the flash kernel with cumulative lengths on a GPU (Dao, FlashAttention-2,
2023; `torch.ops.aten._flash_attention_forward`, which torch.nn.attention.varlen wraps without
dropout).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.layers.cpu import attend

AMPERE = (8, 0)  # minimum compute capability of the kernel
WIDEST_HEAD = 256
KERNEL = torch.ops.aten._flash_attention_forward


def runs_varlen(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Return True if the kernel supports such tensors on this device."""
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
    """Compute attention within each of several concatenated sequences.

    Args:
        query, key, value: bf16 or fp16 [T, N, H].
        bounds: int32 [S + 1], see `BatchLayout`.
        window: tokens visible on each side; None: the whole sequence.
        causal: hide later tokens.

    Returns:
        Dtype and shape of `query`.
    """
    # The kernel reads -1 as no limit.
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


def attend_chunks(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float
) -> Tensor:
    """Compute attention of each chunk of W queries over its own K keys.

    For a window of W tokens on each side, the keys of chunk c are those of chunks c - 1, c and
    c + 1 (`neighbour_chunks`), and the bias hides keys outside the window. Time and memory are
    linear in L.

    Args:
        query: float [B, N, L, H].
        key, value: float [B, N, C, K, H], C = ceil(L / W).
        bias: [1 or B, C, 1, W, K].
        dropout: as for `attend`.

    Returns:
        float [B, N, L, H].
    """
    batch, heads, length, size = query.shape
    chunks, width = bias.shape[1], bias.shape[3]
    query_chunks = functional.pad(query, (0, 0, 0, chunks * width - length)).view(
        batch, heads, chunks, width, size
    )
    # [B C, N, W or K, H]: for the kernel each chunk is a row of its own.
    blocks = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query_chunks, key, value)]
    bias = bias.expand(batch, *bias.shape[1:]).flatten(0, 1)
    mixed = attend(blocks[0], blocks[1], blocks[2], bias, dropout)
    return (
        # [B, N, C W, H], without the filler that completed the last chunk.
        mixed.view(batch, chunks, heads, width, size).transpose(1, 2).flatten(2, 3)[:, :, :length]
    )


def neighbour_chunks(values: Tensor, width: int, chunks: int) -> Tensor:
    """Return each chunk with its neighbours, [B, N, L, H] to [B, N, C, 3W, H], zero-padded."""
    padded = functional.pad(values, (0, 0, width, (chunks + 1) * width - values.shape[2]))
    # A view, in which a token is in three chunks; `unfold` puts their keys last, behind H.
    return padded.unfold(2, 3 * width, width).transpose(-1, -2)
