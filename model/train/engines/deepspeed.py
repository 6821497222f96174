"""The engine of DeepSpeed's ZeRO stages 1 to 3. The only file that imports it.

See `model.train.engines.protocol` for what the methods promise.
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

from model.tensors import Slice, Tensors, copy_own, refuse
from model.train.distributed import World
from model.train.engines import EngineChoice
from model.train.engines.average import Average
from model.train.engines.loss_scale import LossScale
from model.train.engines.protocol import Held
from model.train.engines.shares import owners
from model.train.interfaces import Recipe, Trained
from model.train.memory import BUCKET_NUMBERS
from model.train.optimizers import optimizer_kind
from model.train.optimizers.tensorwise import Cut, Piece
from model.train.parameters import parameter_groups, set_learning_rate, trained_parameters

CPU_BUCKET_NUMBERS = 1 << 20


def _import_deepspeed(device: str) -> Any:
    """DeepSpeed, without what it would bring along.

    Its autotuner imports MLflow where it is installed: a second or two a rank, of a package that training must not know. And each of its
    optimizers asks whether it is given DeepSpeed's own Muon, whose module has three functions decorated by torch.compile: seconds, to import
    torch's compiler. Nothing here calls them; undecorated they give the same.
    """
    os.environ["DS_ACCELERATOR"] = device  # it would take a GPU that we were asked to leave alone
    os.environ.setdefault("LOCAL_RANK", "0")  # and refuses to start without this
    hide = "mlflow" not in sys.modules
    if hide:
        sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed
        import deepspeed.utils  # the package `deepspeed.ops` comes with it
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
    # Asked which of its kernels can be built here, it would try them all, and then compile one for communication in shared
    # memory (30 s, and a compiler needed) that only its inference uses. Say none.
    deepspeed.ops.__compatible_ops__ = {}
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def _gather(
    groups_flat: Sequence[Tensor],
    partitioned_param_groups: Sequence[Sequence[Tensor]],
    dp_process_group: Sequence[Any],
    **_: Any,
) -> None:
    """Give all ranks all parts of the weights, where they lie. Gloo's own gathering receives them elsewhere and copies all of them."""
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
    trained: Trained, recipe: Recipe, world: World, choice: EngineChoice, *, micro_batch: int, accumulation: int
) -> DeepSpeedEngine:
    """The engine for the chosen ZeRO stage; the optimizer is none that needs whole matrices (`engines.choose`)."""
    settings = ds_config(recipe, choice, micro_batch, accumulation, world.device.type)
    return (_WholeParameters if choice.zero < 3 else _CutParameters)(trained, recipe, world, settings)


def ds_config(recipe: Recipe, choice: EngineChoice, micro_batch: int, accumulation: int, device: str) -> dict[str, Any]:
    """DeepSpeed's whole config, generated from ours.

    Precision is not in it: the forward pass runs under torch.autocast inside the module, so DeepSpeed sees fp32 parameters
    and accumulates fp32 gradients at every stage. In which type these travel is said in it.
    """
    # Whatever is larger than a bucket is added up where it lies; a CPU's caches like small ones, a GPU's network large ones.
    bucket = CPU_BUCKET_NUMBERS if device == "cpu" and choice.zero < 3 else BUCKET_NUMBERS
    offloaded = {"offload_optimizer": {"device": "cpu", "pin_memory": device == "cuda"}} if choice.offload else {}
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": recipe.clip,
        "gradient_allreduce_op": "mean" if choice.zero == 3 else "sum",  # stage 3 knows the mean alone
        "communication_data_type": recipe.reduce,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # ours step on the CPU, too
        "zero_optimization": {
            "stage": choice.zero,
            "overlap_comm": device == "cuda",
            "round_robin_gradients": False,
            "reduce_scatter": choice.zero == 3,  # before that it is a sum on all ranks all the same, and two more copies
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": BUCKET_NUMBERS,
            **offloaded,
        },
        "data_types": {"grad_accum_dtype": "fp32"},
        "timers": {"throughput": {"enabled": False}},  # it would wait for the device at every step
        "wall_clock_breakdown": False,
        "steps_per_print": None,
    }


