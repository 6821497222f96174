"""All ways to attend are one function: fused, spelled out, in bands, in every layout, forward and
backward.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cloze.model.layers import attention_kernels, cpu
from cloze.model.layers import layout as layout_module
from cloze.model.layers.attention import Rotary, SelfAttention
from cloze.model.layers.attention_kernels import runs_varlen
from cloze.model.layers.cpu import attend, matmul_attention
from cloze.model.layers.layout import AttentionPattern, BatchLayout, additive
from tests.model.layouts import Choice, layout_of


def qkv(rows: int, heads: int, length: int, width: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, heads, length, width, generator=generator) for _ in range(3)]


def key_bias(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return additive(mask[:, None, None, :], dtype)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 17),
    st.sampled_from([2, 8, 64]),
    st.integers(0, 99),
)
def test_fused_and_spelled_out_agree(
    rows: int, heads: int, length: int, width: int, seed: int
) -> None:
    query, key, value = qkv(rows, heads, length, width, seed)
    mask = torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[:, 0] = True
    bias = key_bias(mask)
    plain, probabilities = matmul_attention(query, key, value, bias, 0.0)
    fused = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    torch.testing.assert_close(plain, fused, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(rows, heads, length))
    assert (probabilities.masked_select(~mask[:, None, None, :]) == 0).all()


def fused(query: Tensor, key: Tensor, value: Tensor, bias: Any, dropout: float) -> Tensor:
    bias = None if bias is None else bias.to(query.dtype)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout
    )


def matmul(query: Tensor, key: Tensor, value: Tensor, bias: Any, dropout: float) -> Tensor:
    return matmul_attention(query, key, value, bias, dropout)[0]


def test_the_layer_gives_the_same_on_either_path(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, hidden = SelfAttention(32, 4, dropout=0.0), torch.randn(2, 9, 32)
    real = torch.arange(9) < torch.tensor([[9], [5]])
    results = []
    for path in (matmul, fused):
        monkeypatch.setattr(layout_module, "attend", path)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = layer(hidden, BatchLayout((2, 9), real))
        assert low.dtype == torch.bfloat16
        results.append((layer(hidden, BatchLayout((2, 9), real)), low))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(results[0][1].float(), results[0][0], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("device", "dtype", "dropout", "expected"),
    [
        ("cpu", torch.bfloat16, 0.0, True),
        ("cpu", torch.float32, 0.1, True),
        ("cpu", torch.float32, 0.0, False),
        ("meta", torch.bfloat16, 0.1, False),  # stands for a GPU
    ],
)
def test_plain_matmul_is_for_cpus_in_bf16_or_with_dropout(
    device: str,
    dtype: torch.dtype,
    dropout: float,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    monkeypatch.setattr(cpu, "matmul_attention", lambda *given: called.append(given) or given)
    query = torch.zeros(1, 1, 2, 8, dtype=dtype, device=device)
    attend(query, query, query, None, dropout)
    assert bool(called) == expected


@pytest.mark.parametrize("path", [matmul, fused])
def test_attention_dropout_is_honoured_in_training_alone(
    path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_module, "attend", path)
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
    mean = torch.stack(
        [matmul_attention(query, key, value, None, 0.3)[0] for _ in range(400)]
    ).mean(0)
    assert (mean - plain).abs().mean() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_alone_stays_finite(dtype: torch.dtype) -> None:
    bias = key_bias(torch.zeros(1, 5, dtype=torch.bool), dtype)
    assert torch.softmax(torch.randn(1, 1, 5, 5).to(dtype) + bias, -1).isfinite().all()


def batch_of(rows: int, length: int, packed_rows: bool, seed: int) -> tuple[Tensor, Tensor | None]:
    """Which positions are real, and where sequences start in packed rows."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    lengths[0] = length
    real = torch.arange(length) < lengths[:, None]
    if not packed_rows:
        return real, None
    starts = (torch.rand(rows, length, generator=generator) < 0.2) & real
    starts[:, 0] = True
    return real, starts


def lying(real: Tensor, starts: Tensor | None, choice: Choice) -> BatchLayout:
    """The layout of such rows."""
    batch = {"attention_mask": real} | ({} if starts is None else {"sequence_first": starts})
    return layout_of(batch, choice) or BatchLayout((real.shape[0], real.shape[1]), real)


