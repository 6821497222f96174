"""The engine for DeepSpeed's ZeRO stages 1 to 3.

`cloze.model.train.engines.protocol` documents the methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.layers.batch import Batch
from cloze.model.tensors import LazyTensors, TensorSlice, copy_module_tensors, raise_mismatch
from cloze.model.train.device_scalars import LossScale
from cloze.model.train.distributed import World, assign_owners, single_process_group
from cloze.model.train.engines.deepspeed_setup import ds_config, import_deepspeed
from cloze.model.train.engines.gradients import own_tensors
from cloze.model.train.engines.torch import set_learning_rate
from cloze.model.train.optimizers import optimizer_kind
from cloze.model.train.optimizers.flat_shards import FlatShard, SharedOptimizer, TensorExtent
from cloze.model.train.optimizers.parameters import (
    optimizer_states,
    parameter_groups,
    trained_parameters,
)
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.interfaces import TrainModule
from cloze.model.train.spec.train_spec import TrainingHyperparameters


def engine(
    trained: TrainModule,
    recipe: TrainingHyperparameters,
    world: World,
    choice: EngineConfig,
    *,
    micro_batch: int,
    accumulation: int,
) -> DeepSpeedEngine:
    """Create the engine for the chosen ZeRO stage."""
    settings = ds_config(recipe, choice, micro_batch, accumulation, world.device.type)
    return (_ReplicatedWeights if choice.zero < 3 else _ShardedWeights)(
        trained, recipe, world, settings
    )


class DeepSpeedEngine:
    """Common parts of ZeRO stages 1 to 3."""

    def __init__(
        self,
        trained: TrainModule,
        recipe: TrainingHyperparameters,
        world: World,
        settings: Mapping[str, Any],
    ) -> None:
        self._kind = optimizer_kind(recipe.optimizer)
        # DeepSpeed's stage 3 averages gradients over ranks; Cloze's losses need sums.
        self._loss_factor = 1 if settings["gradient_allreduce_op"] == "sum" else world.size
        self._deepspeed = import_deepspeed(world.device.type)
        if world.size == 1:
            single_process_group(world.device)
        self._world = world
        self.loss_scaler = LossScale(world.device) if recipe.precision == "fp16" else None
        self._updates = 0  # applied updates, over all resumes
        self._trained = trained.to(world.device)
        self._model = trained.model
        self.optimizer = self._kind.build(parameter_groups(self._model, recipe), recipe)
        self._names = {parameter: name for name, parameter in trained_parameters(self._model)}
        # Names of the optimizer state tensors of each parameter.
        self._states: dict[nn.Parameter, list[str]] = {}
        for _, parameter, key in optimizer_states(self._model, self._kind):
            self._states.setdefault(parameter, []).append(key)
        self._engine, *_ = self._deepspeed.initialize(
            model=self._trained,
            optimizer=self.optimizer,
            config=dict(settings),
            dist_init_required=False,
        )
        # Only now: `initialize` has flattened and cut the parameters.
        if isinstance(self.optimizer, SharedOptimizer):
            self.optimizer.shards = {flat: shard for flat, _, shard in self._groups()}

    def backward(self, batch: Batch, counts: Tensor, *, last: bool) -> Tensor:
        timeline = self._world.timeline
        self._engine.set_gradient_accumulation_boundary(last)
        with timeline.section("forward", on_device=True):
            loss, figures = self._engine(batch, counts)
        # DeepSpeed's own loss scaler depends on the weights' dtype, which is fp32 here.
        if self.loss_scaler is not None:
            self._engine.optimizer.override_loss_scale(float(self.loss_scaler.value))
        with timeline.section("backward", on_device=True):
            # Not divided by the micro-batches again: the counts are those of the whole step.
            self._engine.backward(loss * self._loss_factor, scale_wrt_gas=False)
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float, step: int | None = None) -> float:
        set_learning_rate(self._engine.optimizer, learning_rate, step)
        with self._world.timeline.section("optimizer", on_device=True):
            self._engine.step()  # DeepSpeed detects non-finite norms itself and skips the update
        applied = not self._engine.optimizer.overflow
        norm = float(self._engine.get_global_grad_norm()) if applied else math.nan
        self._updates += applied
        if self.loss_scaler is not None:
            self.loss_scaler.update(torch.tensor(norm))
        return norm

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        errors: list[str] = []
        with torch.no_grad():
            for prefix, module in self._model.named_modules():
                with self._gathered(list(module.parameters(recurse=False))):
                    copy_module_tensors(module, f"{prefix}." if prefix else "", weights, errors)
            raise_mismatch(errors)
            # DeepSpeed updates its own fp32 partitions, which would overwrite the new weights.
            self._engine.optimizer.refresh_fp32_params()

    def optimizer_state(self) -> Iterator[TensorSlice]:
        if self._updates == 0:
            return
        for flat, parameter, extent in self._extents():
            for key in self._states[parameter]:
                values = extent.of(self.optimizer.state[flat][key])
                name = f"{self._names[parameter]}/{key}"
                yield TensorSlice(name, _shape(parameter), extent.offset, values)

    def load_optimizer_state(self, state: LazyTensors, updates: int) -> None:
        if updates == self._updates == 0:
            return
        self._updates = updates
        self.optimizer.state.clear()
        if updates == 0:
            return
        for flat, parameters, _ in self._groups():
            self.optimizer.state[flat] = {
                "step": torch.tensor(float(updates), device=flat.device),
                # A group's parameters have the same states; padding, which no file has, is zero.
                **{key: torch.zeros_like(flat) for key in self._states[parameters[0]]},
            }
        for flat, parameter, extent in self._extents():
            for key in self._states[parameter]:
                values = extent.read(state, f"{self._names[parameter]}/{key}")
                extent.of(self.optimizer.state[flat][key]).copy_(values)

    def _gathered(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        """Gather the parameters inside the block; rank 0's changes reach all ranks at its end."""
        raise NotImplementedError

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], FlatShard]]:
        """Yield each group: this rank's flat partition, its parameters, and their extents in it.

        The optimizer keeps its state per flat partition.
        """
        raise NotImplementedError

    def _extents(self) -> Iterator[tuple[Tensor, nn.Parameter, TensorExtent]]:
        """Yield all extents of this rank with their flat partition and parameter."""
        for flat, parameters, shard in self._groups():
            for extent in shard.extents:
                yield flat, parameters[extent.number], extent


