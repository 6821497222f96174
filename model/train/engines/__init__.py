"""What runs forward, backward and the update, and how training is spread over ranks. One engine is one file, and a line here.

    torch      one process, or several that hold everything and add up their gradients: the fastest where all of it fits
    deepspeed  ZeRO stages 1 to 3: optimizer state, gradients and weights are shared out among the ranks

No torch in this module; DeepSpeed, which takes seconds to import, comes in with its engine alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.core.errors import UsageError, did_you_mean

ENGINES: dict[str, str] = {
    "torch": "model.train.engines.torch:engine",
    "deepspeed": "model.train.engines.deepspeed:engine",
}
AUTO = "auto"
STATE_BYTES = 16  # a parameter's weight, gradient and two moments in fp32
STATE_SHARE = 0.5  # of a device's memory; activations take the rest


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine's name, its ZeRO stage (0: everything whole on every rank), why where that was left open, and whether the optimizer's
    state lies in the machine's memory.
    """

    name: str
    zero: int
    reason: str = ""
    offload: bool = False


def choose(
    wanted: str,
    zero: int | None,
    processes: int,
    parameters: int,
    memory: int | None,
    offload: str = "none",
) -> EngineChoice:
    """Which engine runs.

    `auto` takes DeepSpeed where a ZeRO stage is asked for or the state does not fit a device, and torch where not.

    Args:
        wanted: auto, or a name in `ENGINES`.
        zero: the ZeRO stage that was asked for; None: none was.
        parameters: how many are trained.
        memory: bytes of a device; None: it is not bounded by one (a CPU).
        offload: where the optimizer's state is to lie: `none` (with the weights), or `cpu`.

    Raises:
        UsageError: no such engine or stage, or the two do not fit together, or with where its state is to lie.
    """
    found = _choose(wanted, zero, processes, parameters, memory)
    if offload == "none":
        return found
    if memory is None:
        raise UsageError(f"offload ({offload}) is for GPUs, training is on the CPU, where the state is already; leave it out")
    if not found.zero:
        raise UsageError(
            f"offload ({offload}) needs DeepSpeed's ZeRO 1 to 3, this is engine torch; use --engine deepspeed --zero 1"
        )
    return replace(found, offload=True)


def _choose(wanted: str, zero: int | None, processes: int, parameters: int, memory: int | None) -> EngineChoice:
    if wanted != AUTO and wanted not in ENGINES:
        raise UsageError(f"engine ({wanted}) is unknown; {did_you_mean(wanted, (AUTO, *ENGINES))}")
    if zero is not None and zero not in (0, 1, 2, 3):
        raise UsageError(f"zero ({zero}) is no ZeRO stage; use 0, 1, 2 or 3")
    if wanted == "torch" and zero:
        raise UsageError(f"zero ({zero}) needs DeepSpeed, engine is torch; use --engine deepspeed, or leave one of them out")
    if wanted == "deepspeed":
        if zero == 0:
            raise UsageError("zero (0) with engine deepspeed shares out nothing; use --zero 1, or --engine torch")
        return EngineChoice("deepspeed", zero or 1)
    if wanted == "torch" or zero == 0:
        return EngineChoice("torch", 0)
    if processes == 1:
        return EngineChoice("torch", 0, f"one process has nothing to share out at ZeRO {zero}" if zero else "")
    if zero:
        return EngineChoice("deepspeed", zero)
    state = parameters * STATE_BYTES
    if memory is not None and state > STATE_SHARE * memory:
        return EngineChoice("deepspeed", 1, f"weights and optimizer take {state / 1e9:.1f} of {memory / 1e9:.1f} GB a device")
    return EngineChoice("torch", 0)