class DeepSpeedEngine:
    """What ZeRO stages 1 to 3 have in common."""

    cuts = True

    def __init__(self, trained: Trained, recipe: Recipe, world: World, settings: Mapping[str, Any]) -> None:
        self._kind = optimizer_kind(recipe.optimizer)
        # DeepSpeed's stage 3 averages gradients over ranks; ours are sums.
        self._times = 1 if settings["gradient_allreduce_op"] == "sum" else world.size
        self._deepspeed = _import_deepspeed(world.device.type)
        self._world = world
        self.scale = LossScale(world.device) if recipe.precision == "fp16" else None
        self._updates = 0  # that were applied, over all resumes
        self._trained = trained.to(world.device)
        self._model = trained.model
        self.optimizer = self._kind.build(parameter_groups(self._model, recipe), recipe)
        self._engine, *_ = self._deepspeed.initialize(
            model=self._trained, optimizer=self.optimizer, config=dict(settings), dist_init_required=False
        )
        if self._kind.sees == "tensors":
            self.optimizer.cuts = dict(self._cuts())  # type: ignore[attr-defined]
            self.optimizer.exchange = world.device  # type: ignore[attr-defined]
        self._average = Average(list(self._partitions())) if recipe.ema is not None else None
        self._applied = False  # whether the last step changed the weights

    def backward(self, batch: Mapping[str, Any], counts: Tensor, *, last: bool) -> Tensor:
        timeline = self._world.timeline
        self._engine.set_gradient_accumulation_boundary(last)
        with timeline.part("forward", on_device=True):
            loss, figures = self._engine(batch, counts)
        if self.scale is not None:  # DeepSpeed's own goes by a type of weights that ours do not have
            self._engine.optimizer.override_loss_scale(float(self.scale.value))
        with timeline.part("backward", on_device=True):
            self._engine.backward(loss * self._times, scale_wrt_gas=False)
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float) -> Tensor:
        set_learning_rate(self._engine.optimizer, learning_rate)
        with self._world.timeline.part("optimizer", on_device=True):
            self._engine.step()  # finds norms that are not finite itself, and skips
        self._applied = not self._engine.optimizer.overflow
        norm = torch.tensor(float(self._engine.get_global_grad_norm()) if self._applied else math.nan)
        self._updates += self._applied
        if self.scale is not None:
            self.scale.update(norm)
        return norm

    def held(self) -> Iterator[Held]:
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for fragment in self._fragments():
            yield Held(fragment.flat, names[fragment.parameter], fragment.at, fragment.length)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        errors: list[str] = []
        with torch.no_grad():
            for prefix, module in self._model.named_modules():
                with self._written(list(module.parameters(recurse=False))):
                    copy_own(module, f"{prefix}." if prefix else "", weights, errors)
            refuse(errors)
            self._engine.optimizer.refresh_fp32_params()
        if self._average is not None:
            self._average.begin()

    def average(self, decay: float) -> None:
        assert self._average is not None
        if self._applied:
            self._average.move(decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        assert self._average is not None
        flats = list(self._partitions())
        self._lay(dict(zip(flats, self._average.values, strict=True)))
        try:
            yield
        finally:
            self._lay({flat: flat for flat in flats})

    @torch.no_grad()
    def _lay(self, values: Mapping[Tensor, Tensor]) -> None:
        """Make the model's weights of what all ranks have in these flat partitions, and leave the partitions alone."""
        for flat, parameters, fragments in self._groups():
            own: dict[nn.Parameter, list[_Fragment]] = {}
            for fragment in fragments:
                own.setdefault(fragment.parameter, []).append(fragment)
            for parameter in parameters:
                whole = torch.zeros(_size(parameter), device=self._world.device)  # an offloaded partition is elsewhere
                for one in own.get(parameter, ()):
                    whole[one.start : one.start + one.length] = values[flat].detach()[one.at : one.at + one.length]
                if self._world.size > 1:
                    distributed.all_reduce(whole)
                with self._written([parameter]):
                    parameter.copy_(whole.view(parameter.shape))

    def load_average(self, weights: Tensors) -> None:
        assert self._average is not None
        values = dict(zip(self._partitions(), self._average.values, strict=True))
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for one in self._fragments():
            found = weights.slice(names[one.parameter], one.start, one.start + one.length)
            with torch.no_grad():
                values[one.flat][one.at : one.at + one.length] = found.to(one.flat.device)

    def optimizer_state(self) -> Iterator[Slice]:
        if self._updates == 0:
            return
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for fragment in self._fragments():
            for key in self._kind.state:
                values = self.optimizer.state[fragment.flat][key][fragment.at : fragment.at + fragment.length]
                yield Slice(f"{names[fragment.parameter]}/{key}", fragment.shape, fragment.start, values)

    def load_optimizer_state(self, state: Tensors, updates: int) -> None:
        if updates == self._updates == 0:
            return
        self._updates = updates
        self.optimizer.state.clear()
        if updates == 0:
            return
        for flat in self._partitions():
            self.optimizer.state[flat] = {
                "step": torch.tensor(float(updates), device=flat.device),
                **{key: torch.zeros_like(flat) for key in self._kind.state},
            }
        names = {parameter: name for name, parameter in trained_parameters(self._model)}
        for fragment in self._fragments():
            for key in self._kind.state:
                found = state.slice(f"{names[fragment.parameter]}/{key}", fragment.start, fragment.start + fragment.length)
                self.optimizer.state[fragment.flat][key][fragment.at : fragment.at + fragment.length] = found.to(
                    fragment.flat.device
                )

    def _written(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        """In the block the parameters are whole, and the first rank's changes are all ranks' after it."""
        raise NotImplementedError

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], list[_Fragment]]]:
        """This rank's flat partitions, which the optimizer holds state for; a group's parameters; and what the partition holds of these."""
        raise NotImplementedError

    def _partitions(self) -> Iterator[Tensor]:
        return (flat for flat, _, _ in self._groups())

    def _fragments(self) -> Iterator[_Fragment]:
        return (fragment for _, _, fragments in self._groups() for fragment in fragments)

    def _cuts(self) -> Iterator[tuple[Tensor, Cut]]:
        """The partitions, with what each holds of which parameters."""
        for flat, parameters, fragments in self._groups():
            sizes = tuple(_size(parameter) for parameter in parameters)
            yield flat, Cut(sizes, tuple(Piece(one.number, one.at, one.length) for one in fragments))


