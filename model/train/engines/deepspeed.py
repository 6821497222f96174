"""The engine for DeepSpeed's ZeRO stages 1 to 3, and the only file that imports DeepSpeed.

`cloze.model.train.engines.protocol` documents the methods.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from cloze.model.tensors import LazyTensors, TensorSlice, copy_module_tensors, raise_mismatch
from cloze.model.train.distributed import World, single_process_group
from cloze.model.train.engines import EngineConfig
from cloze.model.train.engines.ema import WeightEMA
from cloze.model.train.engines.gradients import assign_owners
from cloze.model.train.engines.loss_scale import LossScale
from cloze.model.train.engines.protocol import TensorExtent
from cloze.model.train.loop.interfaces import TrainingHyperparameters, TrainModule
from cloze.model.train.optimizers import optimizer_kind
from cloze.model.train.optimizers.parameters import (
    optimizer_states,
    parameter_groups,
    set_learning_rate,
    trained_parameters,
)
from cloze.model.train.optimizers.sharded_parameters import FlatShard, ShardExtent
from cloze.model.train.plan.memory import BUCKET_NUMBERS

CPU_BUCKET_NUMBERS = 1 << 20


def _import_deepspeed(device: str) -> Any:
    """Import DeepSpeed without its slow optional imports.

    Its autotuner imports MLflow if installed (1 to 2 s per rank), which training must not import.
    Each of its optimizers checks for DeepSpeed's Muon, whose module has three functions decorated
    with torch.compile: importing torch's compiler takes seconds. Nothing here calls these
    functions, and undecorated they compute the same.
    """
    os.environ["DS_ACCELERATOR"] = device  # else it may take a GPU despite a request for the CPU
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed does not start without it
    hide = "mlflow" not in sys.modules
    if hide:
        sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed
        import deepspeed.utils  # imports the package `deepspeed.ops`
    finally:
        if hide:
            del sys.modules["mlflow"]
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    decorator, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = decorator
    if device == "cpu":
        stages: Any = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
        stages.all_gather_dp_groups = _gather
    # DeepSpeed would probe all its kernels and then compile a shared-memory communication kernel
    # (30 s, needs a compiler) that only its inference uses. An empty table prevents both.
    deepspeed.ops.__compatible_ops__ = {}
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def _gather(
    groups_flat: Sequence[Tensor],
    partitioned_param_groups: Sequence[Sequence[Tensor]],
    dp_process_group: Sequence[Any],
    **_: Any,
) -> None:
    """Broadcast all parts of the weights in place; gloo's all_gather makes another copy."""
    del groups_flat
    sent = [
        distributed.broadcast(part, group_src=rank, group=group, async_op=True)
        for parts, group in zip(partitioned_param_groups, dp_process_group, strict=True)
        for rank, part in enumerate(parts)
    ]
    for work in sent:
        if work is not None:
            work.wait()


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
    return (_WholeParameters if choice.zero < 3 else _CutParameters)(
        trained, recipe, world, settings
    )


def ds_config(
    recipe: TrainingHyperparameters,
    choice: EngineConfig,
    micro_batch: int,
    accumulation: int,
    device: str,
) -> dict[str, Any]:
    """Generate DeepSpeed's whole config.

    Precision is not part of the config: the forward pass runs under torch.autocast inside the
    module, so DeepSpeed sees fp32 parameters and accumulates fp32 gradients at every stage.
    `communication_data_type` sets the dtype in which gradients travel.
    """
    # Tensors larger than a bucket are reduced in place. CPU caches favour small buckets, a GPU's
    # network large ones.
    bucket = CPU_BUCKET_NUMBERS if device == "cpu" and choice.zero < 3 else BUCKET_NUMBERS
    offloaded = (
        {"offload_optimizer": {"device": "cpu", "pin_memory": device == "cuda"}}
        if choice.offload
        else {}
    )
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": recipe.grad_clip,
        # Stage 3 supports only the mean.
        "gradient_allreduce_op": "mean" if choice.zero == 3 else "sum",
        "communication_data_type": recipe.grad_reduce_dtype,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # Cloze's optimizers also step on the CPU
        "zero_optimization": {
            "stage": choice.zero,
            "overlap_comm": device == "cuda",
            "round_robin_gradients": False,
            # Before stage 3 DeepSpeed sums on all ranks anyway, with two more copies.
            "reduce_scatter": choice.zero == 3,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": BUCKET_NUMBERS,
            **offloaded,
        },
        "data_types": {"grad_accum_dtype": "fp32"},
        # The timer would synchronize the device at every step.
        "timers": {"throughput": {"enabled": False}},
        "wall_clock_breakdown": False,
        "steps_per_print": None,
    }


