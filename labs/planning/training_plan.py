"""Plans of a pretraining: memory and hours on GPUs of a kind, or on this machine's CPU. No torch.

  cloze plan-training roberta-large --gpus 64 --gpu-type h100 --tokens 300e9

Hours are operations / (MFU x peak), without networks, saves and interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cloze.core.config import parse_config
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.humanize import format_bytes, parse_count
from cloze.model import hardware
from cloze.model.families.config import ModelConfig
from cloze.model.families.modern import ModernConfig
from cloze.model.families.registry import model_config
from cloze.model.hardware import Device
from cloze.model.train.config import PretrainConfig
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import FULL
from cloze.model.train.plan.estimates import MARGIN, ComputeOptions, MemoryEstimate, StepCost
from cloze.model.train.plan.sizing import describe_size, resolve_size

LONGEST = 512  # default row length, if the model supports as many
RECOMPUTED = 4.0 / 3.0  # factor on the operations with activation checkpointing
PER_NODE = 8  # maximum number of GPUs per machine
SATURATED = 4096  # tokens on a GPU at once: fewer leave its matrix units idle while kernels launch

SPELLINGS = {
    "a100": "a100-80",
    "a100-40gb": "a100-40",
    "a100-80gb": "a100-80",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "a10": "a10g",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pretraining to plan.

    Attributes:
        device: device of each of the `ranks` processes.
        length: tokens per row; rows are `FULL` full.
        batch: sequences per step.
    """

    name: str
    model: ModelConfig
    device: Device
    ranks: int
    length: int
    batch: int
    tokens: float

    @property
    def rows(self) -> int:
        """Maximum number of sequences of a rank per step."""
        return -(-self.batch // self.ranks)

    def memory(self, rows: int, zero: int, checkpointing: bool) -> MemoryEstimate:
        """Estimate a rank's memory with micro-batches of `rows` rows."""
        how = ComputeOptions(
            device=self.device.kind, bf16=self.device.computes_bf16, checkpointing=checkpointing
        )
        return StepCost.of(self.model, self.length, how, ranks=self.ranks, zero=zero).memory(rows)


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
        model: preset, or a size such as 17m, whose batch `cloze.model.train.dial` chooses.
        cores: CPU cores of this machine, which is planned for without `gpus` and `gpu_type`.
        tokens: number of real tokens to train on.
        length, global_batch, vocab_size: None: the model's defaults.
        mfu: share of the peak that is reached; None: `hardware.MFU`.

    Raises:
        UsageError: model or GPU is unknown, a number is out of range, or the model does not fit.
    """
    numbers = {"gpus": gpus, "length": length, "global_batch": global_batch}
    _check({**numbers, "vocab_size": vocab_size, "tokens": tokens, "mfu": mfu})
    sized = None
    if parse_count(model) is not None:
        by_hand = {"global_batch": global_batch} if global_batch else {}
        values = {"size": model, "tokens": round(tokens), **by_hand}
        sized = parse_config(PretrainConfig, values, "")
        vocabulary = vocab_size or ModernConfig.default_vocab_size
        sized = resolve_size(sized, vocabulary, FULL * (length or LONGEST), 1.0, "cpu")
        global_batch = sized.global_batch
    preset = model_config(model if sized is None or sized.model is None else sized.model)
    size = vocab_size or preset.vocab_size or preset.default_vocab_size
    device, ranks = _device(cores, gpus, gpu_type)
    setting = Setting(
        name=model,
        model=preset.model_copy(update={"vocab_size": size}),
        device=device,
        ranks=ranks,
        length=length or min(LONGEST, preset.max_position_embeddings),
        batch=global_batch or preset.default_batch_size,
        tokens=tokens,
    )
    if setting.length > preset.max_position_embeddings:
        raise UsageError(
            f"length ({length}) is more than {model} reads ({preset.max_position_embeddings}); use "
            f"that or less"
        )
    if ranks > setting.batch:
        raise UsageError(
            f"gpus ({ranks}) is more than the sequences of a step (global_batch {setting.batch});"
            f" use --global-batch {ranks} or more, or fewer GPUs"
        )
    mean_length = FULL * setting.length
    speed = ranks * device.speed(mfu)
    work = tokens * StepCost.of(setting.model, mean_length, device=device.kind).operations
    ways = list(_ways(setting, work / speed / 3600))
    if not ways:
        raise UsageError(_too_large(setting))
    best = choose(setting, ways)
    required_flops = tokens * estimates.flops_per_token(setting.model, mean_length)
    parameters = estimates.approximate_parameters(setting.model)
    return {
        "model": model,
        "parameters": parameters,
        "vocab_size": size,
        "length": setting.length,
        "tokens": tokens,
        "global_batch": setting.batch,
        "steps": max(1, math.ceil(tokens / (setting.batch * mean_length))),
        "hardware": {
            "name": device.name,
            "kind": device.kind,
            "gpus": ranks if device.kind == "cuda" else 0,
            "memory": device.memory,
            "peak": device.peak,
            "source": device.source,
        },
        "ways": ways,
        "chosen": {
            **best,
            "mfu": required_flops / (3600 * best["hours"] * ranks * device.peak),
            "command": command(setting, best),
        },
        "checkpoint_bytes": estimates.checkpoint_bytes(parameters),
        "assumptions": [
            *describe_size(sized or PretrainConfig()).values(),
            *_assumptions(device, mfu),
        ],
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


def gpu(name: str) -> Device:
    """Find a GPU by its name in the table.

    Raises:
        UsageError: the table lacks it.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    key = SPELLINGS.get(key, key)
    if key not in hardware.GPUS:
        raise UsageError(
            f"gpu_type ({name}) is not in the table; {did_you_mean(key, hardware.GPUS)}"
        )
    return hardware.GPUS[key]


def _device(cores: int, gpus: int | None, gpu_type: str | None) -> tuple[Device, int]:
    if gpu_type is not None:
        return gpu(gpu_type), gpus or 1
    if gpus is not None:
        names = ", ".join(hardware.GPUS)
        raise UsageError(f"gpus ({gpus}) lacks the kind; add --gpu-type NAME, one of {names}")
    return hardware.this_cpu(cores), 1


def _ways(setting: Setting, hours: float) -> Iterator[dict[str, Any]]:
    """Yield all ways to run it that fit, the least sharded and recomputed first.

    Each has ZeRO stage, activation checkpointing, the largest micro-batch, and what they take.
    """
    on_gpus = setting.device.kind == "cuda"
    limit = setting.rows if on_gpus else min(setting.rows, estimates.cpu_rows(setting.length))
    for checkpointing in (False, True):
        for zero in range(4 if setting.ranks > 1 else 1):  # one process has nothing to shard

            def fits(rows: int, zero: int = zero, checkpointing: bool = checkpointing) -> bool:
                total = setting.memory(rows, zero, checkpointing).total
                return total <= MARGIN * setting.device.memory

            fitting = estimates.largest(fits, limit)
            if not fitting:
                continue
            accumulation = -(-setting.rows // fitting)
            # Equal micro-batches: 10 rows of which 8 fit are two of 5, not 8 and 2.
            rows = -(-setting.rows // accumulation)
            memory = setting.memory(rows, zero, checkpointing)
            total_hours = hours * (RECOMPUTED if checkpointing else 1.0)
            yield {
                "zero": zero,
                "activation_checkpointing": checkpointing,
                "micro_batch": rows,
                "accumulation": accumulation,
                "memory": {
                    name: round(value)
                    for name, value in {**asdict(memory), "total": memory.total}.items()
                },
                "hours": total_hours,
                "gpu_hours": total_hours * setting.ranks if on_gpus else 0.0,
            }


def choose(setting: Setting, ways: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose the fastest way; then the least sharded that fills a GPU, else most rows."""
    # Ways without recomputation come first, if any fit.
    fastest = [way for way in ways if way["hours"] == ways[0]["hours"]]
    saturating_rows = min(setting.rows, -(-SATURATED // setting.length))
    saturating = [way for way in fastest if way["micro_batch"] >= saturating_rows]
    return saturating[0] if saturating else max(fastest, key=lambda way: int(way["micro_batch"]))


def command(setting: Setting, way: dict[str, Any]) -> str:
    gpus_per_node = max(count for count in range(1, PER_NODE + 1) if setting.ranks % count == 0)
    nodes = setting.ranks // gpus_per_node
    arguments = [
        "cloze pretrain --dataset DATASET",
        f"--{'model' if parse_count(setting.name) is None else 'size'} {setting.name}",
        f"--tokens {setting.tokens:.0f}",
        f"--global-batch {setting.batch}",
        f"--micro-batch {way['micro_batch']}",
        f"--device {setting.device.kind}",
        f"--processes {gpus_per_node}" if setting.ranks > 1 else "",
        f"--nodes {nodes} --launcher ssh --hostfile HOSTS" if nodes > 1 else "",
        f"--zero {way['zero']}" if way["zero"] else "",
        "--activation-checkpointing" if way["activation_checkpointing"] else "",
        "--out W/pretrain",
    ]
    return " ".join(argument for argument in arguments if argument)


def _assumptions(device: Device, mfu: float | None) -> list[str]:
    """Return the plan's assumptions, one sentence each."""
    dtype = "bf16" if device.computes_bf16 else "fp32"
    assumptions = [
        f"{device.name}: {format_bytes(device.memory)}, {_rounded(device.peak / 1e12)} TFLOP/s"
        f" {dtype} ({device.source}).",
        f"{MARGIN:.0%} of the memory can be planned with, and rows are {FULL:.0%} full.",
    ]
    if device.kind == "cpu":
        return [*assumptions, "A core computes large models as fast as one of a Xeon with AMX."]
    if mfu is None:
        assumptions.append(
            f"The GPU reaches {hardware.MFU:.0%} of its peak: BERT-large reaches 45 % (NVIDIA"
            " DeepLearningExamples, A100), BERT-base 24 % (MosaicML, A100); --mfu takes your own."
        )
    waits = "GPUs wait neither for the network, nor for saves, nor for failed machines."
    return [*assumptions, waits]


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


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
    zero, device = 3 if setting.ranks > 1 else 0, setting.device
    minimum = setting.memory(1, zero, True).total
    location = f"each of {setting.ranks} {device.name}" if device.kind == "cuda" else "this machine"
    return (
        f"{setting.name} at length {setting.length} takes {format_bytes(minimum)} on {location} "
        f"({format_bytes(device.memory)}) at ZeRO {zero} with one sequence at a time, and "
        f"{format_bytes(device.memory * MARGIN)} can be used; use more GPUs, GPUs with more "
        f"memory, a smaller model, or shorter rows"
    )
