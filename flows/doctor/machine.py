"""Findings, their repair, and the checks of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from cloze.core import plugins, processes
from cloze.core.errors import UsageError, describe_error, did_you_mean
from cloze.core.humanize import agree
from cloze.core.places import runs_directory
from cloze.flows.data import DATA
from cloze.flows.machine import slots
from cloze.flows.tracking.spool import DIRECTORY


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check, one line of the output."""

    check: str
    observed: str
    ok: bool = True  # the finding needs no action
    fix: str = ""  # remedy if `ok` is false
    # function that applies the remedy; None: the user must apply it
    repair: Callable[[], object] | None = None
    fixed: bool = False  # `repair` was called and removed the finding
    failed: str = ""  # error of `repair`

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the finding when the check runs again."""
        return self.check, self.observed

    def row(self) -> dict[str, Any]:
        """Return the finding for `--json`."""
        row = {"check": self.check, "found": self.observed, "ok": self.ok}
        if self.ok:
            return row
        row |= {"fix": self.fix, "can_fix": self.repair is not None, "fixed": self.fixed}
        return row | ({"failed": self.failed} if self.failed else {})


def problem(
    check: str, observed: str, fix: str, repair: Callable[[], object] | None = None
) -> Finding:
    """Return a finding that needs its remedy."""
    return Finding(check, observed, ok=False, fix=fix, repair=repair)


Check = Callable[[], Iterable[Finding]]


def run_check(check: Check, fix: bool) -> list[Finding]:
    """Return the findings of a check; with `fix`, repair first and check again."""
    findings = _found(check)
    repairable = [finding for finding in findings if not finding.ok and finding.repair is not None]
    if not fix or not repairable:
        return findings
    failures: dict[tuple[str, str], str] = {}
    for finding in repairable:
        assert finding.repair is not None
        try:
            finding.repair()
        except Exception as error:
            message = " ".join(str(error).split())[:200]
            failures[finding.key] = message or type(error).__name__
    after = _found(check)
    remaining = {finding.key for finding in after if not finding.ok}
    fixed = [replace(finding, fixed=True) for finding in repairable if finding.key not in remaining]
    return [
        *fixed,
        *(replace(finding, failed=failures.get(finding.key, "")) for finding in after),
    ]


def _found(check: Check) -> list[Finding]:
    """Return the findings of a check; that it failed is one, and the other checks follow."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except Exception as error:
        name, observed = check.__name__.replace("_", " "), describe_error("this check", error)
        fix = "remove the cause; if there is none, report this"
        findings.append(problem(name, observed, fix))
    return findings


# Checks of Python, packages, compiler, processor, GPUs, NCCL and disk.

CONSTRAINTS = DATA / "constraints.txt"  # the tested versions
PACKAGES = (
    "torch deepspeed apache-beam prefect mlflow pyarrow tokenizers transformers fastapi starlette"
    " sqlalchemy"
).split()
OPTIONAL = {"transformers": "needed only to check exports"}
EXTRAS = {  # a host may have some extras and not others
    "data": ("apache-beam",),
    "train": ("torch", "deepspeed"),
    "flows": ("prefect", "mlflow", "fastapi", "starlette", "sqlalchemy"),
}
# Package versions that install but do not work: version, partner, symptom.
BROKEN = (
    (Requirement("fastapi>=0.151"), "prefect", "Prefect's server refuses requests of its client"),
    (Requirement("sqlalchemy>=2.1"), "prefect", "Prefect's server fails at its first write"),
)
FREE_BYTES = 5 << 30
FREE_SHARE_OF_FILES = 0.02
TORCH_TIMEOUT, DRIVER_TIMEOUT = 180.0, 60.0  # seconds
_TORCH = """
import json, torch
cuda, nccl = torch.cuda, None
gpus = [cuda.get_device_properties(n) for n in range(cuda.device_count() * cuda.is_available())]
if gpus and torch.distributed.is_nccl_available():
    nccl = ".".join(map(str, cuda.nccl.version()))
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl,
                  "gpus": [[gpu.name, gpu.total_memory] for gpu in gpus]}))
"""


def python() -> Iterator[Finding]:
    is_supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        "python", platform.python_version(), ok=is_supported, fix="use Python 3.11 to 3.13"
    )