class DeepSpeedEngine:
    """Common parts of ZeRO stages 1 to 3."""

    is_sharded = True

    def __init__(
        self,
        trained: TrainModule,
        recipe: TrainingHyperparameters,
        world: World,
        settings: Mapping[str, Any],
    ) -> None:
        self._kind = optimizer_kind(recipe.optimizer)
        # DeepSpeed's stage 3 averages gradients over ranks; Cloze's losses need sums.
        self._times = 1 if settings["gradient_allreduce_op"] == "sum" else world.size
        self._deepspeed = _import_deepspeed(world.device.type)
        if world.size == 1:
            single_process_group(world.device)
        self._world = world
        self.loss_scaler = LossScale(world.device) if recipe.precision == "fp16" else None
        self._updates = 0  # applied updates, over all resumes
        self._trained = trained.to(world.device)
        self._model = trained.model
        self.optimizer = self._kind.build(parameter_groups(self._model, recipe), recipe)
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
        if self._kind.scope != "numbers":
            self.optimizer.cuts = dict(self._cuts())  # type: ignore[attr-defined]
        self._average = WeightEMA(list(self._partitions())) if recipe.ema is not None else None
        self._applied = False  # True if the last step changed the weights

    def backward(self, batch: Mapping[str, Any], counts: Tensor, *, last: bool) -> Tensor:
        timeline = self._world.timeline
        self._engine.set_gradient_accumulation_boundary(last)
        with timeline.section("forward", on_device=True):
            loss, figures = self._engine(batch, counts)
        # DeepSpeed's own loss scaler depends on the weights' dtype, which is fp32 here.
        if self.loss_scaler is not None:
            self._engine.optimizer.override_loss_scale(float(self.loss_scaler.value))
        with timeline.section("backward", on_device=True):
            self._engine.backward(loss * self._times, scale_wrt_gas=False)
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float) -> Tensor:
        set_learning_rate(self._engine.optimizer, learning_rate)
        with self._world.timeline.section("optimizer", on_device=True):
            self._engine.step()  # DeepSpeed detects non-finite norms itself and skips the update
        self._applied = not self._engine.optimizer.overflow
        norm = torch.tensor(
            float(self._engine.get_global_grad_norm()) if self._applied else math.nan
        )
        self._updates += self._applied
        if self.loss_scaler is not None:
            self.loss_scaler.update(norm)
        return norm

    def local_parameters(self) -> Iterator[TensorExtent]:
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for fragment in self._fragments():
            yield TensorExtent(
                fragment.flat, names[fragment.parameter], fragment.at, fragment.length
            )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        errors: list[str] = []
        with torch.no_grad():
            for prefix, module in self._model.named_modules():
                with self._written(list(module.parameters(recurse=False))):
                    copy_module_tensors(module, f"{prefix}." if prefix else "", weights, errors)
            raise_mismatch(errors)
            self._engine.optimizer.refresh_fp32_params()
        if self._average is not None:
            self._average.reset()

    def update_ema(self, decay: float) -> None:
        assert self._average is not None
        if self._applied:
            self._average.update(decay)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        assert self._average is not None
        flats = list(self._partitions())
        self._lay(dict(zip(flats, self._average.values, strict=True)))
        try:
            yield
        finally:
            self._lay({flat: flat for flat in flats})

    @torch.no_grad()
    def _lay(self, values: Mapping[Tensor, Tensor]) -> None:
        """Write the values of all ranks' flat partitions into the model's weights.

        The partitions stay unchanged.
        """
        for flat, parameters, fragments in self._groups():
            own: dict[nn.Parameter, list[_Fragment]] = {}
            for fragment in fragments:
                own.setdefault(fragment.parameter, []).append(fragment)
            for parameter in parameters:
                # An offloaded partition is on another device.
                whole = torch.zeros(_size(parameter), device=self._world.device)
                for one in own.get(parameter, ()):
                    whole[one.start : one.start + one.length] = values[flat].detach()[
                        one.at : one.at + one.length
                    ]
                if self._world.size > 1:
                    distributed.all_reduce(whole)
                with self._written([parameter]):
                    parameter.copy_(whole.view(parameter.shape))

    def load_ema(self, weights: LazyTensors) -> None:
        assert self._average is not None
        values = dict(zip(self._partitions(), self._average.values, strict=True))
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for one in self._fragments():
            found = weights.slice(names[one.parameter], one.start, one.start + one.length)
            with torch.no_grad():
                values[one.flat][one.at : one.at + one.length] = found.to(one.flat.device)

    def optimizer_state(self) -> Iterator[TensorSlice]:
        if self._updates == 0:
            return
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for fragment in self._fragments():
            for key in self._states[fragment.parameter]:
                values = self.optimizer.state[fragment.flat][key][
                    fragment.at : fragment.at + fragment.length
                ]
                yield TensorSlice(
                    f"{names[fragment.parameter]}/{key}", fragment.shape, fragment.start, values
                )

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
                **{key: torch.zeros_like(flat) for key in self._states[parameters[0]]},
            }
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for fragment in self._fragments():
            for key in self._states[fragment.parameter]:
                found = state.slice(
                    f"{names[fragment.parameter]}/{key}",
                    fragment.start,
                    fragment.start + fragment.length,
                )
                self.optimizer.state[fragment.flat][key][
                    fragment.at : fragment.at + fragment.length
                ] = found.to(fragment.flat.device)

    def _written(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        """Gather the parameters inside the block; rank 0's changes reach all ranks at its end."""
        raise NotImplementedError

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], list[_Fragment]]]:
        """Yield this rank's flat partitions, their groups' parameters, and their fragments.

        The optimizer holds its state per flat partition.
        """
        raise NotImplementedError

    def _partitions(self) -> Iterator[Tensor]:
        return (flat for flat, _, _ in self._groups())

    def _fragments(self) -> Iterator[_Fragment]:
        return (fragment for _, _, fragments in self._groups() for fragment in fragments)

    def _cuts(self) -> Iterator[tuple[Tensor, FlatShard]]:
        """Yield each partition with the extents of the parameters in it."""
        for flat, parameters, fragments in self._groups():
            shapes = tuple(_shape(parameter) for parameter in parameters)
            yield (
                flat,
                FlatShard(
                    shapes,
                    tuple(
                        ShardExtent(one.number, one.start, one.at, one.length) for one in fragments
                    ),
                ),
            )


