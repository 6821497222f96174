"""What a pretraining would take on so many GPUs, for every ZeRO stage, and which way of running it is the best. No torch.

    cloze plan --model roberta-large --gpus 64 --gpu h100 --tokens 300e9

`flows.commands.plan` reaches `planned` by its name; it gives plain values, as `--json` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from model.train import arithmetic
from model.train.memory import CPU_TOKENS, MARGIN, Memory, training_memory
from model.train.scale import goodput, hardware
from model.train.scale.assumptions import assumptions
from model.train.scale.goodput import Faults
from model.train.scale.setting import Setting, Wanted, settled
from model.train.scale.step import Step, step
from pipeline.core.cost import dataset_bytes
from pipeline.core.errors import UsageError
from pipeline.core.humanize import size

ZERO = (0, 1, 2, 3)
MASK_RATE = 0.15
SAME = 0.01  # of the time: what is faster by less is not chosen for it
COPY_SPEED = 10e9  # bytes a second from a GPU to its machine's memory: PCIe 4.0 x16, a third of its peak
WRITE_SPEED = 0.5e9  # bytes a second of a machine to a shared disk or object store
START = {"cpu": 20.0, "cuda": 60.0}  # from a command to its next step: processes, libraries, the data's hashes, compiling
MICRO_BATCHES = (1, 8, 32)  # whose memory is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of running it."""

    zero: int
    checkpointing: bool
    micro_batch: int
    accumulation: int
    memory: Memory
    step: Step


def planned(cores: int, **values: Any) -> dict[str, Any]:
    """The whole plan, as plain values. Args: cores: of this machine; values: as of `Wanted`.

    Raises:
        UsageError: the model or the GPU is not known, a number is out of range, or the model fits in no way.
    """
    setting = settled(Wanted(**values), cores)
    table = list(_table(setting))
    best = {(zero, again): _best(setting, zero, again) for zero in stages(setting) for again in (False, True)}
    ways = [way for way in best.values() if way is not None]
    if not ways:
        raise UsageError(too_large(setting))
    chosen = choice(ways)
    faults = faults_of(setting)
    interval = goodput.daly(faults)
    return {
        "model": setting.wanted.model,
        "parameters": arithmetic.approximate_parameters(setting.model),
        "vocab_size": setting.model.vocab_size,
        "length": setting.length,
        "tokens": setting.wanted.tokens,
        "global_batch": setting.batch,
        "steps": setting.steps,
        "hardware": {**asdict(setting.device), "gpus": setting.ranks if setting.device.kind == "cuda" else 0},
        "nodes": setting.nodes,
        "memory": table,
        "ways": [_told(setting, way) for way in ways],
        "chosen": {**_told(setting, chosen), "command": command(setting, chosen, interval)},
        "bytes": sizes(setting),
        "failures": _failures(setting, faults, interval),
        "assumptions": assumptions(setting, faults),
        "warnings": warnings(setting, chosen),
    }


def stages(setting: Setting) -> tuple[int, ...]:
    """The ZeRO stages that make a difference: one process has nothing to share out."""
    return ZERO if setting.ranks > 1 else (0,)


def memory_of(setting: Setting, zero: int, micro_batch: int, checkpointing: bool) -> Memory:
    return training_memory(
        setting.model,
        setting.length,
        micro_batch,
        ranks=setting.ranks,
        zero=zero,
        accumulating=micro_batch < setting.rows,
        how=setting.computing(checkpointing),
    )


def _table(setting: Setting) -> Iterator[dict[str, Any]]:
    """A rank's memory by stage, micro-batch and checkpointing."""
    most = {(zero, again): fitting(setting, zero, again) for zero in stages(setting) for again in (False, True)}
    for (zero, again), fits in most.items():
        for micro_batch in sorted({*(rows for rows in MICRO_BATCHES if rows <= setting.rows), *([fits] if fits else [])}):
            found = memory_of(setting, zero, micro_batch, again)
            yield {
                "zero": zero,
                "activation_checkpointing": again,
                "micro_batch": micro_batch,
                "fits": found.total <= setting.room,
                "most": micro_batch == fits,
                **found.as_json(),
            }


