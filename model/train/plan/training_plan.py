"""Plans of a pretraining: memory and hours on GPUs of a kind, or on this machine's CPU. No torch.

  cloze plan-training roberta-large --gpus 64 --gpu-type h100 --tokens 300e9

Hours are operations / (MFU x peak), without networks, saves and interruptions. The command imports
`plan_training` by name and prints its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from cloze.core.errors import UsageError
from cloze.core.humanize import format_bytes
from cloze.model import hardware
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.hardware import Device
from cloze.model.train.plan import flops
from cloze.model.train.plan.cost import FULL
from cloze.model.train.plan.memory import (
    CPU_TOKENS,
    MARGIN,
    ComputeOptions,
    MemoryEstimate,
    training_memory,
)

LONGEST = 512  # default row length, if the model supports as many
RECOMPUTED = 4.0 / 3.0  # factor on the operations with activation checkpointing
PER_NODE = 8  # maximum number of GPUs per machine
SATURATED = 4096  # tokens on a GPU at once: fewer leave its matrix units idle while kernels launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pretraining to plan.

    Attributes:
        device: device of each of the `ranks` processes.
        batch: sequences per step.
        speed: operations per second of a rank.
    """

    name: str
    model: ModelConfig
    device: Device
    ranks: int
    length: int
    batch: int
    tokens: float
    speed: float

    @property
    def rows(self) -> int:
        """Maximum number of sequences of a rank per step."""
        return -(-self.batch // self.ranks)

    @property
    def mean(self) -> float:
        """Real tokens per row."""
        return FULL * self.length

    def memory(self, rows: int, zero: int, checkpointing: bool) -> MemoryEstimate:
        """Estimate a rank's memory with micro-batches of `rows` rows."""
        options = ComputeOptions(
            device=self.device.kind, bf16=self.device.computes_bf16, checkpointing=checkpointing
        )
        return training_memory(
            self.model, self.length, rows, ranks=self.ranks, zero=zero, how=options
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to run it: sharding, activation checkpointing, and the largest micro-batch."""

    zero: int
    checkpointing: bool
    micro_batch: int
    accumulation: int
    memory: MemoryEstimate
    hours: float


def plan_training(
    cores: int,
    *,
    model: str,
    tokens: float,
    gpus: int | None = None,
    gpu_type: str | None = None,
    length: int | None = None,
    global_batch: int | None = None,
    vocab_size: int | None = None,
    mfu: float | None = None,
) -> dict[str, Any]:
    """Plan the pretraining of a preset; the result contains plain values.

    Args:
        cores: CPU cores of this machine, which is planned for without `gpus` and `gpu_type`.
        tokens: number of real tokens to train on.
        length, global_batch, vocab_size: None: the model's defaults.
        mfu: share of the peak that is reached; None: `hardware.MFU`.

    Raises:
        UsageError: model or GPU is unknown, a number is out of range, or the model does not fit.
    """
    options = {
        "gpus": gpus,
        "length": length,
        "global_batch": global_batch,
        "vocab_size": vocab_size,
    }
    _check({**options, "tokens": tokens, "mfu": mfu})
    device, ranks = _device(cores, gpus, gpu_type)
    preset = model_config(model)
    resolved_vocab_size = vocab_size or preset.vocab_size or preset.default_vocab_size
    max_length = preset.max_position_embeddings
    setting = Setting(
        name=model,
        model=preset.model_copy(update={"vocab_size": resolved_vocab_size}),
        device=device,
        ranks=ranks,
        length=length or min(LONGEST, max_length),
        batch=global_batch or preset.default_batch_size,
        tokens=tokens,
        speed=device.speed(mfu),
    )
    if setting.length > max_length:
        raise UsageError(
            f"length ({length}) is more than {model} reads ({max_length}); use that or less"
        )
    if ranks > setting.batch:
        raise UsageError(
            f"gpus ({ranks}) is more than the sequences of a step (global_batch {setting.batch});"
            f" use --global-batch {ranks} or more, or fewer GPUs"
        )
    ways = list(_ways(setting))
    if not ways:
        raise UsageError(_too_large(setting))
    best = choose(setting, ways)
    parameters = flops.approximate_parameters(setting.model)
    on_gpus = device.kind == "cuda"
    required_flops = setting.tokens * flops.flops_per_token(setting.model, setting.mean)
    return {
        "model": model,
        "parameters": parameters,
        "vocab_size": resolved_vocab_size,
        "length": setting.length,
        "tokens": tokens,
        "global_batch": setting.batch,
        "steps": max(1, math.ceil(tokens / (setting.batch * setting.mean))),
        "hardware": {
            "name": device.name,
            "kind": device.kind,
            "gpus": ranks if on_gpus else 0,
            "memory": device.memory,
            "peak": device.peak,
            "source": device.source,
        },
        "ways": [_values(way, ranks if on_gpus else 0) for way in ways],
        "chosen": {
            **_values(best, ranks if on_gpus else 0),
            "mfu": required_flops / (3600 * best.hours * ranks * device.peak),
            "command": command(setting, best),
        },
        "checkpoint_bytes": flops.checkpoint_bytes(parameters),
        "assumptions": _assumptions(setting, mfu),
        "warnings": _warnings(setting),
    }


def _check(given: dict[str, float | None]) -> None:
    for name, value in given.items():
        if value is not None and (not math.isfinite(value) or value <= 0):
            raise UsageError(f"{name} ({value:g}) must be more than 0")
    if given["mfu"] is not None and given["mfu"] > 1:
        raise UsageError(
            f"mfu ({given['mfu']:g}) must be at most 1: it is a share of the GPU's peak"
        )


def _device(cores: int, gpus: int | None, gpu_type: str | None) -> tuple[Device, int]:
    """Return the device and the number of devices."""
    if gpu_type is not None:
        return hardware.gpu(gpu_type), gpus or 1
    if gpus is not None:
        names = ", ".join(hardware.GPUS)
        raise UsageError(f"gpus ({gpus}) lacks the kind; add --gpu-type NAME, one of {names}")
    return hardware.this_cpu(cores), 1


def _ways(setting: Setting) -> list[Way]:
    """Return all ways that fit, the least sharded and recomputed first."""
    available = setting.device.memory * MARGIN
    max_rows = setting.rows
    if setting.device.kind == "cpu":
        max_rows = min(max_rows, max(1, CPU_TOKENS // setting.length))
    token_flops = flops.step_flops(setting.model, setting.mean, setting.device.kind)
    hours = token_flops * setting.tokens / (setting.speed * setting.ranks * 3600)
    ways = []
    for checkpointing in (False, True):
        for zero in range(4 if setting.ranks > 1 else 1):  # one process has nothing to shard
            low, high = 0, max_rows
            while low < high:  # memory grows with the rows
                middle = (low + high + 1) // 2
                fits = setting.memory(middle, zero, checkpointing).total <= available
                low, high = (middle, high) if fits else (low, middle - 1)
            if not low:
                continue
            accumulation = -(-setting.rows // low)
            rows = -(-setting.rows // accumulation)
            ways.append(
                Way(
                    zero=zero,
                    checkpointing=checkpointing,
                    micro_batch=rows,
                    accumulation=accumulation,
                    memory=setting.memory(rows, zero, checkpointing),
                    hours=hours * (RECOMPUTED if checkpointing else 1.0),
                )
            )
    return ways


def choose(setting: Setting, ways: list[Way]) -> Way:
    """Choose the fastest way; then the least sharded that fills a GPU, else most rows."""
    # Ways without recomputation come first, if any fit.
    fastest = [way for way in ways if way.hours == ways[0].hours]
    saturating_rows = min(setting.rows, -(-SATURATED // setting.length))
    saturating = [way for way in fastest if way.micro_batch >= saturating_rows]
    return saturating[0] if saturating else max(fastest, key=lambda way: way.micro_batch)


def _values(way: Way, gpus: int) -> dict[str, Any]:
    return {
        "zero": way.zero,
        "activation_checkpointing": way.checkpointing,
        "micro_batch": way.micro_batch,
        "accumulation": way.accumulation,
        "memory": way.memory.as_json(),
        "hours": way.hours,
        "gpu_hours": way.hours * gpus,
    }


def command(setting: Setting, way: Way) -> str:
    """Return the command that runs this way."""
    gpus_per_node = max(count for count in range(1, PER_NODE + 1) if setting.ranks % count == 0)
    nodes = setting.ranks // gpus_per_node
    arguments = [
        "cloze pretrain --dataset DATASET",
        f"--model {setting.name}",
        f"--tokens {setting.tokens:.0f}",
        f"--global-batch {setting.batch}",
        f"--micro-batch {way.micro_batch}",
        f"--device {setting.device.kind}",
        f"--processes {gpus_per_node}" if setting.ranks > 1 else "",
        f"--nodes {nodes} --launcher ssh --hostfile HOSTS" if nodes > 1 else "",
        f"--zero {way.zero}" if way.zero else "",
        "--activation-checkpointing" if way.checkpointing else "",
        "--out W/pretrain",
    ]
    return " ".join(argument for argument in arguments if argument)


def _assumptions(setting: Setting, mfu: float | None) -> list[str]:
    """Return the plan's assumptions, one sentence each."""
    device = setting.device
    dtype = "bf16" if device.computes_bf16 else "fp32"
    assumptions = [
        f"{device.name}: {format_bytes(device.memory)}, {device.peak / 1e12:,.0f} TFLOP/s {dtype}"
        f" ({device.source}).",
        f"{MARGIN:.0%} of the memory can be planned with, and rows are {FULL:.0%} full.",
    ]
    if device.kind == "cpu":
        assumptions.append("A core computes large models as fast as one of a Xeon with AMX.")
    elif mfu is None:
        assumptions.append(
            f"The GPU reaches {hardware.MFU:.0%} of its peak: BERT-large reaches 45 % (NVIDIA"
            " DeepLearningExamples, A100), BERT-base 24 % (MosaicML, A100); --mfu takes your own."
        )
    if device.kind == "cuda":
        assumptions.append(
            "GPUs wait neither for the network, nor for saves, nor for failed machines."
        )
    return assumptions


def _warnings(setting: Setting) -> list[str]:
    tokens = setting.rows * setting.length
    if setting.device.kind == "cpu" or tokens >= SATURATED:
        return []
    return [
        f"the batch is too small for {setting.ranks} GPUs: {setting.rows} sequences of"
        f" {setting.length} tokens each are fewer than the {SATURATED} tokens that fill one"
    ]


def _too_large(setting: Setting) -> str:
    """Return the message that the model does not fit, with remedies."""
    zero = 3 if setting.ranks > 1 else 0
    minimum, device = setting.memory(1, zero, True), setting.device
    location = f"each of {setting.ranks} {device.name}" if device.kind == "cuda" else "this machine"
    message = (
        f"{setting.name} at length {setting.length} takes {format_bytes(minimum.total)} on "
        f"{location} ({format_bytes(device.memory)}) at ZeRO {zero} with one sequence at a time, "
        f"and {format_bytes(device.memory * MARGIN)} can be used"
    )
    remedies: list[str] = []
    ranks = setting.ranks
    while device.kind == "cuda" and not remedies and ranks * 2 <= setting.batch:
        ranks *= 2
        if replace(setting, ranks=ranks).memory(1, 3, True).total <= device.memory * MARGIN:
            remedies.append(f"{ranks} GPUs with ZeRO 3")
    for gpu in sorted(hardware.GPUS.values(), key=lambda gpu: gpu.memory):
        if replace(setting, device=gpu).memory(1, zero, True).total <= gpu.memory * MARGIN:
            remedies.append(f"{gpu.name} ({format_bytes(gpu.memory)})")
            break
    return f"{message}; use {' or '.join(remedies) or 'a smaller model or shorter rows'}"
