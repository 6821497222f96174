"""What there is to compute on: a table of GPUs, and this machine's CPU.

Peaks are those of dense matrices (NVIDIA's data sheets give twice as much "with sparsity" for some), links one direction.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pipeline.core.cost import Computer
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.humanize import size

Kind = Literal["cpu", "cuda"]
CPU = "cpu"
CPU_CORE_SPEED = 3.5e11  # operations a second that large models reach on a core with bf16 units (benchmarks/README.md)
FP32_SHARE = 0.4  # of that, without them: BERT-mini's fp32 step beside its bf16 one (benchmarks/README.md)
BF16_FLAGS = ("amx_bf16", "avx512_bf16")  # what the kernel calls the instructions that multiply bf16
CPU_CORE_WATTS = 5.0  # an EPYC 9654: 360 W for 96 cores (AMD's product page), and its memory
CPU_CORE_BANDWIDTH = 8e9  # bytes a second of memory: streams of one core
LOOPBACK = 2e9  # bytes a second between processes of a machine by gloo
ETHERNET = 12.5e9  # 100 Gb/s, what cloud machines without a fabric of their own have


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or the CPU of a machine.

    Attributes:
        memory: bytes.
        bf16: operations a second at most, dense, in bf16 with fp32 sums; None: it has no bf16, so training computes in fp32.
        fp32: likewise in fp32, or TF32 where the GPU has it.
        bandwidth: of its memory, bytes a second.
        link: to its neighbours in the same machine, bytes a second in one direction.
        fabric: between machines as they are usually built with it, bytes a second of a machine in one direction.
        per_node: how many a machine usually has.
        watts: the board's limit.
        source: of these figures.
    """

    name: str
    memory: float
    bf16: float | None
    fp32: float
    bandwidth: float
    link: float
    fabric: float
    per_node: int
    watts: float
    source: str
    kind: Kind = "cuda"

    @property
    def peak(self) -> float:
        """Operations a second at most in the precision that training takes by itself."""
        return self.bf16 or self.fp32

    @property
    def computes_bf16(self) -> bool:
        """Whether `precision: auto` takes bf16."""
        return self.bf16 is not None

    def told(self) -> str:
        """One line: memory, peak, links."""
        return (
            f"{self.name}: {size(self.memory)}, {self.peak / 1e12:,.0f} TFLOP/s {'bf16' if self.computes_bf16 else 'fp32'},"
            f" {size(self.bandwidth)}/s memory, {size(self.link)}/s link, {self.watts:,.0f} W"
        )


def _gpu(
    name: str, gigabytes: float, bf16: float | None, fp32: float, bandwidth: float, link: float, fabric: float, per_node: int,
    watts: float, source: str,
) -> Device:  # fmt: skip
    return Device(
        name=name,
        memory=gigabytes * 1e9,
        bf16=None if bf16 is None else bf16 * 1e12,
        fp32=fp32 * 1e12,
        bandwidth=bandwidth * 1e9,
        link=link * 1e9,
        fabric=fabric * 1e9,
        per_node=per_node,
        watts=watts,
        source=source,
    )


