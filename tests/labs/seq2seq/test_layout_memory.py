"""A layout that is copied, moved or pinned keeps the memory that cross-attention reads."""

from __future__ import annotations

import pytest
import torch

from cloze.labs.seq2seq.kv_cache import KVCache, Memory
from cloze.model.layers.layout import BatchLayout


def layouts() -> list[BatchLayout]:
    cache = KVCache(2, 4)
    cache.advance(torch.zeros(2, 1, dtype=torch.int64), 1)
    return [BatchLayout((2, 3), torch.ones(2, 3, dtype=torch.bool)), cache]


@pytest.mark.parametrize("layout", layouts(), ids=lambda layout: type(layout).__name__)
@pytest.mark.parametrize("real", [None, torch.ones(2, 5, dtype=torch.bool)], ids=["all", "padded"])
def test_a_mapped_layout_has_its_memory_mapped(
    layout: BatchLayout, real: torch.Tensor | None
) -> None:
    states = torch.zeros(2, 5, 8)
    layout.memory = Memory(states, real, {"layer": (states, states + 1)})
    moved = layout.to(torch.device("meta")).memory
    assert moved is not None
    assert moved.states.device.type == "meta"
    assert (moved.real is None) == (real is None)
    assert moved.kept is not None
    assert {tensor.device.type for pair in moved.kept.values() for tensor in pair} == {"meta"}
    fresh = layout.fresh().memory
    assert fresh is not None
    assert fresh.states is states, "a new pass reads the same"
    layout.memory = None
    assert layout.fresh().memory is None
