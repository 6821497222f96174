"""fp32 copies of a model's weights: the exponential moving average (EMA), and master weights.

EMA: after each update the average moves toward the weights by 1 - decay (Polyak and Juditsky, 1992;
compare Izmailov et al., 2018). It draws no random number and touches no weight, so training is the
same with and without EMA.

Master weights, for the torch engine: under autocast a linear layer's weights are rounded to bf16 in
every forward pass, and their gradients are bf16 before they become fp32. With master weights the
model's weights are stored in bf16 and rounded once per update: forward pass and gradient are the
same to the bit. Norms and embeddings, which autocast does not round, stay fp32. The optimizer,
checkpoints and exports only see fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Early steps forget the random initialization: decay at most (1 + step) / (10 + step), as in
# TensorFlow's ExponentialMovingAverage.
WARMUP = 10.0


def ema_decay_at(decay: float, step: int) -> float:
    """Return the decay at step `step`, counted from 0 over all phases."""
    return min(decay, (1.0 + step) / (WARMUP + step))


class WeightEMA:
    """The EMA of a rank's tensors: all weights, or the rank's shard of them.

    Attributes:
        values: fp32 averages, one per tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self.values = [tensor.detach().float().clone() for tensor in tensors]

    @torch.no_grad()
    def reset(self) -> None:
        """Restart from the current tensors."""
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.copy_(tensor)

    @torch.no_grad()
    def update(self, decay: float, applied: Tensor | None = None) -> None:
        """Move the averages toward the tensors.

        Args:
            applied: scalar on the device, 0 if the step changed no weight and the average must not
                move; None: the step was applied.
        """
        weight = 1.0 - decay
        for value, tensor in zip(self.values, self._tensors, strict=True):
            value.lerp_(tensor.detach(), weight if applied is None else weight * applied)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and tensors."""
        for value, tensor in zip(self.values, self._tensors, strict=True):
            old_weights = tensor.detach().clone()
            tensor.copy_(value)
            value.copy_(old_weights)


class MasterWeights:
    """The fp32 master weights of a model's linear layers, whose own weights become bf16.

    Only trained parameters that no other kind of module shares are converted. Gradients are added
    to the master on arrival, so that micro-batches accumulate in fp32.
    """

    def __init__(self, model: nn.Module) -> None:
        self._of: dict[Tensor, nn.Parameter] = {}
        for parameter in _rounded_by_autocast(model):
            self._of[parameter] = nn.Parameter(parameter.detach().clone())
            parameter.data = parameter.detach().to(torch.bfloat16)
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]

    def master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter that the optimizer sees: the master, or the parameter itself."""
        return self._of.get(parameter, parameter)

    def groups(self, groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups with each parameter replaced by its master."""
        return [
            {**group, "params": [self.master_of(parameter) for parameter in group["params"]]}
            for group in groups
        ]

    @torch.no_grad()
    def sync_to_model(self) -> None:
        """Copy the masters into the model, rounded to bf16."""
        for parameter, master in self._of.items():
            parameter.copy_(master)

    @contextmanager
    def as_model_weights(self) -> Iterator[None]:
        """Make the masters the model's weights inside the block, to be read and changed."""
        rounded = {parameter: parameter.data for parameter in self._of}
        try:
            for parameter, master in self._of.items():
                parameter.data = master.data
            yield
        finally:
            for parameter, data in rounded.items():
                parameter.data = data
            self.sync_to_model()

    def _arrived(self, parameter: Tensor) -> None:
        master, gradient = self._of[parameter], parameter.grad
        assert gradient is not None
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None


def _rounded_by_autocast(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained weights and biases that only linear layers use."""
    linear_parameters, other_parameters = dict[nn.Parameter, None](), set[nn.Parameter]()
    for module in model.modules():
        parameters = [
            parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad
        ]
        if isinstance(module, nn.Linear):
            linear_parameters.update(dict.fromkeys(parameters))
        else:
            other_parameters.update(parameters)
    return [parameter for parameter in linear_parameters if parameter not in other_parameters]
