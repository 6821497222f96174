"""The blocks that layers are put together from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from cloze.model.layers.attention import Rotary
from cloze.model.layers.cpu import Dropout, dropout
from cloze.model.layers.encoder import EncoderLayer, FeedForward
from cloze.model.layers.heads import initialize
from cloze.model.layers.layout import BatchLayout


def test_norms_that_are_not_passed_do_nothing_and_own_nothing() -> None:
    layer = EncoderLayer(_Ignoring(nn.Linear(8, 8)), nn.Linear(8, 8), dropout=0.0)
    assert len(list(layer.parameters())) == 4
    hidden = torch.randn(2, 3, 8)
    attended = hidden + layer.attention(hidden, None)
    torch.testing.assert_close(layer(hidden), attended + layer.feed_forward(attended))


def test_pre_norm_and_post_norm_are_where_they_say() -> None:
    def zero(hidden: torch.Tensor, layout: object = None) -> torch.Tensor:
        return torch.zeros_like(hidden)

    blocks = {"attention": _Ignoring(nn.Identity()), "feed_forward": nn.Identity()}
    hidden = 3 + torch.randn(2, 3, 8)
    post = EncoderLayer(
        **blocks, dropout=0.0, attention_norm=nn.LayerNorm(8), feed_forward_norm=nn.LayerNorm(8)
    )
    torch.testing.assert_close(post(hidden).mean(-1), torch.zeros(2, 3), atol=1e-6, rtol=0)
    pre = EncoderLayer(
        **blocks,
        dropout=0.0,
        attention_input_norm=nn.LayerNorm(8),
        feed_forward_input_norm=nn.LayerNorm(8),
    )
    torch.testing.assert_close(pre(hidden).mean(-1), hidden.mean(-1))


def test_initial_weights_are_a_truncated_normal() -> None:
    model = nn.Sequential(nn.Embedding(400, 64), nn.Linear(64, 256), nn.LayerNorm(256))
    initialize(model, 0.02)
    for weight in (model[0].weight, model[1].weight):
        assert weight.abs().max() <= 0.04
        assert weight.abs().max() > 0.035
        assert float(weight.detach().std()) == pytest.approx(
            0.02 * 0.88, rel=0.03
        )  # the truncated normal's own deviation
    assert not model[1].bias.any()
    assert model[2].weight.eq(1).all()
    assert not model[2].bias.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_drops_that_share_and_keeps_the_expectation(
    probability: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    values = torch.ones(500, 1000, dtype=dtype)
    found = dropout(values, probability)
    assert found.dtype == dtype
    assert float((found == 0).float().mean()) == pytest.approx(probability, abs=0.004)
    assert float(found.float().mean()) == pytest.approx(1.0, abs=0.01)
    assert len(found.unique()) == 2
    columns = (
        (found == 0).float().mean(0)
    )  # four decisions come out of one random number: each must be as random
    assert all(
        float(columns[first::4].mean()) == pytest.approx(probability, abs=0.008)
        for first in range(4)
    )


@pytest.mark.soak
def test_compiled_dropout_is_as_random() -> None:
    """Two calls in one graph draw for themselves, neighbours are dropped independently, and the
    seed decides.
    """
    twice = torch.compile(
        lambda values: (dropout(values, 0.1), dropout(values, 0.1)),
        options={"fallback_random": True},
    )
    torch.manual_seed(0)
    values = torch.ones(1000, 1000)
    first, second = (found == 0 for found in twice(values))
    for one, other in (
        (first, second),
        (first[:, 1:], first[:, :-1]),
        (first[1:], first[:-1]),
        (first[:, 4:], first[:, :-4]),
    ):
        assert float(one.float().mean()) == pytest.approx(0.1, abs=0.002)
        assert float((one & other).float().mean()) == pytest.approx(0.01, abs=0.001)
    for lines in (first.float().mean(0), first.float().mean(1)):
        assert float(lines.std()) == pytest.approx((0.09 / 1000) ** 0.5, rel=0.15)
    torch.manual_seed(0)
    assert (twice(values)[0] == 0).equal(first)


def test_dropout_is_for_training_alone_and_follows_the_seed() -> None:
    layer, values = Dropout(0.3), torch.randn(7, 5)
    assert layer.eval()(values) is values
    layer.train()
    torch.manual_seed(3)
    first = layer(values)
    torch.manual_seed(3)
    assert layer(values).equal(first)
    assert not layer(values).equal(first)
    assert Dropout(0.0)(values) is values


def test_the_gradient_is_dropped_with_the_value() -> None:
    values = torch.randn(50, requires_grad=True)
    found = dropout(values, 0.5)
    found.sum().backward()
    assert values.grad is not None
    assert values.grad.eq(0).equal(found.eq(0))
    torch.testing.assert_close(values.grad[found != 0], torch.full((int((found != 0).sum()),), 2.0))


def test_rotary_products_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = (torch.randn(1, 1, 1, 8).expand(1, 6, 1, 8) for _ in range(2))
    turned = Rotary(8, 100.0)(query, key, BatchLayout((1, 6)))
    scores = (turned[0][0, :, 0] @ turned[1][0, :, 0].T).diagonal(-2)
    torch.testing.assert_close(scores, scores[0].expand(4))
    torch.testing.assert_close(turned[0].norm(dim=-1), query.norm(dim=-1))
    assert not torch.allclose(*(turned[0][0, :, 0] @ turned[1][0, :, 0].T)[0, [0, 3]], atol=1e-3)


def test_a_compiled_cpu_computes_no_sine_in_its_loops() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def turned(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Rotary(8, 100.0)(query, key, BatchLayout((1, 6)))

    query, key = torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8)
    compiled = torch.compile(turned, backend=keep, fullgraph=True)
    torch.testing.assert_close(compiled(query, key), turned(query, key), rtol=0, atol=0)
    calls = [str(node.target) for node in graphs[0].graph.nodes]
    assert any("rotary_factors" in call for call in calls)
    assert not any("sin" in call for call in calls)


def test_a_gated_block_multiplies_its_halves() -> None:
    block, hidden = FeedForward(6, 10, activation="gelu", gated=True, bias=False), torch.randn(2, 6)
    value, gate = block.up.weight[:10], block.up.weight[10:]
    expected = functional.linear(
        functional.gelu(hidden @ value.T) * (hidden @ gate.T), block.down.weight
    )
    torch.testing.assert_close(block(hidden), expected)
    assert sum(parameter.numel() for parameter in block.parameters()) == 3 * 60


class _Ignoring(nn.Module):
    """Attention's signature around a module that needs no layout."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden: torch.Tensor, *_: object) -> torch.Tensor:
        result: torch.Tensor = self.module(hidden)
        return result
