"""Products of oneDNN are torch's own, but for the order of sums; only fp32 on CPUs takes them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from cloze.model.layers import cpu

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch has no oneDNN",
)


@pytest.fixture(autouse=True)
def _onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "ONEDNN", True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 48), (3, 5, 48), (2, 3, 5, 48), (1, 48), (0, 48), (48,)])
def test_values_and_gradients_are_torch_s(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    module = cpu.Linear(48, 33, bias=bias)
    values = torch.randn(shape, requires_grad=True)
    upstream = torch.randn(*shape[:-1], 33)
    inputs = (values, *module.parameters())
    theirs = functional.linear(values, module.weight, module.bias)
    ours = module(values)
    torch.testing.assert_close(ours, theirs)
    for found, wanted in zip(
        torch.autograd.grad(ours, inputs, upstream),
        torch.autograd.grad(theirs, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_frozen_weight_and_constant_values_have_no_gradient() -> None:
    module = cpu.Linear(8, 4).requires_grad_(False)
    values = torch.randn(3, 8, requires_grad=True)
    module(values).sum().backward()
    assert values.grad is not None
    assert module.weight.grad is None
    module.requires_grad_(True)(values.detach()).sum().backward()
    assert module.weight.grad is not None


def test_transposed_values_are_read_as_they_lie() -> None:
    module, values = cpu.Linear(8, 4), torch.randn(8, 3)
    torch.testing.assert_close(
        module(values.t()), functional.linear(values.t(), module.weight, module.bias)
    )


def test_bf16_and_autocast_stay_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_product", None)  # would fail
    module, values = cpu.Linear(8, 4), torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(values).dtype == torch.bfloat16
    assert module.bfloat16()(values.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(TypeError):
        cpu.Linear(8, 4)(values)
