"""Weights that lie in bf16 over fp32 master weights, for the engine of plain torch.

Under autocast a linear layer's weights are rounded to bf16 in every forward pass, and their gradients are bf16 before they are
made fp32. Here they lie in bf16, and are rounded once, when they are updated: the forward pass is the same, and so is the gradient, to the
bit. What autocast does not round (norms, embeddings) stays as it is. The optimizer sees fp32 weights and fp32 gradients alone, which are
what is saved and exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Masters:
    """The fp32 weights of a model's linear layers, which from now on lie in it in bf16. Of the trained ones, that no other module has.

    A gradient that arrives at a weight goes to its master at once, so that those of several micro-batches are added up in fp32.
    """

    def __init__(self, model: nn.Module) -> None:
        self._of: dict[Tensor, nn.Parameter] = {}
        for parameter in _rounded_by_autocast(model):
            self._of[parameter] = nn.Parameter(parameter.detach().clone())
            parameter.data = parameter.detach().to(torch.bfloat16)
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """What the optimizer sees of a parameter: its master, or itself."""
        return self._of.get(parameter, parameter)

    def groups(self, groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same groups of what the optimizer sees."""
        return [{**group, "params": [self.of(parameter) for parameter in group["params"]]} for group in groups]

    @torch.no_grad()
    def round(self) -> None:
        """Give the model what has become of the masters."""
        for parameter, master in self._of.items():
            parameter.copy_(master)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """In the block the model's weights are the masters, which may be read and changed."""
        rounded = {parameter: parameter.data for parameter in self._of}
        try:
            for parameter, master in self._of.items():
                parameter.data = master.data
            yield
        finally:
            for parameter, data in rounded.items():
                parameter.data = data
            self.round()

    def _arrived(self, parameter: Tensor) -> None:
        master, gradient = self._of[parameter], parameter.grad
        assert gradient is not None
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None


def _rounded_by_autocast(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights and biases that linear layers have for themselves."""
    linear, others = dict[nn.Parameter, None](), set[nn.Parameter]()
    for module in model.modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        if isinstance(module, nn.Linear):
            linear.update(dict.fromkeys(own))
        else:
            others.update(own)
    return [parameter for parameter in linear if parameter not in others]
