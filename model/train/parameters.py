"""Which parameters are trained, in which groups, and how long their gradient may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.train.interfaces import Recipe, Trained
from model.train.optimizers import OptimizerKind, optimizer_kind


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The trained parameters by the model's own names, each once."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def freeze_unused(trained: Trained, batch: Mapping[str, Any]) -> list[str]:
    """Stop training what no objective reaches (the pair head of a dataset without pairs); returns the parameters' names.

    They have no gradient. Left alone they would still decay where ranks exchange flat gradients or share out the optimizer's
    state, and not elsewhere: the result would depend on how training is spread.

    Args:
        batch: a blank one, on the device of the weights.
    """
    training = trained.training
    loss, _ = trained.eval()(batch, torch.ones(len(trained.names), device=batch["input_ids"].device))
    loss.backward()
    trained.train(training)
    unused = [name for name, parameter in trained.model.named_parameters() if parameter.grad is None]
    for name, parameter in trained.model.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name not in unused)
    return unused


_BLOCK = re.compile(r"encoder\.(?:layers|groups)\.(\d+)\.")  # a layer, or a group of layers that share their weights


def layer_rates(names: Iterable[str], decay: float) -> Callable[[str], float]:
    """Layer-wise decay: parameter's name -> what its learning rate is multiplied with.

    Of n layers, layer i from 0 has decay^(n + 1 - i), the embeddings decay^(n + 2), and what stands on the encoder, 1, as
    `_get_layer_lrs` of google-research/electra's model/optimization.py has it (Clark et al. 2020, appendix B); the pooler and a norm behind
    the last layer, which ELECTRA lacks, are the step between: decay.

    Args:
        names: of all parameters, as the network has them.
    """
    layers = 1 + max((int(found[1]) for found in map(_BLOCK.match, names) if found), default=-1)

    def rate(name: str) -> float:
        found = _BLOCK.match(name)
        if found:
            return decay ** (layers + 1 - int(found[1]))
        if name.startswith("encoder.embeddings."):
            return decay ** (layers + 2)
        return decay if name.startswith(("encoder.", "pooler.")) else 1.0

    return rate


_PLACE = re.compile(r"(?:^|\.)encoder\.(?:(embeddings)\.|(?:layers|groups)\.\d+\.)")


def place(name: str, parameter: Tensor) -> str:
    """Where a parameter stands: in the `embeddings` (tables, their norm and projection), as a matrix of a layer (`hidden`), or among
    the `others`: the layers' vectors, and whatever stands on the encoder.
    """
    found = _PLACE.search(name)
    if found is None:
        return "others"
    if found[1]:
        return "embeddings"
    return "hidden" if parameter.ndim > 1 else "others"


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """The optimizer's groups: weight decay on matrices alone, not on biases and norms (google-research/bert, optimization.py).

    Matrices come first. Each group has

        weight_decay  its own
        rate          what the learning rate is multiplied with
        matrices      whether it holds matrices and tables, or vectors
        hidden        for an optimizer that treats the layers' matrices apart: of how many each parameter is made up; else 0
    """
    apart = optimizer_kind(recipe.optimizer).hidden is not None
    found: dict[tuple[bool, float, int], dict[str, Any]] = {}
    for decays in (True, False):
        for name, parameter in trained_parameters(model):
            if (parameter.ndim > 1) is decays:
                where = place(name, parameter)
                rate = recipe.rate(name) * recipe.rates.get(where, 1.0)
                hidden = _stacked(model, name) if apart and where == "hidden" else 0
                decay = recipe.weight_decay if decays else 0.0
                values = {"params": [], "weight_decay": decay, "rate": rate, "matrices": decays, "hidden": hidden}
                found.setdefault((decays, rate, hidden), values)["params"].append(parameter)
    return list(found.values())


def _stacked(model: nn.Module, name: str) -> int:
    """How many matrices, one upon another, a layer's matrix is made up of: a fused projection, a gated block."""
    module, _, last = name.removesuffix(".weight").rpartition(".")
    stacked: Mapping[str, int] = getattr(model.get_submodule(module), "stacked", {})
    return stacked.get(last, 1)


def optimizer_states(model: nn.Module, optimizer: OptimizerKind) -> Iterator[tuple[str, nn.Parameter, str]]:
    """What the optimizer holds of the model: a parameter's name, the parameter, and the name of a state of its shape."""
    for name, parameter in trained_parameters(model):
        apart = optimizer.hidden is not None and place(name, parameter) == "hidden"
        for key in optimizer.hidden or () if apart else optimizer.state:
            yield name, parameter, key


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group `learning_rate` times its own `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate"]


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """The gradient's norm, a scalar on its device."""
    return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def clip(parameters: list[nn.Parameter], largest: float) -> float:
    """Scale the gradient down to the norm `largest`, if it is longer (0: never); returns what its norm was. Waits for the device."""
    norm = gradient_norm(parameters)
    found = float(norm)
    if 0 < largest < found < math.inf:  # most steps of a trained model need none: a pass over all gradients less
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return found
