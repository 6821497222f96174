"""Attention of queries over keys, by whichever kernel is fastest where it runs. Pure functions; what sees what is a bias.

Shapes: B batch, L queries, K keys, N heads, H per head, C chunks, W window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from model.layers.dropout import dropout as drop


def prefers_matmul(device_type: str, dtype: torch.dtype, dropout: float = 0.0) -> bool:
    """Whether plain matmul and softmax beat torch's fused attention.

    They do on CPUs in bf16, where the fused kernel leaves the matrix units (AMX) idle: it was a quarter of a
    BERT-mini's training step there. With dropout there is no fused kernel on a CPU: torch takes the same steps, but draws its
    random numbers slowly. Everywhere else the fused one is faster and needs no [L, L] memory.
    """
    return device_type == "cpu" and (dtype == torch.bfloat16 or dropout > 0.0)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """Attention, without its probabilities.

    Args:
        query: float [B, N, L, H].
        key, value: float [B, N, K, H].
        bias: added to the scores, broadcast to [B, N, L, K]; None for nothing.
        dropout: share of the probabilities dropped; 0 outside training.

    Returns:
        float [B, N, L, H].
    """
    if prefers_matmul(query.device.type, query.dtype, dropout):
        return matmul_attention(query, key, value, bias, dropout)[0]
    bias = None if bias is None else bias.to(query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)


def matmul_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Attention spelled out: the same function as `scaled_dot_product_attention`, with its probabilities.

    Args: as for `attend`.

    Returns:
        The mixed values [B, N, L, H] and the probabilities before dropout [B, N, L, K], in the inputs' dtype (softmax
        itself is computed in fp32 and rounded).
    """
    with torch.autocast(query.device.type, enabled=False):  # or softmax would hold its [L, K] in fp32
        probabilities = _probabilities(query, key, bias)
        return torch.matmul(drop(probabilities, dropout), value), probabilities


def attention_maps(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """The probabilities alone, float [B, N, L, K], without gradient."""
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        return _probabilities(query, key, bias)


def _probabilities(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    scores = torch.matmul(query * (1.0 / math.sqrt(query.shape[-1])), key.transpose(-1, -2))
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return torch.softmax(scores, dim=-1)


def banded(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, width: int, dropout: float) -> Tensor:
    """Attention within a window, in chunks of it: time and memory grow with L and not with its square.

    Chunk c of the queries sees chunks c - 1, c and c + 1 of the keys, and the bias hides in them what is out of the window.

    Args:
        query, key, value: float [B, N, L, H].
        bias: [1 or B, C, 1, W, 3W], C = ceil(L / W).
        width: W, how far a token sees to either side.
        dropout: as for `attend`.

    Returns:
        float [B, N, L, H].
    """
    chunks = bias.shape[1]
    near_key, near_value = around(key, width, chunks), around(value, width, chunks)
    bias = bias.expand(len(query), *bias.shape[1:])
    return attend_chunks(query, near_key, near_value, bias, dropout)


def attend_chunks(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """Attention of each chunk of W queries over K keys of its own.

    Args:
        query: float [B, N, L, H].
        key, value: float [B, N, C, K, H].
        bias: [B, C, 1, W, K].
        dropout: as for `attend`.

    Returns:
        float [B, N, L, H].
    """
    batch, heads, length, size = query.shape
    chunks, width = bias.shape[1], bias.shape[3]
    own = functional.pad(query, (0, 0, 0, chunks * width - length)).view(batch, heads, chunks, width, size)
    blocks = [part.transpose(1, 2).flatten(0, 1) for part in (own, key, value)]
    mixed = attend(blocks[0], blocks[1], blocks[2], bias.flatten(0, 1), dropout)
    return mixed.view(batch, chunks, heads, width, size).transpose(1, 2).flatten(2, 3)[:, :, :length]


def around(values: Tensor, width: int, chunks: int) -> Tensor:
    """[B, N, L, H] to [B, N, C, 3W, H]: each chunk with the one before and the one behind it, zeros beyond the row."""
    padded = functional.pad(values, (0, 0, width, (chunks + 1) * width - values.shape[2]))
    return padded.unfold(2, 3 * width, width).transpose(-1, -2)
