"""The engine of DeepSpeed's ZeRO stages 1 to 3. The only file that imports it.

See `model.train.engines.protocol` for what the methods promise.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.train.distributed import World
from model.train.interfaces import Recipe, Trained
from model.train.optimizers import optimizer_kind
from model.train.optimizers.tensorwise import Cut, Piece
from model.train.parameters import optimizer_states, parameter_groups, set_learning_rate


def _import_deepspeed(device: str) -> Any:
    """DeepSpeed, without what it would bring along.

    Its autotuner imports MLflow where it is installed: a second or two a rank, of a package that training must not know.
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
    # Asked which of its kernels can be built here, it would try them all, and then compile one for communication in shared
    # memory (30 s, and a compiler needed) that only its inference uses. Say none.
    deepspeed.ops.__compatible_ops__ = {}
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def engine(
    trained: Trained, recipe: Recipe, world: World, *, zero: int, micro_batch: int, accumulation: int
) -> DeepSpeedEngine:
    """The engine for ZeRO stage `zero`; the optimizer is none that needs whole matrices (`engines.choose`)."""
    settings = ds_config(recipe, zero, micro_batch, accumulation, world.device.type)
    return (_WholeParameters if zero < 3 else _CutParameters)(trained, recipe, world, settings)


def ds_config(recipe: Recipe, zero: int, micro_batch: int, accumulation: int, device: str) -> dict[str, Any]:
    """DeepSpeed's whole config, generated from ours.

    Precision is not in it: the forward pass runs under torch.autocast inside the module, so DeepSpeed sees fp32 parameters
    and reduces and accumulates fp32 gradients at every stage.
    """
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": recipe.clip,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": zero, "overlap_comm": device == "cuda", "round_robin_gradients": False},
        "data_types": {"grad_accum_dtype": "fp32"},
        "timers": {"throughput": {"enabled": False}},  # it would wait for the device at every step
        "wall_clock_breakdown": False,
        "steps_per_print": None,
    }


