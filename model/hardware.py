"""Devices to train on: a table of GPUs, and this machine's CPU. Imports no torch.

Peaks are for dense matrices. For some GPUs NVIDIA's data sheets list twice as much ("with
sparsity").
"""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cloze.core import processes
from cloze.core.humanize import agree
from cloze.core.stages.cost import MachineSpec

Kind = Literal["cpu", "cuda"]
# Operations per second that models reach on a CPU core in fp32, and in bf16 by the Linux kernel's
# name of the instruction set, the fastest first (benchmarks/README.md, "A core").
FP32_CORE_SPEED = 1.3e11
BF16_CORE_SPEEDS = {"amx_bf16": 3.5e11, "avx512_bf16": 2.0e11}
# Assumed model FLOPs utilisation of an unmeasured GPU. On an A100 NVIDIA's DeepLearningExamples
# reach 45 % with BERT-large at length 128, MosaicML's BERT-base 24 %, llm-foundry's 125M and 350M
# decoders 43 and 51 %. On an H200 Cloze reaches 41 % with BERT-large and 34 % with BERT-base at
# length 512 (benchmarks/README.md).
MFU = 0.40


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or the CPU of a machine.

    Attributes:
        memory: bytes.
        bf16: peak operations per second in bf16 with fp32 sums; None: training uses fp32.
        fp32: peak operations per second in fp32, or in TF32 if the GPU has it.
        source: reference for the figures.
    """

    name: str
    memory: float
    bf16: float | None
    fp32: float
    source: str
    kind: Kind = "cuda"

    @property
    def peak(self) -> float:
        """Peak operations per second in the precision that `precision: auto` selects."""
        return self.bf16 or self.fp32

    @property
    def computes_bf16(self) -> bool:
        """True if `precision: auto` selects bf16."""
        return self.bf16 is not None

    def speed(self, mfu: float | None = None) -> float:
        """Return the operations per second that large models reach.

        Args:
            mfu: share of the peak. None: `MFU` for a GPU, and 1 for a CPU, whose peak is measured.
        """
        return self.peak * (mfu if mfu is not None else 1.0 if self.kind == "cpu" else MFU)


# name: GB, TFLOP/s in bf16, TFLOP/s in fp32 or TF32, source
_TABLE: dict[str, tuple[float, float | None, float, str]] = {
    "v100": (32, None, 15.7, "NVIDIA V100 data sheet (SXM2, 32 GB)"),
    "t4": (16, None, 8.1, "NVIDIA T4 data sheet"),
    "a100-40": (40, 312, 156, "NVIDIA A100 data sheet (SXM4, 40 GB)"),
    "a100-80": (80, 312, 156, "NVIDIA A100 data sheet (SXM4, 80 GB)"),
    "a10g": (24, 70, 35, "AWS EC2 G5 (70 TFLOP/s tensor, dense), NVIDIA A10 data sheet"),
    "l4": (24, 121, 60, "NVIDIA L4 data sheet (half of the figures with sparsity)"),
    "l40s": (48, 362, 183, "NVIDIA L40S data sheet (362 of 733 TFLOP/s are dense)"),
    "rtx-4090": (24, 165, 82.6, "NVIDIA Ada architecture paper, table 2"),
    "h100": (80, 989, 494, "NVIDIA H100 data sheet (SXM, half of the figures with sparsity)"),
    "h200": (141, 989, 494, "NVIDIA H200 data sheet (SXM, half of the figures with sparsity)"),
    "b200": (180, 2250, 1100, "NVIDIA HGX B200 and DGX B200 data sheets (per GPU, dense)"),
}
GPUS: dict[str, Device] = {
    name: Device(
        name=name,
        memory=gigabytes * 1e9,
        bf16=None if bf16 is None else bf16 * 1e12,
        fp32=fp32 * 1e12,
        source=source,
    )
    for name, (gigabytes, bf16, fp32, source) in _TABLE.items()
}
DEFAULT_GPU = "a100-80"  # used for a GPU that the table lacks


@functools.cache
def cpu_info() -> dict[str, str]:
    """Return what the Linux kernel says of the first CPU; empty on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def cpu_flags() -> list[str]:
    """Return the kernel's names of the CPU's instruction sets."""
    return cpu_info().get("flags", "").split()


def bf16_core_speed() -> float | None:
    """Return the operations per second of one core in bf16; None: the CPU cannot multiply bf16."""
    flags = cpu_flags()
    return next((speed for name, speed in BF16_CORE_SPEEDS.items() if name in flags), None)


def recognised(name: str) -> Device | None:
    """Find a GPU by its driver's name (`NVIDIA H100 80GB HBM3`); None: the table lacks it.

    Hopper's PCIe boards count as missing, because they are slower than the rows of the table.
    """
    words = re.sub(r"[^a-z0-9]+", " ", name.lower())
    if re.search(r"h[12]00.* (pcie|nvl)", words):
        return None
    if "a100" in words:
        return GPUS["a100-80" if "80gb" in words else "a100-40"]
    for key, device in GPUS.items():
        if f" {key.replace('rtx-', '')} " in f" {words} ":
            return device
    return None


def of(kind: str, computer: MachineSpec) -> Device:
    """Describe the device of a training on this machine: one of its GPUs (`cuda`), or its CPU."""
    if kind == "cpu":
        return this_cpu(computer.cpus)
    device = recognised(computer.gpu) or GPUS[DEFAULT_GPU]
    return replace(device, memory=float(computer.gpu_bytes)) if computer.gpu_bytes else device


def this_cpu(cores: int) -> Device:
    """Describe the CPU of this machine, with this number of cores."""
    bf16 = bf16_core_speed()
    return Device(
        name=agree(f"{platform.machine()} CPU, {cores} cores"),
        memory=float(processes.memory_limit()),
        bf16=None if bf16 is None else bf16 * cores,
        fp32=FP32_CORE_SPEED * cores,
        source="benchmarks/README.md, by the core",
        kind="cpu",
    )


# Logits over the vocabulary are computed in chunks of rows; the planner and the loss must agree.

# Bytes of a chunk's fp32 logits: enough rows for the matrix units, little memory compared with the
# layers' activations.
LOGIT_CHUNK = {"cpu": 64 << 20, "cuda": 256 << 20}
WHOLE_CHUNKS = 2  # logits of at most this many chunks are computed whole on a CPU


def logit_chunk_rows(vocabulary: int, device: str) -> int:
    """Return the number of rows of logits per chunk, at least 1, for a device type."""
    return max(1, LOGIT_CHUNK.get(device, LOGIT_CHUNK["cuda"]) // (4 * vocabulary))


def chunks_logits(rows: int, vocabulary: int, device: str) -> bool:
    """Return True if logits [rows, vocabulary] are computed in chunks; on a GPU all are.

    There the loss also pads the vocabulary, and `torch.compile` fuses its elementwise part.
    """
    return device != "cpu" or rows > WHOLE_CHUNKS * logit_chunk_rows(vocabulary, device)