class _ReplicatedWeights(DeepSpeedEngine):
    """Stages 1 and 2: every rank has all weights and a shard of the optimizer state."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return own_tensors(self._model.state_dict(), self._world.rank, self._world.size)

    def _gathered(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        del parameters
        return nullcontext()

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], FlatShard]]:
        """See `DeepSpeedEngine._groups`.

        A group's parameters are concatenated, and each rank has an equal share (DeepSpeed's
        `tensor_fragment.py`).
        """
        optimizer = self._engine.optimizer
        for flat, parameters in zip(
            optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, strict=True
        ):
            extents = []
            for number, parameter in enumerate(parameters):
                # None: all of this parameter is in other ranks' partitions.
                if (mapping := parameter._hp_mapping) is not None:
                    flat_address, parameter_address = (
                        mapping.hp_fragment_address,
                        mapping.lp_fragment_address,
                    )
                    extents.append(
                        TensorExtent(
                            number, parameter_address.start, flat_address.start, flat_address.numel
                        )
                    )
            yield flat, list(parameters), _flat_shard(parameters, extents)


class _ShardedWeights(DeepSpeedEngine):
    """Stage 3: weights are sharded too, and gathered when a layer needs them."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        tensors = self._model.state_dict(keep_vars=True)
        sizes = {name: _size(value) for name, value in tensors.items()}
        owners = assign_owners(sizes, self._world.size)
        for name, value in tensors.items():
            # Buffers are whole on every rank; there is nothing to gather.
            with self._deepspeed.zero.GatheredParameters(
                [value] if isinstance(value, nn.Parameter) else []
            ):
                if owners[name] == self._world.rank:
                    yield name, value.detach()

    def _gathered(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        gathered: AbstractContextManager[Any] = self._deepspeed.zero.GatheredParameters(
            parameters, modifier_rank=0
        )
        return gathered

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], FlatShard]]:
        """See `DeepSpeedEngine._groups`.

        Each rank has an equal part of every parameter, concatenated, and padded if the size is not
        divisible by the ranks.
        """
        optimizer = self._engine.optimizer
        for flat, parameters in zip(
            optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True
        ):
            extents, start = [], 0
            for number, parameter in enumerate(parameters):
                size = parameter.partition_numel()
                offset = size * self._world.rank
                # The last ranks have padding, which belongs to no parameter.
                length = min(size, _size(parameter) - offset)
                if length > 0:
                    extents.append(TensorExtent(number, offset, start, length))
                start += size
            yield flat, list(parameters), _flat_shard(parameters, extents)


def _flat_shard(parameters: Iterable[nn.Parameter], extents: Iterable[TensorExtent]) -> FlatShard:
    return FlatShard(tuple(_shape(parameter) for parameter in parameters), tuple(extents))


def _shape(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of the unsharded parameter."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _size(parameter: Tensor) -> int:
    """Return the number of values of the unsharded parameter."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