class DeepSpeedEngine:
    """What ZeRO stages 1 to 3 have in common."""

    def __init__(self, trained: Trained, recipe: Recipe, world: World, settings: Mapping[str, Any]) -> None:
        self._kind = optimizer_kind(recipe.optimizer)
        self._deepspeed = _import_deepspeed(world.device.type)
        self._world = world
        self._updates = 0  # that were applied, over all resumes
        self._trained = trained.to(world.device)
        self._model = trained.model
        self._optimizer = self._kind.build(parameter_groups(self._model, recipe), recipe)
        self._engine, *_ = self._deepspeed.initialize(
            model=self._trained, optimizer=self._optimizer, config=dict(settings), dist_init_required=False
        )
        if self._kind.sees == "tensors":
            self._optimizer.cuts = dict(self._cuts())  # type: ignore[attr-defined]

    def backward(self, batch: Mapping[str, Any], counts: Tensor, *, last: bool) -> Tensor:
        self._engine.set_gradient_accumulation_boundary(last)
        loss, figures = self._engine(batch, counts)
        # DeepSpeed averages over ranks (stage 3 leaves no choice); ours is a sum.
        self._engine.backward(loss * self._world.size, scale_wrt_gas=False)
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float) -> Tensor:
        set_learning_rate(self._engine.optimizer, learning_rate)
        self._engine.step()  # finds norms that are not finite itself, and skips
        if self._engine.optimizer.overflow:
            return torch.tensor(math.nan)
        self._updates += 1
        return torch.tensor(float(self._engine.get_global_grad_norm()))

    def weights(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        raise NotImplementedError

    def optimizer_state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self._updates == 0:
            return found
        self._link()
        for name, parameter, key in optimizer_states(self._model, self._kind):
            whole = self._deepspeed.utils.safe_get_full_optimizer_state(parameter, key)
            if self._world.first:
                found[f"{name}/{key}"] = whole.detach().to("cpu", copy=True)
        return found

    def load_optimizer_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        self._updates = updates
        if updates == 0:
            return
        for flat in self._partitions():
            self._optimizer.state[flat] = {
                "step": torch.tensor(float(updates), device=flat.device),
                **{key: torch.zeros_like(flat) for key in self._kind.state},
            }
        self._link()
        for name, parameter, key in optimizer_states(self._model, self._kind):
            self._put(parameter, key, state[f"{name}/{key}"].to(self._world.device))

    def _link(self) -> None:
        """Tell parameters where their optimizer state is."""

    def _partitions(self) -> Iterator[Tensor]:
        """This rank's flat partitions, which the optimizer holds state for."""
        raise NotImplementedError

    def _put(self, parameter: nn.Parameter, key: str, value: Tensor) -> None:
        """Set a state of the whole parameter."""
        raise NotImplementedError

    def _cuts(self) -> Iterator[tuple[Tensor, Cut]]:
        """The partitions, with what each holds of which parameters."""
        raise NotImplementedError


class _WholeParameters(DeepSpeedEngine):
    """Stages 1 and 2: every rank has all weights, and a part of the optimizer's state."""

    def weights(self) -> dict[str, Tensor]:
        whole = self._model.state_dict() if self._world.first else {}
        return {name: value.to("cpu", copy=True) for name, value in whole.items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._model.load_state_dict(weights)
        self._engine.optimizer.refresh_fp32_params()

    def _link(self) -> None:
        """DeepSpeed does so once, after the first update of the *first* parameter group, when the other groups' state is not
        there yet, and then never again (0.19.8, stage_1_and_2.py, `_optimizer_step`).
        """
        self._engine.optimizer._hp_optimizer_states_linked = False
        self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _partitions(self) -> Iterator[Tensor]:
        yield from self._engine.optimizer.single_partition_of_fp32_groups

    def _put(self, parameter: nn.Parameter, key: str, value: Tensor) -> None:
        self._deepspeed.utils.safe_set_full_optimizer_state(parameter, value, key)

    def _cuts(self) -> Iterator[tuple[Tensor, Cut]]:
        """A group's parameters lie one behind the other, and each rank has an equal share of that (`tensor_fragment.py`)."""
        for flat, parameters in zip(self._partitions(), self._engine.optimizer.bit16_groups, strict=True):
            here = [(number, one._hp_mapping) for number, one in enumerate(parameters) if one._hp_mapping is not None]
            places = [(number, found.hp_fragment_address) for number, found in here]
            pieces = tuple(Piece(number, place.start, place.numel) for number, place in places)
            yield flat, Cut(tuple(parameter.numel() for parameter in parameters), pieces)


class _CutParameters(DeepSpeedEngine):
    """Stage 3: weights are shared out, too, and gathered where they are needed."""

    def weights(self) -> dict[str, Tensor]:
        found = {}
        for name, value in self._model.state_dict(keep_vars=True).items():
            with self._deepspeed.zero.GatheredParameters([value] if isinstance(value, nn.Parameter) else []):
                if self._world.first:
                    found[name] = value.detach().to("cpu", copy=True)
        return found

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in self._model.state_dict(keep_vars=True).items():
            if not isinstance(value, nn.Parameter):
                value.copy_(weights[name])
                continue
            with torch.no_grad(), self._deepspeed.zero.GatheredParameters([value], modifier_rank=0):
                if self._world.first:
                    value.copy_(weights[name])
        self._engine.optimizer.refresh_fp32_params()

    def _partitions(self) -> Iterator[Tensor]:
        yield from self._engine.optimizer.fp32_partitioned_groups_flat

    def _put(self, parameter: nn.Parameter, key: str, value: Tensor) -> None:
        """Equal parts a rank, the last one filled up with zeros."""
        size = int(parameter.ds_tensor.ds_numel)  # type: ignore[attr-defined]
        flat = value.new_zeros(size * self._world.size)
        flat[: value.numel()] = value.flatten()
        part = flat.narrow(0, size * self._world.rank, size)
        self._deepspeed.utils.safe_set_local_optimizer_state(parameter, part, key)

    def _cuts(self) -> Iterator[tuple[Tensor, Cut]]:
        """Each rank has an equal part of each parameter, one behind the other, padded where the ranks do not divide it."""
        for flat, parameters in zip(self._partitions(), self._engine.optimizer.fp16_groups, strict=True):
            pieces, start = [], 0
            for number, parameter in enumerate(parameters):
                size = parameter.partition_numel()
                length = min(size, parameter.ds_numel - size * self._world.rank)
                if length > 0:
                    pieces.append(Piece(number, start, length))
                start += size
            yield flat, Cut(tuple(int(parameter.ds_numel) for parameter in parameters), tuple(pieces))