def reference(layer: SelfAttention, hidden: Tensor, real: Tensor, starts: Tensor | None) -> Tensor:
    """Every sequence alone, scores masked with -inf by the definition."""
    found = torch.zeros_like(hidden)
    for row in range(len(hidden)):
        length = int(real[row].sum())
        cuts = (
            [0, length]
            if starts is None
            else [*starts[row, :length].nonzero().flatten().tolist(), length]
        )
        for begin, end in zip(cuts, cuts[1:], strict=False):
            part = hidden[row : row + 1, begin:end]
            query, key, value = layer.project(part)
            if layer.rotary is not None:
                query, key = layer.rotary(query, key, BatchLayout((1, end - begin)))
            scores = torch.einsum("blnh,bknh->bnlk", query, key) / query.shape[-1] ** 0.5
            place = torch.arange(end - begin)
            seen = layer.pattern.visible(place - place[:, None])
            if seen is not None:
                scores = scores.masked_fill(~seen, -torch.inf)
            mixed = torch.einsum("bnlk,bknh->blnh", scores.softmax(-1), value)
            found[row, begin:end] = layer.output(mixed.flatten(2))[0]
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2, 5])
@pytest.mark.parametrize("packed_rows", [False, True])
@pytest.mark.parametrize("choice", ["padded", "buckets"])
def test_every_layout_and_pattern_agree_with_the_definition(
    choice: Choice, packed_rows: bool, window: int | None, causal: bool
) -> None:
    """Windows of 2 and 5 in rows of 23 are computed in bands."""
    torch.manual_seed(0)
    options: Any = {"window": window, "causal": causal, "rotary": Rotary(8, 100.0)}
    layer = SelfAttention(16, 2, dropout=0.0, fused=causal, **options)
    real, starts = batch_of(9, 23, packed_rows, seed=1)
    hidden = torch.randn(9, 23, 16, requires_grad=True)
    weight = torch.randn(9, 23, 16) * real[:, :, None]
    layout = lying(real, starts, choice)
    if layout.flat_positions is None:
        found = layer(hidden, layout)
    else:
        found = layout.put_back(layer(hidden.flatten(0, 1)[layout.flat_positions], layout))
        assert not found[~real].any()
    expected = reference(layer, hidden, real, starts)
    torch.testing.assert_close(found[real], expected[real], atol=1e-6, rtol=1e-5)
    inputs = [hidden, *layer.parameters()]
    gradients = torch.autograd.grad((found * weight).sum(), inputs)
    for first, second in zip(
        gradients, torch.autograd.grad((expected * weight).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_what_the_gpu_kernel_is_told_is_what_the_rows_say(
    window: int | None, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU here: FlexAttention, given the flash kernel's own arguments, stands for it."""

    def stand_in(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bounds: Tensor,
        also: Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        longest, _, dropout, is_causal = rest
        left, right = options["window_size_left"], options["window_size_right"]
        assert longest == int(bounds.diff().max())
        assert (bounds.dtype, also is bounds, dropout) == (torch.int32, True, 0.0)
        count = len(query)
        number = torch.bucketize(torch.arange(count), bounds[1:], right=True)

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            seen = number[q] == number[k]
            seen = seen & ((k <= q) if is_causal else (k == k))
            seen = seen & (((q - k) <= left) if left >= 0 else (k == k))
            return seen & (((k - q) <= right) if right >= 0 else (k == k))

        block = create_block_mask(mask, None, None, count, count, device="cpu")
        blocks = [part.transpose(0, 1)[None] for part in (query, key, value)]
        return (flex_attention(*blocks, block_mask=block)[0].transpose(0, 1),)

    monkeypatch.setattr(attention_kernels, "KERNEL", stand_in)
    torch.manual_seed(0)
    layer = SelfAttention(
        32, 2, dropout=0.0, window=window, causal=causal, rotary=Rotary(16, 100.0)
    )
    real, starts = batch_of(4, 19, True, seed=2)
    hidden = torch.randn(4, 19, 32)
    with torch.no_grad():
        tokens, rows = lying(real, starts, "packed"), lying(real, starts, "padded")
        assert tokens.flat_positions is not None
        found = tokens.put_back(layer(hidden.flatten(0, 1)[tokens.flat_positions], tokens))
        torch.testing.assert_close(found[real], layer(hidden, rows)[real], atol=1e-5, rtol=1e-5)


def test_the_gpu_kernel_is_for_gpus_alone() -> None:
    assert not runs_varlen(torch.device("cpu"), torch.bfloat16, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 7])
def test_the_gpu_kernel_agrees_with_rows(window: int | None) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(128, 2, dropout=0.0, window=window).cuda()
    real, starts = batch_of(5, 70, True, seed=3)
    hidden = torch.randn(5, 70, 128, device="cuda", requires_grad=True)
    tokens, rows = (
        lying(real, starts, choice).pin_memory().to(hidden.device)
        for choice in ("packed", "padded")
    )
    assert tokens.flat_positions is not None
    real = real.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = tokens.put_back(layer(hidden.flatten(0, 1)[tokens.flat_positions], tokens))
        expected = layer(hidden, rows)
    torch.testing.assert_close(found[real], expected[real], atol=3e-2, rtol=3e-2)
    first = torch.autograd.grad(found[real].float().square().sum(), hidden, retain_graph=True)[0]
    second = torch.autograd.grad(expected[real].float().square().sum(), hidden)[0]
    torch.testing.assert_close(first, second, atol=5e-2, rtol=5e-2)


def test_positions_begin_anew_with_every_sequence() -> None:
    starts = torch.tensor([[1, 0, 0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0]]).bool()
    rows = lying(torch.ones_like(starts), starts, "padded")
    assert rows.positions is not None
    assert rows.positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_pattern_that_sees_everything_needs_no_bias() -> None:
    assert AttentionPattern().visible(torch.arange(3)) is None
    assert AttentionPattern(window=1).visible(torch.arange(-2, 3)).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert AttentionPattern(causal=True).visible(torch.arange(-1, 2)).tolist() == [
        True,
        True,
        False,
    ]
