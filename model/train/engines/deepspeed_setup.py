"""DeepSpeed's import and config. Only this file imports DeepSpeed."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor, distributed

from cloze.model.train.spec.engine_choice import BUCKET_NUMBERS, EngineConfig
from cloze.model.train.spec.train_spec import TrainingHyperparameters

CPU_BUCKET_NUMBERS = 1 << 20


def import_deepspeed(device: str) -> Any:
    """Import DeepSpeed without its slow optional imports.

    Its autotuner imports MLflow if installed (1 to 2 s per rank), which training must not import.
    Each of its optimizers checks for DeepSpeed's Muon, whose module has three functions decorated
    with torch.compile: importing torch's compiler takes seconds. Nothing here calls these
    functions, and undecorated they compute the same.
    """
    os.environ["DS_ACCELERATOR"] = device  # else it may take a GPU despite a request for the CPU
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed does not start without it
    hide_mlflow = "mlflow" not in sys.modules
    if hide_mlflow:
        sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed
        import deepspeed.utils  # imports the package `deepspeed.ops`
    finally:
        if hide_mlflow:
            del sys.modules["mlflow"]
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    decorator, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = decorator
    if device == "cpu":
        zero_module: Any = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
        zero_module.all_gather_dp_groups = _broadcast_parts
    # DeepSpeed would probe all its kernels and then compile a shared-memory communication kernel
    # (30 s, needs a compiler) that only its inference uses. An empty table prevents both.
    deepspeed.ops.__compatible_ops__ = {}
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def _broadcast_parts(
    groups_flat: Sequence[Tensor],
    partitioned_param_groups: Sequence[Sequence[Tensor]],
    dp_process_group: Sequence[Any],
    **_: Any,
) -> None:
    """Broadcast all parts of the weights in place; gloo's all_gather makes another copy."""
    del groups_flat
    broadcasts = [
        distributed.broadcast(partition, group_src=rank, group=group, async_op=True)
        for partitions, group in zip(partitioned_param_groups, dp_process_group, strict=True)
        for rank, partition in enumerate(partitions)
    ]
    for broadcast in broadcasts:
        if broadcast is not None:
            broadcast.wait()


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
    `communication_data_type` sets the dtype in which gradients are sent.
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
