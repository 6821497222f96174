"""DeepSpeed, behind a small interface. The only file that imports it.

What the rest of the trainer relies on: gradients are *sums* over ranks and micro-batches of losses that are already divided
by global counts; a step whose gradient is not finite changes nothing; weights and optimizer state can be read and
written whole, parameter by parameter, at any ZeRO stage and on any number of ranks.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from model.train.config import PretrainConfig
from model.train.distributed import World
from model.train.optimizers import OPTIMIZERS, clip, parameter_groups
from model.train.scoring import Scoring
from pipeline.core.errors import UsageError


def _import_deepspeed() -> Any:
    """DeepSpeed, without what it would bring along.

    Its autotuner imports MLflow where it is installed: a second or two a rank, of a package that training must not know.
    """
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
    return deepspeed


deepspeed = _import_deepspeed()


@dataclass(frozen=True, slots=True)
class Update:
    """How a step ended: whether the weights changed, and the gradient's norm before clipping (nan if not finite)."""

    applied: bool
    norm: float


def ds_config(config: PretrainConfig, zero: int, micro_batch: int, accumulation: int) -> dict[str, Any]:
    """DeepSpeed's whole config, generated from ours.

    Precision is not in it: the forward pass runs under torch.autocast inside the module, so DeepSpeed sees fp32 parameters
    and reduces and accumulates fp32 gradients at every stage. At stage 0 it does not clip, as it would keep the norm to itself.
    """
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": config.clip if zero else 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": zero, "overlap_comm": False, "round_robin_gradients": False},
        "data_types": {"grad_accum_dtype": "fp32"},
        "wall_clock_breakdown": False,
        "steps_per_print": None,
    }


class Engine:
    """A module and its optimizer, trained by DeepSpeed.

    Args:
        module: model and objectives, with the weights to start from.
        zero: the ZeRO stage.
        micro_batch: sequences a rank takes at once.
        accumulation: micro-batches a step, the same on every rank.

    Raises:
        UsageError: the stage cuts parameters that the optimizer needs whole.
    """

    def __init__(
        self, module: Scoring, config: PretrainConfig, world: World, *, zero: int, micro_batch: int, accumulation: int
    ) -> None:
        self.recipe = OPTIMIZERS[config.optimizer]
        if zero and not self.recipe.elementwise:
            raise UsageError(f"optimizer ({config.optimizer}) needs whole parameters, ZeRO stage {zero} cuts them; use zero 0")
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        self.zero, self.clip, self.world, self.accumulation = zero, config.clip, world, accumulation
        self.updates = 0  # optimizer steps that were applied, over all resumes
        self.module = module.to(world.device)
        self.optimizer = self.recipe.build(parameter_groups(module, config.weight_decay), config)
        self._engine, *_ = deepspeed.initialize(
            model=self.module,
            optimizer=self.optimizer,
            config=ds_config(config, zero, micro_batch, accumulation),
            dist_init_required=False,
        )
        if zero == 0 and world.size == 1:
            self._engine.enable_backward_allreduce = False  # it would copy every gradient to reduce it with nobody

    def backward(self, batch: Mapping[str, Tensor], counts: Tensor, *, last: bool) -> Tensor:
        """Run a micro-batch forward and backward, adding to the step's gradient.

        Args:
            batch: on the engine's device.
            counts: see `Scoring`; the whole step's.
            last: whether it is the step's last micro-batch, at which ranks exchange gradients.

        Returns:
            The module's figures.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        loss, figures, _ = self._engine(batch, counts)
        # DeepSpeed averages over ranks at every stage (stage 3 leaves no choice); ours is a sum.
        self._engine.backward(loss * self.world.size, scale_wrt_gas=False)
        detached: Tensor = figures.detach()
        return detached

    def step(self, learning_rate: float) -> Update:
        """Update the weights by the gathered gradient, unless it is not finite. The same answer on every rank."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.zero == 0:
            norm = clip(self.module, self.clip)
            if not math.isfinite(norm):
                self._engine.zero_grad()
                return Update(applied=False, norm=math.nan)
            self._engine.step()
        else:
            self._engine.step()  # finds norms that are not finite itself, and skips
            if self._engine.optimizer.overflow:
                return Update(applied=False, norm=math.nan)
            norm = float(self._engine.get_global_grad_norm())
        self.updates += 1
        return Update(applied=True, norm=norm)

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters by the model's own names, each once."""
        for name, parameter in self.module.model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    def weights(self) -> dict[str, Tensor]:
        """All parameters and buffers, whole, in fp32 on the CPU. Every rank must call it; only the first gets them."""
        found = {}
        if self.zero < 3:
            whole = self.module.model.state_dict() if self.world.first else {}
            return {name: value.to("cpu", copy=True) for name, value in whole.items()}
        for name, value in self.module.model.state_dict(keep_vars=True).items():
            with deepspeed.zero.GatheredParameters([value] if isinstance(value, nn.Parameter) else []):
                if self.world.first:
                    found[name] = value.detach().to("cpu", copy=True)
        return found

    def optimizer_state(self) -> dict[str, Tensor]:
        """`<parameter>/<state>` -> tensor of the parameter's shape, on the CPU; empty before the first update.

        Every rank must call it; only the first gets them.
        """
        found: dict[str, Tensor] = {}
        if self.updates == 0:
            return found
        self._link()
        for name, parameter in self._named():
            for key in self.recipe.state:
                whole = (
                    deepspeed.utils.safe_get_full_optimizer_state(parameter, key)
                    if self.zero
                    else self.optimizer.state[parameter][key]
                )
                if self.world.first:
                    found[f"{name}/{key}"] = whole.detach().to("cpu", copy=True)
        return found

    def load_optimizer_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Put back what `optimizer_state` gave, on any number of ranks and at any stage.

        Args:
            state: whole tensors, the same on every rank.
            updates: optimizer steps that were applied so far.
        """
        self.updates = updates
        if updates == 0:
            return
        for flat in self._updated():
            self.optimizer.state[flat] = {
                "step": torch.tensor(float(updates), device=flat.device),
                **{key: torch.zeros_like(flat) for key in self.recipe.state},
            }
        self._link()
        for name, parameter in self._named():
            for key in self.recipe.state:
                value = state[f"{name}/{key}"].to(self.world.device)
                if self.zero == 0:
                    self.optimizer.state[parameter][key].copy_(value)
                elif self.zero == 3:
                    deepspeed.utils.safe_set_local_optimizer_state(parameter, self._partition(parameter, value), key)
                else:
                    deepspeed.utils.safe_set_full_optimizer_state(parameter, value, key)

    def _link(self) -> None:
        """At stages 1 and 2: tell parameters where their optimizer state is.

        DeepSpeed does so once, after the first update of the *first* parameter group, when the other groups' state is not
        there yet, and then never again (0.19.8, stage_1_and_2.py, `_optimizer_step`).
        """
        if self.zero in (1, 2):
            self._engine.optimizer._hp_optimizer_states_linked = False
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _updated(self) -> list[Tensor]:
        """The tensors that the optimizer holds state for: at stages 1 to 3 this rank's flat partitions."""
        if self.zero == 0:
            return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        inner = self._engine.optimizer
        return list(inner.fp32_partitioned_groups_flat if self.zero == 3 else inner.single_partition_of_fp32_groups)

    def _partition(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """This rank's part of a parameter at stage 3: equal parts, the last one filled up with zeros."""
        size = int(parameter.ds_tensor.ds_numel)  # type: ignore[attr-defined]
        flat = value.new_zeros(size * self.world.size)
        flat[: value.numel()] = value.flatten()
        return flat.narrow(0, size * self.world.rank, size)