def packages() -> Iterator[Finding]:
    """Check the required packages, known conflicts, and differences from the tested versions."""
    optional = dict(OPTIONAL)
    absent = [extra for extra, names in EXTRAS.items() if not any(map(_installed, names))]
    if len(absent) < len(EXTRAS):
        for extra in absent:
            optional |= dict.fromkeys(EXTRAS[extra], f"belongs to the extra {extra}")
    tested, untested = _tested_requirements(), []
    for name in PACKAGES:
        if version := _installed(name):
            yield _package(name, version)
            if name in tested and version not in tested[name].specifier:
                expected = str(tested[name].specifier).removeprefix("==")
                untested.append(f"{name} {version} (tested: {expected})")
        elif name in optional:
            yield Finding(name, f"not installed ({optional[name]})")
        else:
            wanted = tested.get(name) or Requirement(name)
            yield problem(name, "not installed", f"pip install {wanted.name}{wanted.specifier}")
    if untested:
        yield Finding("versions", f"not the tested ones: {', '.join(untested)}")


def _installed(name: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def _package(name: str, version: str) -> Finding:
    for requirement, partner, symptom in BROKEN:
        if requirement.name == name and Version(version) in requirement.specifier:
            fix = f"pip install '{name}<{str(requirement.specifier).removeprefix('>=')}'"
            return problem(name, f"{version}, with {partner}: {symptom}", fix)
    return Finding(name, version)


def _tested_requirements() -> dict[str, Requirement]:
    """Return the constraints for this Python version by package."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {
        each.name.lower().replace("_", "-"): each
        for each in found
        if each.marker is None or each.marker.evaluate()
    }


# Tables with rows of plug-ins, and where they are: to see that each row can be imported.
TABLES = {
    "commands": "cloze.flows.cli:ROWS",
    "stages": "cloze.flows.graph.stages:TABLE",
    "tools": "cloze.flows.graph.stages:TOOLS",
    "readers": "cloze.pipeline.corpus.readers:READERS",
    "steps": "cloze.pipeline.corpus.steps.chain:STEPS",
    "recipes": "cloze.pipeline.dataset.recipes:RECIPES",
    "pairings": "cloze.pipeline.dataset.pairings.registry:PAIRINGS",
    "masking_rules": "cloze.pipeline.dataset.masking.registry:RULES",
    "vocabularies": "cloze.pipeline.vocab.kinds:TRAINERS",
    "families": "cloze.model.families.registry:FAMILIES",
    "objectives": "cloze.model.objectives:OBJECTIVES",
    "export_forms": "cloze.model.hub.config:FORMS",
    "companions": "cloze.model.train.spec.companions:COMPANIONS",
    "gpu_levers": "cloze.core.stages.execution:GPU_LEVERS",
    "optimizers": "cloze.model.train.optimizers:OPTIMIZERS",
    "task_kinds": "cloze.model.tasks.table:KINDS",
    "task_formats": "cloze.model.tasks.options:FORMATS",
    "tasks": "cloze.model.tasks.table:TASKS",
    "split_checks": "cloze.model.tasks.table:CHECKS",
    "verbs": "cloze.model.use.verb:PREDICTORS",
    "launchers": "cloze.flows.launch.protocol:LAUNCHERS",
    "trackers": "cloze.flows.tracking.trackers:TRACKERS",
    "precisions": "cloze.model.train.precision:PRECISIONS",
    "promotion_limits": "cloze.flows.nightly.suite:LIMITS",
    "headings": "cloze.flows.commands.base.options:STAGES",
    "report_sections": "cloze.flows.report.section:SECTIONS",
}


def plugin_packages() -> Iterator[Finding]:
    """List the plug-ins with their versions, and import all their rows."""
    found = plugins.installed()
    for one in found:
        for kind, rows in one.plugin.rows.items():
            if kind not in TABLES:
                near = did_you_mean(kind, TABLES)
                plugins.faults[f"{one} has rows for {kind!r}, which is no table; {near}"] = None
                continue
            with contextlib.suppress(ImportError):  # of an extra that this host does not have
                table = resolve_name(TABLES[kind])
                for name in rows:
                    with contextlib.suppress(UsageError, KeyError):  # it is among the faults
                        table[name]
        observed = f"{one.package} {one.version}" if one.version else "of Cloze itself"
        yield Finding(f"plug-in {one.plugin.name}", observed)
    for fault in plugins.faults:
        yield problem("plug-ins", fault, "update or uninstall that package")


def compiler() -> Iterator[Finding]:
    """Check for a C++ compiler: `torch.compile` on a CPU needs one, else steps are not compiled."""
    path = shutil.which("g++") or shutil.which("c++")
    yield Finding(
        "compiler", path or "none: training steps cannot be compiled; install g++ for --compile"
    )


def processor() -> Iterator[Finding]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            flags = next((line for line in stream if line.startswith("flags")), "").split()
    except OSError:
        flags = []
    fast = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    precision = f"bf16 by {', '.join(fast)}" if fast else "no native bf16: fp32"
    yield Finding("processor", agree(f"{len(processes.available_cpus())} cores, {precision}"))


def devices() -> Iterator[Finding]:
    """Check that torch sees all GPUs of the driver, and that NCCL is available for several."""
    if not _installed("torch"):  # `packages` has said so
        return
    try:
        process = _output(sys.executable, "-c", _TORCH, timeout=TORCH_TIMEOUT)
        driver_count = _driver_gpus()
    except subprocess.TimeoutExpired as error:
        observed = f"the GPU driver does not answer within {error.timeout:.0f} s"
        yield problem("devices", observed, "if `nvidia-smi` hangs, restart this machine")
        return
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["failed"])[-1]
        yield problem("torch imports", last_line, "reinstall torch for this machine's driver")
        return
    torch = json.loads(process.stdout.splitlines()[-1])
    names = [f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in torch["gpus"]]
    if len(names) < driver_count and "CUDA_VISIBLE_DEVICES" not in os.environ:
        observed = (
            f"the driver lists {driver_count} GPUs, torch {torch['version']} "
            f"(CUDA {torch['cuda']}) sees {len(names)}"
        )
        fix = "install a torch that was built for this driver, or a newer driver"
        yield problem("devices", observed, fix)
    else:
        yield Finding("devices", ", ".join(names) or "no GPU: training computes on the CPU")
    if names:
        is_enough = len(names) == 1 or torch["nccl"] is not None
        fix = "install a torch with NCCL, which training on several GPUs needs"
        yield Finding("nccl", torch["nccl"] or "none", ok=is_enough, fix=fix)


def _driver_gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    process = _output("nvidia-smi", "-L", timeout=DRIVER_TIMEOUT)
    return sum(line.startswith("GPU ") for line in process.stdout.splitlines())


def _output(*command: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def places() -> Iterator[Finding]:
    """Check that directories that are written to can be, or can be made."""
    runs = runs_directory()
    settings = {Path(tempfile.gettempdir()): "TMPDIR", slots.directory(): "CLOZE_SLOTS_DIR"}
    settings |= dict.fromkeys((runs, runs / DIRECTORY), "CLOZE_RUNS_DIR")
    nearest = {
        next(each for each in (path, *path.absolute().parents) if os.path.lexists(each)): setting
        for path, setting in settings.items()
    }
    for path, setting in nearest.items():
        if not (path.is_dir() and os.access(path, os.W_OK | os.X_OK)):
            why = "cannot be written to" if path.is_dir() else "is no directory"
            fix = f"change it, or name another directory in {setting}"
            yield problem("directory", f"{path} {why}", fix)


def disk() -> Iterator[Finding]:
    """Check the free bytes and free files where runs are stored."""
    runs = runs_directory()
    path = runs if runs.exists() else Path.cwd()
    free, statistics = shutil.disk_usage(path).free, os.statvfs(path)
    observed = f"{free / 1e9:.0f} GB at {path.resolve()}"
    fix = "see what fills the disk with `cloze clean`, and remove it with --delete"
    yield Finding("free disk", observed, ok=free > FREE_BYTES, fix=fix)
    if statistics.f_files and statistics.f_favail < FREE_SHARE_OF_FILES * statistics.f_files:
        yield problem("free files", f"only {statistics.f_favail:,} more files fit on the disk", fix)


CHECKS = (python, packages, plugin_packages, compiler, processor, devices, places, disk)
