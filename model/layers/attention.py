"""Multi-head self-attention (Vaswani et al., 2017), by whichever kernel is fastest where it runs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def prefers_matmul(device_type: str, dtype: torch.dtype) -> bool:
    """Whether plain matmul and softmax beat torch's fused attention.

    They do on CPUs in bf16, where the fused kernel leaves the matrix units (AMX) idle: it was a quarter of a
    BERT-mini's training step there. Everywhere else the fused one is faster and needs no [L, L] memory.
    """
    return device_type == "cpu" and dtype == torch.bfloat16


def matmul_attention(
    query_BNLH: Tensor, key_BNLH: Tensor, value_BNLH: Tensor, bias: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention spelled out: the same function as `scaled_dot_product_attention`, with its probabilities.

    Args:
        query_BNLH, key_BNLH, value_BNLH: float [B, N, L, H].
        bias: added to the scores, broadcast to [B, N, L, L]; None for nothing.
        dropout: share of the probabilities dropped; 0 outside training.

    Returns:
        The mixed values [B, N, L, H] and the probabilities before dropout [B, N, L, L], in the inputs' dtype (softmax
        itself is computed in fp32 and rounded).
    """
    with torch.autocast(query_BNLH.device.type, enabled=False):  # or softmax would hold its [L, L] in fp32
        scores = torch.matmul(query_BNLH * (1.0 / math.sqrt(query_BNLH.shape[-1])), key_BNLH.transpose(-1, -2))
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        probabilities = torch.softmax(scores, dim=-1)
        dropped = functional.dropout(probabilities, dropout) if dropout else probabilities
        return torch.matmul(dropped, value_BNLH), probabilities


class SelfAttention(nn.Module):
    """Every position looks at every other: projections to query, key and value, attention, an output projection.

    Args:
        hidden_size: D, a multiple of `heads`.
        heads: N.
        dropout: share of the attention probabilities dropped while training.
    """

    def __init__(self, hidden_size: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Args: hidden: float [B, L, D]; bias: as in `additive_mask`. Returns: float [B, L, D], before any residual."""
        query, key, value = self._split(self.query(hidden)), self._split(self.key(hidden)), self._split(self.value(hidden))
        dropout = self.dropout if self.training else 0.0
        if prefers_matmul(query.device.type, query.dtype):
            mixed_BNLH, _ = matmul_attention(query, key, value, bias, dropout)
        else:
            bias = None if bias is None else bias.to(query.dtype)
            mixed_BNLH = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        output: Tensor = self.output(mixed_BNLH.transpose(1, 2).flatten(2))
        return output

    def _split(self, projected_BLD: Tensor) -> Tensor:
        """[B, L, D] to [B, N, L, H]."""
        batch, length, width = projected_BLD.shape
        return projected_BLD.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