# GB, TFLOP/s bf16, TFLOP/s fp32 or TF32, GB/s memory, GB/s link one way, GB/s fabric a machine one way, a machine, W
GPUS: dict[str, Device] = {
    gpu.name: gpu
    for gpu in (
        _gpu("v100", 32, None, 15.7, 900, 150, 50, 8, 300, "NVIDIA V100 data sheet (SXM2, 32 GB); DGX-1V: 4 x 100 Gb/s"),
        _gpu("t4", 16, None, 8.1, 320, 16, 12.5, 8, 70, "NVIDIA T4 data sheet; PCIe 3.0 x16"),
        _gpu("a100-40", 40, 312, 156, 1555, 300, 200, 8, 400, "NVIDIA A100 data sheet (SXM4, 40 GB); DGX A100: 8 x 200 Gb/s"),
        _gpu("a100-80", 80, 312, 156, 2039, 300, 200, 8, 400, "NVIDIA A100 data sheet (SXM4, 80 GB); DGX A100: 8 x 200 Gb/s"),
        _gpu("a10g", 24, 70, 35, 600, 32, 12.5, 8, 300, "AWS EC2 G5 (70 TFLOP/s tensor, dense), NVIDIA A10 data sheet; PCIe 4.0 x16"),
        _gpu("l4", 24, 121, 60, 300, 32, 12.5, 8, 72, "NVIDIA L4 data sheet (half of the figures with sparsity); PCIe 4.0 x16"),
        _gpu("l40s", 48, 362, 183, 864, 32, 50, 8, 350, "NVIDIA L40S data sheet (362 of 733 TFLOP/s are dense); PCIe 4.0 x16"),
        _gpu("rtx-4090", 24, 165, 82.6, 1008, 32, 12.5, 4, 450, "NVIDIA Ada architecture paper, table 2; PCIe 4.0 x16"),
        _gpu("h100", 80, 989, 494, 3350, 450, 400, 8, 700, "NVIDIA H100 data sheet (SXM, half of the figures with sparsity); DGX H100: 8 x 400 Gb/s"),
        _gpu("h200", 141, 989, 494, 4800, 450, 400, 8, 700, "NVIDIA H200 data sheet (SXM, half of the figures with sparsity); DGX H200: 8 x 400 Gb/s"),
        _gpu("b200", 180, 2250, 1100, 7700, 900, 400, 8, 1000, "NVIDIA HGX B200 and DGX B200 data sheets (per GPU, dense); 8 x 400 Gb/s"),
    )
}  # fmt: skip
DEFAULT_GPU = "a100-80"  # of a GPU that nobody has named
SPELLINGS = {
    "a100": "a100-80",
    "a100-40gb": "a100-40",
    "a100-80gb": "a100-80",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "a10": "a10g",
}


def native_bf16() -> bool:
    """Whether this machine's CPU multiplies bf16."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return any(flag in flags for flag in BF16_FLAGS)


def gpu(name: str) -> Device:
    """The GPU of that name.

    Raises:
        UsageError: it is not in the table.
    """
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    wanted = SPELLINGS.get(wanted, wanted)
    if wanted not in GPUS:
        raise UsageError(f"gpu ({name}) is not in the table; {did_you_mean(wanted, GPUS)}")
    return GPUS[wanted]


def recognised(name: str) -> Device | None:
    """The row of a GPU that the driver names so (`NVIDIA H100 80GB HBM3`); None: it has none. Hopper's PCIe boards are slower than these."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower())
    if re.search(r"h[12]00.* (pcie|nvl)", words):
        return None
    if "a100" in words:
        return GPUS["a100-80" if "80gb" in words else "a100-40"]
    for row, device in GPUS.items():
        if f" {row.replace('rtx-', '')} " in f" {words} ":
            return device
    return None


def of(kind: str, computer: Computer) -> Device:
    """What a training computes on: a GPU of this machine (`cuda`), or its CPU."""
    if kind == CPU:
        return this_cpu(computer.cpus)
    found = recognised(computer.gpu) or GPUS[DEFAULT_GPU]
    return replace(found, memory=float(computer.gpu_bytes)) if computer.gpu_bytes else found


def this_cpu(cores: int) -> Device:
    """The CPU of this machine, with so many cores."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    native = native_bf16()
    return Device(
        name=f"{platform.machine()} CPU, {cores} core{'s' if cores > 1 else ''}",
        memory=float(memory),
        bf16=CPU_CORE_SPEED * cores if native else None,
        fp32=CPU_CORE_SPEED * cores * FP32_SHARE,
        bandwidth=CPU_CORE_BANDWIDTH * cores,
        link=LOOPBACK,
        fabric=ETHERNET,
        per_node=1,
        watts=CPU_CORE_WATTS * cores,
        source="benchmarks/README.md, by the core",
        kind="cpu",
    )