def fitting(setting: Setting, zero: int, checkpointing: bool) -> int:
    """The most rows at once that fit; 0: not even one. On a CPU, no more than it gains by."""
    low, high = 0, setting.rows
    if setting.device.kind == "cpu":
        high = min(high, max(1, CPU_TOKENS // setting.length))
    while low < high:  # memory grows with the rows
        middle = (low + high + 1) // 2
        if memory_of(setting, zero, middle, checkpointing).total <= setting.room:
            low = middle
        else:
            high = middle - 1
    return low


def _best(setting: Setting, zero: int, checkpointing: bool) -> Way | None:
    """The fastest cut of the batch that fits: as few micro-batches as can be, all alike."""
    most = fitting(setting, zero, checkpointing)
    if not most:
        return None
    accumulation = -(-setting.rows // most)
    micro_batch = -(-setting.rows // accumulation)
    found = step(
        setting.model,
        setting.device,
        setting.links,
        tokens=setting.batch / setting.ranks * setting.mean,
        mean=setting.mean,
        accumulation=accumulation,
        zero=zero,
        checkpointing=checkpointing,
        mfu=setting.mfu,
    )
    return Way(
        zero=zero,
        checkpointing=checkpointing,
        micro_batch=micro_batch,
        accumulation=accumulation,
        memory=memory_of(setting, zero, micro_batch, checkpointing),
        step=found,
    )


def choice(ways: list[Way]) -> Way:
    """The fastest; of those that are as fast, the one that shares out and computes again the least."""
    fastest = min(way.step.seconds for way in ways)
    near = [way for way in ways if way.step.seconds <= fastest * (1 + SAME)]
    return min(near, key=lambda way: (way.checkpointing, way.zero))


def _told(setting: Setting, way: Way) -> dict[str, Any]:
    seconds, gpus = way.step.seconds, setting.ranks
    hours = seconds * setting.steps / 3600
    cuda = setting.device.kind == "cuda"
    return {
        "zero": way.zero,
        "activation_checkpointing": way.checkpointing,
        "micro_batch": way.micro_batch,
        "accumulation": way.accumulation,
        "memory": way.memory.as_json(),
        "step_seconds": seconds,
        "tokens_per_second": setting.batch * setting.mean / seconds,
        "hours": hours,
        "gpu_hours": hours * gpus if cuda else 0.0,
        "energy_kwh": hours * gpus * setting.device.watts / 1000,
        "network": {
            "bytes_per_step": way.step.sent * (setting.ranks if setting.ranks > 1 else 0),
            "bytes_per_rank": way.step.sent,
            "seconds": way.step.network,
            "share": way.step.network / seconds,
            "waiting_share": way.step.waiting / seconds,
        },
        "mfu": setting.batch * setting.mean * arithmetic.operations_per_token(setting.model, setting.mean)
        / (seconds * gpus * setting.device.peak),
    }  # fmt: skip


def sizes(setting: Setting) -> dict[str, float]:
    """Bytes on disk."""
    parameters = arithmetic.approximate_parameters(setting.model)
    rows, masks = dataset_bytes(
        setting.wanted.tokens / setting.wanted.epochs, setting.model.vocab_size, MASK_RATE, setting.wanted.copies
    )
    return {
        "checkpoint": float(arithmetic.checkpoint_bytes(parameters, setting.wanted.ema is not None)),
        "exported": float(arithmetic.WEIGHT_BYTES * parameters),
        "dataset": rows + masks,
        "dataset_rows": rows,
        "dataset_masks": masks,
    }


def faults_of(setting: Setting) -> Faults:
    """How often it is interrupted, and what a save and a restart take where nobody has measured them."""
    state = sizes(setting)["checkpoint"]
    stall = setting.wanted.save_seconds
    restart = setting.wanted.restart_seconds
    writing = state / (WRITE_SPEED * setting.nodes)
    reading = state / WRITE_SPEED  # every machine reads all of it
    return Faults(
        between=goodput.between_interruptions(setting.ranks, setting.wanted.gpu_hours),
        restart=goodput.NOTICE + START[setting.device.kind] + reading if restart is None else restart,
        stall=0.1 + state / setting.ranks / COPY_SPEED if stall is None else stall,
        writing=writing,
    )


def _failures(setting: Setting, faults: Faults, interval: float) -> dict[str, float]:
    return {
        "hours_between": faults.between / 3600,
        "restart_seconds": faults.restart,
        "save_stall_seconds": faults.stall,
        "save_writing_seconds": faults.writing,
        "save_every_seconds": interval,
        "young_seconds": goodput.young(faults),
        "goodput": goodput.expected(faults, interval),
    }


def command(setting: Setting, way: Way, interval: float) -> str:
    """The command that trains so."""
    parts = [
        "cloze pretrain --dataset DATASET",
        f"--model {setting.wanted.model}",
        f"--tokens {setting.wanted.tokens:.0f}",
        f"--global-batch {setting.batch}",
        f"--micro-batch {way.micro_batch}",
        f"--device {setting.device.kind}",
    ]
    if setting.ranks > 1:
        parts.append(f"--processes {setting.links.per_node}")
    if setting.nodes > 1:
        parts += [f"--nodes {setting.nodes}", "--launcher ssh", "--hostfile HOSTS"]
    if way.zero:
        parts.append(f"--zero {way.zero}")
    if way.checkpointing:
        parts.append("--activation-checkpointing")
    if setting.wanted.ema is not None:
        parts.append(f"--ema {setting.wanted.ema:g}")
    return " ".join([*parts, f"--checkpoint-minutes {max(1.0, round(interval / 60, 1)):g}", "--out W/p"])


def warnings(setting: Setting, way: Way) -> list[str]:
    """Where it breaks."""
    found = []
    if setting.device.kind == "cuda" and setting.rows * setting.length < SATURATED:
        found.append(
            f"the batch is too small for {setting.ranks} GPUs: {setting.rows} sequences of {setting.length} tokens each are"
            f" fewer than the {SATURATED} tokens that fill one"
        )
    if way.step.waiting > WAITS * way.step.seconds:
        found.append(
            f"the network takes over: each GPU waits {way.step.waiting / way.step.seconds:.0%} of a step for the others;"
            " use a larger batch, fewer GPUs or faster links"
        )
    if setting.device.kind == "cuda" and not setting.device.computes_bf16:
        found.append(f"{setting.device.name} has no bf16: training computes in fp32 there")
    return found


SATURATED = 4096  # tokens of a step on a GPU: fewer leave its matrix units idle while kernels start
WAITS = 0.2


def too_large(setting: Setting) -> str:
    """The sentence of a model that fits in no way, and what would do."""
    least = memory_of(setting, stages(setting)[-1], 1, True)
    where = f"each of {setting.ranks} {setting.device.name}" if setting.device.kind == "cuda" else "this machine"
    said = (
        f"{setting.wanted.model} at length {setting.length} takes {size(least.total)} on {where} ({size(setting.device.memory)}) at ZeRO"
        f" {stages(setting)[-1]} with one sequence at a time, and {size(setting.room)} can be used"
    )
    remedies: list[str] = []
    ranks = setting.ranks
    while setting.device.kind == "cuda" and ranks < min(setting.batch, 1 << 14) and not remedies:
        ranks *= 2
        more = training_memory(
            setting.model, setting.length, 1, ranks=ranks, zero=3, accumulating=True,
            how=setting.computing(checkpointing=True),
        )  # fmt: skip
        if more.total <= setting.room:
            remedies.append(f"{ranks} GPUs with ZeRO 3")
    for device in sorted(hardware.GPUS.values(), key=lambda found: found.memory):
        how = replace(setting.computing(checkpointing=True), device="cuda", bf16=device.computes_bf16)
        zero = stages(setting)[-1]
        if training_memory(
            setting.model, setting.length, 1, ranks=setting.ranks, zero=zero, accumulating=True, how=how
        ).total <= (MARGIN * device.memory):
            remedies.append(f"{device.name} ({size(device.memory)})")
            break
    return f"{said}; use {' or '.join(remedies)}" if remedies else f"{said}; use a smaller model or shorter rows"
