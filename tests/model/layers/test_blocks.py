"""Sequences attend to themselves alone in every layout, by any pattern, with an added term or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloze.model.data import layouts
from cloze.model.data.layouts import Sequences
from cloze.model.layers import layout as layout_module
from cloze.model.layers.layout import AttentionPattern, BatchLayout
from tests.model.layouts import varlen_on_cpu

N, H, L = 3, 4, 20


@st.composite
def batches(draw: st.DrawFn) -> Sequences:
    """Rows of one sequence each, or packed ones; all sequences of a row have one mode."""
    rows = draw(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=2), min_size=1, max_size=6)
    )
    first = [row * L + sum(lengths[:number]) for row, lengths in enumerate(rows)
             for number in range(len(lengths))]  # fmt: skip
    modes = draw(st.none() | st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    causal = None
    if modes is not None:
        causal = np.repeat(np.array(modes), [len(lengths) for lengths in rows])
    return Sequences(
        shape=(len(rows), L),
        first=np.array(first),
        lengths=np.array([length for lengths in rows for length in lengths]),
        packed=any(len(lengths) > 1 for lengths in rows),
        causal=causal,
    )


def by_distance(query: Tensor, key: Tensor) -> Tensor:
    """A term of the scores by query, key and their distance, as DeBERTa's and T5's are."""
    places = torch.arange(query.shape[2])
    bias = torch.sin((places - places[:, None]).float())[None, None]
    return bias * (query.sum(-1)[..., None] + key.sum(-1)[..., None, :])


def alone(values: Tensor, sequences: Sequences, pattern: AttentionPattern, added: Any) -> Tensor:
    """Each sequence as a row of its own, float [B * L, N, H]; zeros at padding."""
    found = torch.zeros(values.shape[1:])
    for number, (start, length) in enumerate(zip(sequences.first, sequences.lengths, strict=True)):
        part = slice(int(start), int(start + length))
        causal = sequences.causal is not None and bool(sequences.causal[number])
        own = AttentionPattern(pattern.window, pattern.causal or causal)
        row = BatchLayout((1, int(length)))
        inputs = (each[part][None] for each in values)
        found[part] = row.attend(*inputs, own, 0.0, added)[0]
    return found


@pytest.mark.parametrize("kind", ["rows", "buckets", "packed"])
@settings(max_examples=25, deadline=None)
@given(batches(), st.sampled_from([None, 1, 3]), st.booleans(), st.booleans(), st.integers(0, 99))
def test_a_sequence_in_a_layout_is_as_it_is_alone(
    kind: str, sequences: Sequences, window: int | None, causal: bool, term: bool, seed: int
) -> None:
    pattern, added = AttentionPattern(window, causal), by_distance if term else None
    torch.manual_seed(seed)
    values = torch.randn(3, sequences.shape[0] * L, N, H, requires_grad=True)
    weight = torch.randn(sequences.shape[0] * L, N, H)
    # Nobody reads padding, and so nothing of it may come back as a gradient.
    real = torch.zeros(len(weight), dtype=torch.bool)
    for start, length in zip(sequences.first, sequences.lengths, strict=True):
        real[int(start) : int(start + length)] = True
    weight[~real] = 0.0
    expected = alone(values, sequences, pattern, added)
    (gradient,) = torch.autograd.grad((expected * weight).sum(), values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "varlen_attention", varlen_on_cpu)
        layout: BatchLayout = getattr(layouts, kind)(sequences)
        if kind == "rows":
            rows = (each.view(*sequences.shape, N, H) for each in values)
            found = layout.attend(*rows, pattern, 0.0, added).flatten(0, 1)
        else:
            assert layout.flat_positions is not None
            tokens = (each.index_select(0, layout.flat_positions) for each in values)
            mixed = layout.attend(*tokens, pattern, 0.0, added)
            found = layout.put_back(mixed.flatten(1)).view_as(weight)
        (own,) = torch.autograd.grad((found * weight).sum(), values)
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(own, gradient, atol=1e-5, rtol=1e-4)


def test_a_new_pass_shares_nothing_with_the_last_one() -> None:
    layout = layouts.buckets(Sequences.alone(np.array([3, 9, 14]), L))
    assert layout.flat_positions is not None
    tokens = torch.randn(len(layout.flat_positions), N, H)
    layout.attend(tokens, tokens, tokens, AttentionPattern(), 0.0)
    assert layout.blocks
    fresh = layout.fresh()
    shared = ("blocks", "biases", "rotary", "relative", "asked", "distances", "sinusoids")
    assert not [name for name in shared if getattr(fresh, name)]
    assert fresh.flat_positions is layout.flat_positions