class _WholeParameters(DeepSpeedEngine):
    """Stages 1 and 2: every rank has all weights, and a part of the optimizer's state."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        found = self._model.state_dict()
        owner = owners({name: tensor.numel() for name, tensor in found.items()}, self._world.size)
        return ((name, tensor) for name, tensor in found.items() if owner[name] == self._world.rank)

    def _written(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        del parameters
        return nullcontext()

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], list[_Fragment]]]:
        """A group's parameters lie one behind the other, and each rank has an equal share of that (`tensor_fragment.py`)."""
        optimizer = self._engine.optimizer
        for flat, parameters in zip(optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, strict=True):
            fragments = []
            for number, parameter in enumerate(parameters):
                if parameter._hp_mapping is not None:
                    there, whole = parameter._hp_mapping.hp_fragment_address, parameter._hp_mapping.lp_fragment_address
                    shape = tuple(parameter.shape)
                    fragments.append(_Fragment(flat, parameter, number, shape, there.start, whole.start, there.numel))
            yield flat, list(parameters), fragments


class _CutParameters(DeepSpeedEngine):
    """Stage 3: weights are shared out, too, and gathered where they are needed."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        found = self._model.state_dict(keep_vars=True)
        owner = owners({name: _size(value) for name, value in found.items()}, self._world.size)
        for name, value in found.items():
            with self._deepspeed.zero.GatheredParameters([value] if isinstance(value, nn.Parameter) else []):
                if owner[name] == self._world.rank:
                    yield name, value.detach()

    def _written(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._deepspeed.zero.GatheredParameters(parameters, modifier_rank=0)
        return found

    def _groups(self) -> Iterator[tuple[Tensor, list[nn.Parameter], list[_Fragment]]]:
        """Each rank has an equal part of each parameter, one behind the other, padded where the ranks do not divide it."""
        optimizer = self._engine.optimizer
        for flat, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
            fragments, at = [], 0
            for number, parameter in enumerate(parameters):
                size = parameter.partition_numel()
                start = size * self._world.rank
                length = min(size, _size(parameter) - start)
                if length > 0:
                    fragments.append(_Fragment(flat, parameter, number, tuple(parameter.ds_shape), at, start, length))
                at += size
            yield flat, list(parameters), fragments


@dataclass(frozen=True, slots=True)
class _Fragment:
    """Numbers of a parameter in a rank's flat partition.

    Attributes:
        number: the parameter's in its group, from 0.
        shape: of the whole parameter.
        at: where they begin in the partition.
        start: where they begin in the flattened parameter.
        length: how many.
    """

    flat: Tensor
    parameter: nn.Parameter
    number: int
    shape: tuple[int, ...]
    at: int
    start: int
    length: int


def _size(parameter: Tensor) -> int:
    """How many numbers the whole of it has."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
