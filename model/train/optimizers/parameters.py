"""Trained parameters: which are trained, from which step, at which rate, in which group.

A group and a rate follow from a parameter's place in the network, which its name tells.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.layers.batch import Batch
from cloze.model.train.optimizers import OptimizerSpec, optimizer_kind
from cloze.model.train.spec.interfaces import TrainModule
from cloze.model.train.spec.train_spec import TrainingHyperparameters, from_start


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trained parameters by name, each once."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def freeze_unused(trained: TrainModule, *batches: Batch) -> list[str]:
    """Freeze parameters that no objective reaches, such as an unused pair head; return their names.

    They have no gradient. If trained, they would still decay where ranks reduce flat gradients or
    shard the optimizer state, but not elsewhere: the result would depend on the parallelism.

    Args:
        batches: batches on the device of the weights, without samples if what they reach does not
            depend on the samples.
    """
    training = trained.training
    for batch in batches:
        ones = torch.ones(len(trained.names), device=batch["input_ids"].device)
        loss, _ = trained.eval()(batch, ones)
        loss.backward()
    trained.train(training)
    unused = [
        name for name, parameter in trained.model.named_parameters() if parameter.grad is None
    ]
    for name, parameter in trained.model.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name not in unused)
    return unused


# Where a parameter of a backbone stands: in a stack (an encoder, its decoder, a second encoder such
# as a retriever's), there in a table of embeddings, in a layer (or a group of layers with shared
# weights), or behind the layers.
_PLACE = re.compile(
    r"(?P<stack>(?P<encoder>(?:\w+\.)*?encoder\.)(?:decoder\.)?)"
    r"(?:(?P<table>embeddings)\.|(?:layers|groups)\.(?P<layer>\d+)\.)?"
)
_POOLER = re.compile(r"(?:\w+\.)?pooler\.")


def _depths(names: Iterable[str]) -> Callable[[str], tuple[int, bool]]:
    """Return a function from parameter name to its depth, and whether a layer or table has it.

    The top layer of each stack has depth 1, the tables of an encoder and its decoder one more than
    the bottom layer of the taller of the two. What is behind the layers has depth 1, heads and
    poolers have 0.

    Args:
        names: names of all parameters of the network.
    """
    layers: Counter[str] = Counter()
    taller: Counter[str] = Counter()
    for place in filter(None, map(_PLACE.match, names)):
        # A name without a layer still makes its stack known, with a count of 0.
        count = 1 + int(place["layer"] or -1)
        layers[place["stack"]] = max(layers[place["stack"]], count)
        taller[place["encoder"]] = max(taller[place["encoder"]], count)

    def depth(name: str) -> tuple[int, bool]:
        place = _PLACE.match(name)
        if place is None:
            return 0, False
        if place["table"]:
            return taller[place["encoder"]] + 1, True
        if place["layer"]:
            return layers[place["stack"]] - int(place["layer"]), True
        return 1, False

    return depth


def layerwise_lr_multipliers(names: Iterable[str], decay: float) -> Callable[[str], float]:
    """Return a function from parameter name to learning-rate multiplier, for layer-wise decay.

    Of n layers, layer i (from 0) has decay^(n + 1 - i), the embeddings decay^(n + 2), and heads 1.
    See `_get_layer_lrs` of google-research/electra's model/optimization.py (Clark et al., 2020,
    appendix B). The pooler and a norm after the last layer, which ELECTRA lacks, have decay. A
    decoder and a second encoder count their own layers, see `_depths`.
    """
    depth_of = _depths(names)

    def rate(name: str) -> float:
        depth, in_layers = depth_of(name)
        if in_layers:
            return decay ** (depth + 1)
        return decay if depth or _POOLER.match(name) else 1.0

    return rate


def gradual_unfreezing(
    names: Iterable[str], layers: int | None, epoch: int
) -> Callable[[str], int]:
    """Return a function from parameter name to the first step that trains it, from 0.

    The first epoch trains heads and pooler; each later one adds the next `layers` layers from the
    top, and at last the embeddings (ULMFiT: Howard and Ruder, 2018, section 3.3, with one layer).

    Args:
        names: names of all parameters of the network.
        layers: layers that each epoch adds; None: all from the start.
        epoch: steps per epoch.
    """
    if layers is None:
        return from_start
    depth_of = _depths(names)

    def first_step(name: str) -> int:
        return epoch * math.ceil(depth_of(name)[0] / layers)

    return first_step


def parameter_role(name: str, parameter: Tensor) -> str:
    """Return a parameter's role: `embeddings`, `hidden` or `others`.

    `embeddings`: tables, their norm and projection; `hidden`: a layer's matrix; `others`: the
    layers' vectors, and the heads.
    """
    place = _PLACE.match(name)
    if place is None or not (place["table"] or place["layer"]):
        return "others"
    # XLNet's vectors of the same and of the other segment are a table of two rows in each layer.
    if place["table"] or name.endswith("attention.segment.weight"):
        return "embeddings"
    return "hidden" if parameter.ndim > 1 else "others"


def parameter_groups(model: nn.Module, recipe: TrainingHyperparameters) -> list[dict[str, Any]]:
    """Return the optimizer's groups; only matrices decay (google-research/bert, optimization.py).

    Matrices come first. Each group has

        weight_decay  weight decay
        rate          learning-rate multiplier
        first_step    first step that trains it, see `gradual_unfreezing`
        matrices      True for matrices and tables, False for vectors
        hidden        number of matrices stacked in each parameter, if the optimizer treats the
                      layers' matrices separately; else 0
    """
    separate_hidden = optimizer_kind(recipe.optimizer).matrix_state is not None
    groups: dict[tuple[bool, float, int, int], dict[str, Any]] = {}
    for decays in (True, False):
        for name, parameter in trained_parameters(model):
            if (parameter.ndim > 1) is decays:
                role = parameter_role(name, parameter)
                rate = recipe.rate(name) * recipe.rates.get(role, 1.0)
                hidden = _stacked(model, name) if separate_hidden and role == "hidden" else 0
                decay = recipe.weight_decay if decays else 0.0
                values = {
                    "params": [],
                    "weight_decay": decay,
                    "rate": rate,
                    "first_step": (first_step := recipe.first_step(name)),
                    "matrices": decays,
                    "hidden": hidden,
                }
                key = decays, rate, hidden, first_step
                groups.setdefault(key, values)["params"].append(parameter)
    return list(groups.values())


def _stacked(model: nn.Module, name: str) -> int:
    """Return the number of matrices stacked in a layer's matrix, as in a fused projection."""
    module, _, attribute = name.removesuffix(".weight").rpartition(".")
    stacked: Mapping[str, int] = getattr(model.get_submodule(module), "stacked", {})
    return stacked.get(attribute, 1)


def optimizer_states(
    model: nn.Module, optimizer: OptimizerSpec
) -> Iterator[tuple[str, nn.Parameter, str]]:
    """Yield each optimizer state tensor: parameter name, parameter, and name of the state."""
    for name, parameter in trained_parameters(model):
        separate = (
            optimizer.matrix_state is not None and parameter_role(name, parameter) == "hidden"
        )
        for key in optimizer.matrix_state or () if separate else optimizer.state:
            yield name, parameter, key
