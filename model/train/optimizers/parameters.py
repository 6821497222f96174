"""Trained parameters: selection, optimizer groups, gradient norm, EMA, and extents in flat tensors.

ZeRO 1 and 2 shard a flattened group at any place, ZeRO 3 shards each parameter.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from cloze.model.layers.batch import Batch
from cloze.model.tensors import LazyTensors
from cloze.model.train.optimizers import OptimizerSpec, optimizer_kind
from cloze.model.train.spec.interfaces import TrainModule
from cloze.model.train.spec.train_spec import TrainingHyperparameters, from_start

# Values summed in fp32 at once: over the 23 million of a word table, a CPU's norm is off by 0.1 to
# 0.7 %.
AT_ONCE = 1024
# Early steps forget the random initialization: decay at most (1 + step) / (10 + step), as in
# TensorFlow's ExponentialMovingAverage.
EMA_WARMUP = 10.0


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

    Args:
        names: names of all parameters of the network.
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
        first_step    first step that trains it, see `unfreeze`
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


def set_learning_rate(
    optimizer: torch.optim.Optimizer, learning_rate: float, step: int | None = None
) -> None:
    """Set each group's learning rate to `learning_rate` times the group's `rate`.

    Args:
        step: number of the step, from 0; the rate of a group before its `first_step` is 0, so that
            its weights stay, while its moments follow the gradient. None: no group is frozen.
    """
    for group in optimizer.param_groups:
        is_frozen = step is not None and step < group["first_step"]
        group["lr"] = 0.0 if is_frozen else learning_rate * group["rate"]


def ema_decay_at(decay: float, step: int) -> float:
    """Return the decay at step `step`, counted from 0 over all phases."""
    return min(decay, (1.0 + step) / (EMA_WARMUP + step))


class WeightEMA:
    """The exponential moving average (EMA) of a rank's tensors: all weights, or its shard of them.

    After each update the average moves toward the weights by 1 - decay (Polyak and Juditsky, 1992;
    compare Izmailov et al., 2018). It draws no random number and touches no weight, so training is
    the same with and without EMA.

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


@dataclass(frozen=True, slots=True)
class TensorExtent:
    """Consecutive values of a parameter, or of a matrix stacked in it, in a flattened tensor.

    Attributes:
        number: index of the parameter or matrix in the group, from 0.
        offset: index of the first value in the flattened parameter or matrix.
        start: index of the first value in the flattened tensor.
        length: number of values.
    """

    number: int
    offset: int
    start: int
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return these values of a tensor, [length]; a view if the tensor is contiguous."""
        return tensor.reshape(-1)[self.start : self.start + self.length]

    def read(self, tensors: LazyTensors, name: str) -> Tensor:
        """Read these values, [length], of the whole tensor `name`."""
        return tensors.slice(name, self.offset, self.offset + self.length)


@dataclass(frozen=True, slots=True)
class FlatShard:
    """The extents of a group's parameters in an optimizer's flat tensor.

    Attributes:
        shapes: shapes of the group's whole parameters, the same on every rank.
        extents: this rank's extents. Values outside of them are padding and stay unchanged.
    """

    shapes: tuple[tuple[int, ...], ...]
    extents: tuple[TensorExtent, ...]

    @property
    def sizes(self) -> list[int]:
        """Number of values of each whole parameter."""
        return [math.prod(shape) for shape in self.shapes]


class SharedOptimizer(torch.optim.Optimizer):
    """An optimizer whose update of one value depends on others, which ranks may have.

    Such sums over a parameter, or its whole matrix, are right only if it knows what an engine did
    to the parameters. So the engine tells it, after it has cut or copied them.

    Attributes:
        found_inf: see `cloze.model.train.optimizers.OptimizerSpec`.
        ranks: this rank, and the number of ranks with the same parameters and gradients.
        shards: flat tensor -> its extents of a group's parameters; other tensors are whole
            parameters. With any entry, all ranks of the default process group must update the same
            groups in the same order.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        self.ranks = (0, 1)
        self.shards: dict[Tensor, FlatShard] = {}


def concatenate(shards: Iterable[tuple[FlatShard, int]]) -> FlatShard:
    """Return the shard of several flat tensors in a row, given with their lengths."""
    shapes: list[tuple[int, ...]] = []
    extents, start = [], 0
    for shard, length in shards:
        extents += [
            replace(extent, number=extent.number + len(shapes), start=extent.start + start)
            for extent in shard.extents
        ]
        shapes += shard.shapes
        start += length
    return FlatShard(tuple(shapes), tuple(extents))


def collective_device() -> torch.device:
    """Return the device for collectives: NCCL needs the GPU even for offloaded tensors."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if distributed.get_backend() == "nccl"
        else torch.device("cpu")
    )


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of each flat tensor, float64 [n]."""
    if tensors[0].device.type != "cpu":  # a GPU sums as a tree
        return torch.stack(torch._foreach_norm(tensors)).double().square()  # type: ignore[arg-type]
    return torch.stack([_square(tensor) for tensor in tensors])


def _square(tensor: Tensor) -> Tensor:
    """Return the sum of squares as a float64 scalar, summed by rows."""
    rows = tensor.numel() // AT_ONCE
    row_norms: Tensor = torch.linalg.vector_norm(
        tensor[: rows * AT_ONCE].view(rows, AT_ONCE), dim=1
    )
    remainder_norm: Tensor = torch.linalg.vector_norm(tensor[rows * AT_ONCE :])
    return row_norms.double().square().sum() + remainder_norm.double().square()
