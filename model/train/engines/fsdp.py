"""The engine of torch's fully sharded data parallel (FSDP2): every rank has rows of each parameter.

`cloze.model.train.engines.protocol` documents the methods. A rank gathers the weights of a layer
when the layer runs, and the ranks reduce and scatter the layer's gradients in the backward pass.
The optimizer updates the rank's rows as plain tensors, so it pays nothing for `DTensor`.

The units that are gathered are the layers of each encoder but the last, and the whole module for
the rest. The last layer is needed first in the backward pass, and DeBERTa's decoder calls its
parts. Layers that are repeated (ALBERT) also belong to the rest, so they are gathered once.

Weights are gathered in fp32, and autocast rounds them as in the torch engine: losses are equal.
`MixedPrecisionPolicy.param_dtype` would also round norms, embeddings and the sums of residuals.
Gradients are reduced at every micro-batch, because whole gradients would not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from cloze.model.layers.encoder import Encoder
from cloze.model.tensors import TensorSlice, raise_mismatch
from cloze.model.train.distributed import assign_owners, single_process_group
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.optimizers.flat_shards import (
    FlatShard,
    SharedOptimizer,
    TensorExtent,
    collective_device,
)
from cloze.model.train.precision import DTYPES
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.train_spec import TrainingHyperparameters


class FSDPEngine(TorchEngine):
    """Data parallel processes that shard weights, gradients and optimizer state."""

    def _distribute(self, recipe: TrainingHyperparameters, choice: EngineConfig) -> None:
        """Shard the model; all ranks start from rank 0's weights.

        The model is on the host, and one unit at a time moves to the device, so that the device
        never has the whole model.
        """
        self._reduces = True
        device, offload = self._world.device, OffloadPolicy()
        if self._world.size == 1:
            single_process_group(device)
        if choice.offload:
            offload = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        mesh = init_device_mesh(device.type, (self._world.size,))
        # Inner units first: fully_shard takes the parameters that no unit has yet.
        for unit in (*_layers(self._model), self._trained):
            for tensor in (*unit.parameters(), *unit.buffers()):
                # A DTensor was sharded with an inner unit; its rows differ by rank.
                if not isinstance(tensor, DTensor):
                    tensor.data = tensor.detach().to(device)
                    distributed.broadcast(tensor.detach(), 0)
            sharded = fully_shard(
                unit,
                mesh=mesh,
                # None: torch keeps the whole module's own weights until the backward pass.
                reshard_after_forward=None if unit is self._trained else choice.zero == 3,
                mp_policy=MixedPrecisionPolicy(reduce_dtype=DTYPES[recipe.grad_reduce_dtype]),
                offload_policy=offload,
            )
            # Losses are divided by global counts, so gradients are summed. gloo has no operation
            # that sums and multiplies at once.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def _local_part(self, parameter: nn.Parameter) -> tuple[nn.Parameter, TensorExtent]:
        tensor = nn.Parameter(_rows(parameter))
        return tensor, TensorExtent(0, self._offset(parameter), 0, tensor.numel())

    def _share_updates(self) -> None:
        if self._world.size > 1 and isinstance(self.optimizer, SharedOptimizer):
            self.optimizer.shards = {
                tensor: FlatShard((tuple(self._whole[name].shape),), (extent,))
                for name, (tensor, extent) in self._local.items()
            }

    @contextmanager
    def _reducing(self, last: bool) -> Iterator[None]:
        self._trained.set_is_last_backward(last)  # type: ignore[operator]
        yield
        if last:
            for parameter, tensor in zip(self._whole.values(), self._parameters, strict=True):
                gradient = parameter.grad
                tensor.grad = torch.zeros_like(tensor) if gradient is None else _rows(gradient)
                # `zero_grad` clears the rows' gradients only; the next step would add to this one.
                parameter.grad = None

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        norm = get_total_norm(gradients)
        # Squares of the parts add up over the ranks, norms do not.
        squared = norm.double().square().to(collective_device())
        distributed.all_reduce(squared)
        return squared.sqrt().to(norm)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        tensors: dict[str, Any] = self._model.state_dict()
        sizes = {name: tensor.numel() for name, tensor in tensors.items()}
        owners = assign_owners(sizes, self._world.size)
        # Every rank takes part in every gather, whichever rank then writes the tensor.
        for name, tensor in tensors.items():
            whole = tensor
            if isinstance(tensor, DTensor):  # NCCL gathers no offloaded tensors
                whole = tensor.to(self._world.device).full_tensor()  # type: ignore[attr-defined]
            if owners[name] == self._world.rank:
                yield name, whole

    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy this rank's rows of each tensor; see `load_weights`."""
        errors: list[str] = []
        self._reshard()
        for name, tensor in self._model.state_dict().items():
            if name not in weights:
                errors.append(f"{name} is missing")
            elif (values := weights[name]).shape != tensor.shape:
                errors.append(f"{name} is {tuple(values.shape)}, not {tuple(tensor.shape)}")
            elif isinstance(tensor, DTensor):
                rows, offset = _rows(tensor), self._offset(tensor)
                rows.copy_(values.flatten()[offset : offset + rows.numel()].view(rows.shape))
            else:
                tensor.copy_(values)
        raise_mismatch(errors)

    def optimizer_state(self) -> Iterator[TensorSlice]:
        for name, key in self._states():
            tensor, extent = self._local[name]
            if extent.length:
                shape, values = tuple(self._whole[name].shape), self.optimizer.state[tensor][key]
                yield TensorSlice(f"{name}/{key}", shape, extent.offset, values.flatten())

    def _offset(self, parameter: Tensor) -> int:
        """Return the index of this rank's first value in the flattened whole parameter."""
        rows, *others = parameter.shape
        # As torch.chunk divides rows: equal parts rounded up, so the last ranks may have none.
        return min(rows, self._world.rank * -(-rows // self._world.size)) * math.prod(others)

    def _reshard(self) -> None:
        """Free gathered weights, which an evaluation leaves, before their rows change."""
        for module in self._trained.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that are gathered one by one."""
    for module in model.modules():
        if isinstance(module, Encoder):
            # Repeated layers (ALBERT) register no parameters of their own.
            yield from (
                layer for layer in module.layers[:-1] if any(True for _ in layer.parameters())
            )


def _rows(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a sharded tensor; they share its memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()
