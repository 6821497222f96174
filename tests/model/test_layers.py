"""The blocks: both attention paths are one function, padding is invisible, dropout is only for training."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from model.layers import attention
from model.layers.attention import SelfAttention, matmul_attention, prefers_matmul
from model.layers.embeddings import additive_mask
from model.layers.encoder_layer import EncoderLayer
from model.layers.heads import initialize


def qkv(rows: int, heads: int, length: int, width: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, heads, length, width, generator=generator) for _ in range(3)]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 17), st.sampled_from([2, 8, 64]), st.integers(0, 99))
def test_attention_paths_agree(rows: int, heads: int, length: int, width: int, seed: int) -> None:
    query, key, value = qkv(rows, heads, length, width, seed)
    mask = torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[:, 0] = True
    bias = additive_mask(mask, torch.float32)
    plain, probabilities = matmul_attention(query, key, value, bias, 0.0)
    fused = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    torch.testing.assert_close(plain, fused, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(rows, heads, length))
    assert (probabilities.masked_select(~mask[:, None, None, :]) == 0).all()


def test_the_layer_gives_the_same_on_either_path(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, hidden = SelfAttention(32, 4, dropout=0.0), torch.randn(2, 9, 32)
    bias = additive_mask(torch.arange(9) < torch.tensor([[9], [5]]), torch.float32)
    results = []
    for choice in (True, False):
        monkeypatch.setattr(attention, "prefers_matmul", lambda *_, choice=choice: choice)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = layer(hidden, bias)
        assert low.dtype == torch.bfloat16
        results.append((layer(hidden, bias), low))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(results[0][1].float(), results[0][0], atol=2e-2, rtol=2e-2)


def test_plain_matmul_is_for_bf16_on_cpus_alone() -> None:
    assert prefers_matmul("cpu", torch.bfloat16)
    assert not prefers_matmul("cpu", torch.float32)
    assert not prefers_matmul("cuda", torch.bfloat16)


@pytest.mark.parametrize("choice", [True, False])
def test_attention_dropout_is_honoured_in_training_alone(choice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "prefers_matmul", lambda *_: choice)
    torch.manual_seed(0)
    layer, hidden = SelfAttention(16, 2, dropout=0.5), torch.randn(2, 6, 16)
    layer.train()
    assert not layer(hidden).equal(layer(hidden))
    layer.eval()
    assert layer(hidden).equal(layer(hidden))


def test_dropout_keeps_the_expectation() -> None:
    query, key, value = qkv(1, 1, 64, 8, 0)
    torch.manual_seed(1)
    plain = matmul_attention(query, key, value, None, 0.0)[0]
    mean = torch.stack([matmul_attention(query, key, value, None, 0.3)[0] for _ in range(400)]).mean(0)
    assert (mean - plain).abs().mean() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_alone_stays_finite(dtype: torch.dtype) -> None:
    bias = additive_mask(torch.zeros(1, 5, dtype=torch.bool), dtype)
    assert bias is not None
    assert torch.softmax(torch.randn(1, 1, 5, 5).to(dtype) + bias, -1).isfinite().all()
    assert additive_mask(None, dtype) is None


def test_norms_that_are_not_passed_do_nothing_and_own_nothing() -> None:
    layer = EncoderLayer(_Ignoring(nn.Linear(8, 8)), nn.Linear(8, 8), dropout=0.0)
    assert len(list(layer.parameters())) == 4
    hidden = torch.randn(2, 3, 8)
    attended = hidden + layer.attention(hidden, None)
    torch.testing.assert_close(layer(hidden), attended + layer.feed_forward(attended))


def test_pre_norm_and_post_norm_are_where_they_say() -> None:
    def zero(hidden: torch.Tensor, bias: object = None) -> torch.Tensor:
        return torch.zeros_like(hidden)

    blocks = {"attention": _Ignoring(nn.Identity()), "feed_forward": nn.Identity()}
    hidden = 3 + torch.randn(2, 3, 8)
    post = EncoderLayer(**blocks, dropout=0.0, attention_norm=nn.LayerNorm(8), feed_forward_norm=nn.LayerNorm(8))
    torch.testing.assert_close(post(hidden).mean(-1), torch.zeros(2, 3), atol=1e-6, rtol=0)
    pre = EncoderLayer(**blocks, dropout=0.0, attention_input_norm=nn.LayerNorm(8), feed_forward_input_norm=nn.LayerNorm(8))
    torch.testing.assert_close(pre(hidden).mean(-1), hidden.mean(-1))


def test_initial_weights_are_a_truncated_normal() -> None:
    model = nn.Sequential(nn.Embedding(400, 64), nn.Linear(64, 256), nn.LayerNorm(256))
    initialize(model, 0.02)
    for weight in (model[0].weight, model[1].weight):
        assert weight.abs().max() <= 0.04
        assert weight.abs().max() > 0.035
        assert float(weight.detach().std()) == pytest.approx(0.02 * 0.88, rel=0.03)  # the truncated normal's own deviation
    assert not model[1].bias.any()
    assert model[2].weight.eq(1).all()
    assert not model[2].bias.any()


class _Ignoring(nn.Module):
    """Attention's signature around a module that takes no bias."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = self.module(hidden)
        return result
