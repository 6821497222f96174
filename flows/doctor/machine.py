"""The machine: Python, packages, compiler, processor, GPUs and NCCL, disk."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from flows.doctor.finding import Finding
from flows.graph.plan import runs_directory
from pipeline.core import processors

CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"  # the set that everything was tried with, in a checkout
PACKAGES = (
    "torch",
    "deepspeed",
    "apache-beam",
    "prefect",
    "mlflow",
    "pyarrow",
    "tokenizers",
    "transformers",
    "fastapi",
    "starlette",
    "sqlalchemy",
)
OPTIONAL = {"transformers": "needed only to check exports"}
# What installs and does not work: what, with what, and how it shows.
BROKEN = (
    (Requirement("fastapi>=0.155"), "prefect", "Prefect's server does not start with it"),
    (Requirement("sqlalchemy>=2.1"), "prefect", "Prefect's server fails at its first write with it"),
)
FREE_BYTES = 5 << 30
FREE_SHARE_OF_FILES = 0.02
_TORCH = """
import json, torch
gpus = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus and torch.distributed.is_nccl_available() else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl,
                  "gpus": [[gpu.name, gpu.total_memory] for gpu in gpus]}))
"""


def python() -> Iterator[Finding]:
    fine = (3, 10) <= sys.version_info[:2] <= (3, 13)
    yield Finding(check="python", found=platform.python_version(), ok=fine, fix="use Python 3.10 to 3.13")


def packages() -> Iterator[Finding]:
    """Each package that matters; those that are known not to work together; what differs from the set that was tried."""
    for name in PACKAGES:
        try:
            yield _package(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            if name in OPTIONAL:
                yield Finding(check=name, found=f"not installed ({OPTIONAL[name]})")
            else:
                yield Finding(check=name, found="not installed", ok=False, fix=f"pip install {_tried().get(name, name)}")
    differing = [f"{name} {metadata.version(name)} (tried: {tried})" for name, tried in _differing()]
    if differing:
        yield Finding(check="versions", found=f"other than those that were tried: {', '.join(differing)}")


def _package(name: str, version: str) -> Finding:
    for wrong, partner, how in BROKEN:
        if wrong.name == name and Version(version) in wrong.specifier:
            lower = str(wrong.specifier).removeprefix(">=")
            return Finding(
                check=name, found=f"{version}, beside {partner}: {how}", ok=False, fix=f"pip install '{name}<{lower}'"
            )
    return Finding(check=name, found=version)


def _tried() -> dict[str, str]:
    """Package -> `name==version` of the constraints that hold for this Python."""
    found = {}
    if CONSTRAINTS.exists():
        for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate():
                    found[requirement.name.lower().replace("_", "-")] = f"{requirement.name}{requirement.specifier}"
    return found


def _differing() -> Iterator[tuple[str, str]]:
    tried = _tried()
    for name in PACKAGES:
        if name in tried:
            requirement = Requirement(tried[name])
            try:
                installed = Version(metadata.version(name))
            except metadata.PackageNotFoundError:
                continue
            if installed not in requirement.specifier:
                yield name, str(requirement.specifier).removeprefix("==")


def compiler() -> Iterator[Finding]:
    """Wanted for `torch.compile` on a CPU alone: without one, training steps are not compiled."""
    found = shutil.which("g++") or shutil.which("c++")
    yield Finding(check="compiler", found=found or "none: training steps are not compiled; install g++ if they should be")


def processor() -> Iterator[Finding]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            flags = next((line for line in stream if line.startswith("flags")), "").split()
    except OSError:
        flags = []
    fast = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    precision = f"bf16 by {', '.join(fast)}" if fast else "no native bf16: fp32"
    yield Finding(check="processor", found=f"{len(processors.usable())} cores, {precision}")


def devices() -> Iterator[Finding]:
    """What torch sees, whether the driver sees more, and NCCL where there are GPUs."""
    done = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False, timeout=180)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["failed"])[-1]
        yield Finding(check="torch imports", found=last, ok=False, fix="install torch again, for this machine's driver")
        return
    torch = json.loads(done.stdout.splitlines()[-1])
    names = [f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in torch["gpus"]]
    driver = _driver_gpus()
    if len(names) < driver and "CUDA_VISIBLE_DEVICES" not in os.environ:
        yield Finding(
            check="devices",
            found=f"the driver lists {driver} GPUs, torch {torch['version']} (CUDA {torch['cuda']}) sees {len(names)}",
            ok=False,
            fix="install a torch that was built for this driver, or a newer driver",
        )
    else:
        yield Finding(check="devices", found=", ".join(names) or "no GPU: training computes on the CPU")
    if names:
        without = len(names) > 1 and torch["nccl"] is None
        yield Finding(
            check="nccl",
            found=torch["nccl"] or "none",
            ok=not without,
            fix="install a torch that brings NCCL: several GPUs train together through it",
        )


def _driver_gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def disk() -> Iterator[Finding]:
    """Bytes and files that may still be written where runs are kept."""
    runs = runs_directory()
    place = runs if runs.exists() else Path.cwd()
    free, files = shutil.disk_usage(place).free, os.statvfs(place)
    fine = free > FREE_BYTES
    fix = f"free some: artifacts that no link in {runs} leads to are of earlier configs, and may be removed"
    yield Finding(check="free disk", found=f"{free / 1e9:.0f} GB for {place.resolve()}", ok=fine, fix=fix)
    if files.f_files and files.f_favail < FREE_SHARE_OF_FILES * files.f_files:
        yield Finding(check="free files", found=f"{files.f_favail:,} more files fit on the disk", ok=False, fix=fix)