class _WholeParameters(DeepSpeedEngine):
    """Stages 1 and 2: every rank has all weights and a shard of the optimizer state."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        found = self._model.state_dict()
        owner = assign_owners(
            {name: tensor.numel() for name, tensor in found.items()}, self._world.size
        )
        return ((name, tensor) for name, tensor in found.items() if owner[name] == self._world.rank)

    def _written(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        del parameters
        return nullcontext()

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], list[_Fragment]]]:
        """See `DeepSpeedEngine._groups`.

        A group's parameters are concatenated, and each rank has an equal share (DeepSpeed's
        `tensor_fragment.py`).
        """
        optimizer = self._engine.optimizer
        for flat, parameters in zip(
            optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, strict=True
        ):
            fragments = []
            for number, parameter in enumerate(parameters):
                if parameter._hp_mapping is not None:
                    there, whole = (
                        parameter._hp_mapping.hp_fragment_address,
                        parameter._hp_mapping.lp_fragment_address,
                    )
                    fragments.append(
                        _Fragment(
                            flat,
                            parameter,
                            number,
                            _shape(parameter),
                            there.start,
                            whole.start,
                            there.numel,
                        )
                    )
            yield flat, list(parameters), fragments


class _CutParameters(DeepSpeedEngine):
    """Stage 3: weights are sharded too, and gathered when a layer needs them."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        found = self._model.state_dict(keep_vars=True)
        owner = assign_owners(
            {name: _size(value) for name, value in found.items()}, self._world.size
        )
        for name, value in found.items():
            with self._deepspeed.zero.GatheredParameters(
                [value] if isinstance(value, nn.Parameter) else []
            ):
                if owner[name] == self._world.rank:
                    yield name, value.detach()

    def _written(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._deepspeed.zero.GatheredParameters(
            parameters, modifier_rank=0
        )
        return found

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], list[_Fragment]]]:
        """See `DeepSpeedEngine._groups`.

        Each rank has an equal part of every parameter, concatenated, and padded if the size is not
        divisible by the ranks.
        """
        optimizer = self._engine.optimizer
        for flat, parameters in zip(
            optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True
        ):
            fragments, at = [], 0
            for number, parameter in enumerate(parameters):
                size = parameter.partition_numel()
                start = size * self._world.rank
                length = min(size, _size(parameter) - start)
                if length > 0:
                    fragments.append(
                        _Fragment(flat, parameter, number, _shape(parameter), at, start, length)
                    )
                at += size
            yield flat, list(parameters), fragments


@dataclass(frozen=True, slots=True)
class _Fragment:
    """Consecutive values of a parameter in a rank's flat partition.

    Attributes:
        number: index of the parameter in its group, from 0.
        shape: shape of the whole parameter.
        at: index of the first value in the partition.
        start: index of the first value in the flattened parameter.
        length: number of values.
    """

    flat: Tensor
    parameter: nn.Parameter
    number: int
    shape: tuple[int, ...]
    at: int
    start: int
    length: int


def _shape(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of the unsharded parameter."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _size(parameter: Tensor) -> int:
    """Return the number of values of the unsharded parameter."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
